"""What a pool may buy, what a node of it will have, and the ceilings that the gateway goes by."""

from dataclasses import replace

from autoscaler.core.offers import ceilings, ends_soon, expected_shape, missing_offers
from autoscaler.core.pools import FleetPolicy, OfferKey
from autoscaler.core.states import IntentState
from gateway.wire.resources import Shape
from tests.unit.autoscaler.builders import GPU, NOW, ONE, SMALL, a_pool, an_intent, at, node_of, world

HERE = OfferKey("small", "here")


def test_missing_offers_are_named_with_what_is_sold() -> None:
    pool = a_pool(offers=(OfferKey("smal", "here"), HERE))
    assert missing_offers(pool, (SMALL, GPU)) == "cloud does not sell smal@here; it sells small@here, gpu@here"
    assert missing_offers(pool, ()) == "cloud lists no offers"
    assert missing_offers(a_pool(offers=(HERE,)), (SMALL,)) == ""


def test_an_offer_ends_soon_in_its_last_week() -> None:
    assert ends_soon(replace(SMALL, gone_after=at(7 * 86_400)), NOW)
    assert not ends_soon(replace(SMALL, gone_after=at(7 * 86_400 + 1)), NOW)
    assert not ends_soon(SMALL, NOW)


def test_a_node_has_what_the_offer_has_less_what_it_keeps_or_what_was_seen() -> None:
    shape = expected_shape(world(), a_pool(cpu_overcommit=2.0), SMALL)
    assert shape == Shape(cpus=8, memory_mb=8192 - 512, disk_mb=80_000 - 2048, slots=250)
    assert expected_shape(world(), a_pool(gives={"memory_mb": 100}), SMALL).memory_mb == 100
    assert expected_shape(world(learned={("cpu", "small", ""): ONE}), a_pool(), SMALL) == ONE


# -- ceilings ---------------------------------------------------------------------------------------------------------


def test_the_ceiling_of_a_pool_is_its_largest_node() -> None:
    policy = FleetPolicy("test", (a_pool(offers=(HERE,)), a_pool(name="off", max=0)))
    found = ceilings(world(), policy)
    assert found is not None
    assert [(each.pool, each.shape.memory_mb, each.max_nodes) for each in found.pools] == [("cpu", 8192 - 512, 3)]


def test_while_offers_are_unknown_there_is_no_ceiling() -> None:
    assert ceilings(world(offers=()), FleetPolicy("test", (a_pool(),))) is None


def test_a_pool_has_a_ceiling_for_each_node_that_is_largest_in_something() -> None:
    wide = replace(SMALL, type="wide", resources=replace(SMALL.resources, cpus=64.0))
    seen = world(offers=(SMALL, GPU, wide, replace(wide, location="there")))
    found = ceilings(seen, FleetPolicy("test", (a_pool(),)))
    assert found is not None
    assert [(each.pool, each.shape.cpus, each.shape.gpus) for each in found.pools] == [
        ("cpu (wide@here)", 64, 0),
        ("cpu (gpu@here)", 16, 1),
    ]


def test_a_pool_promises_no_engine_that_its_nodes_turned_out_not_to_have() -> None:
    row = an_intent(IntentState.READY)
    seen = world(row, nodes=(node_of(row),))
    found = ceilings(seen, FleetPolicy("test", (a_pool(offers=(HERE,)),)))
    assert found is not None
    assert [(each.runtimes, each.isolations) for each in found.pools] == [(["runsc"], ["gvisor"])]


def test_runtimes_that_give_different_isolations_have_ceilings_of_their_own() -> None:
    row = an_intent(IntentState.READY)
    seen = world(row, nodes=(node_of(row, engines=frozenset({("runsc", "gvisor"), ("docker", "runc")})),))
    found = ceilings(seen, FleetPolicy("test", (a_pool(offers=(HERE,)),)))
    assert found is not None
    assert [(each.pool, each.runtimes, each.isolations) for each in found.pools] == [
        ("cpu (docker)", ["docker"], ["runc"]),
        ("cpu (runsc)", ["runsc"], ["gvisor"]),
    ]


def test_a_pool_whose_gpus_nobody_sells_holds_back_no_other_pools_ceiling() -> None:
    found = ceilings(world(offers=(SMALL,)), FleetPolicy("test", (a_pool(), a_pool(name="gpu", gpus=1))))
    assert found is not None
    assert [each.pool for each in found.pools] == ["cpu"]
