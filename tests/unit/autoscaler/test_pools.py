"""What pools ask for: GPUs, and whether their providers can ever serve them."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoscaler.core.offers import ceilings
from autoscaler.core.pools import FleetPolicy, OfferKey, WarmFloor, misfits
from autoscaler.core.states import IntentState
from autoscaler.core.world import DemandItem
from autoscaler.settings import AutoscalerSettings
from tests.unit.autoscaler.test_policy import (
    CAPS,
    GPU,
    NOW,
    ONE,
    SMALL,
    a_pool,
    acts,
    an_intent,
    boots,
    node_of,
    reasons,
    world,
)

NO_GPU = replace(CAPS, has_gpu=False)
GPU_ONE = ONE.model_copy(update={"gpus": 1})


def test_a_pool_of_gpus_buys_only_offers_that_have_enough() -> None:
    assert boots(acts(world(), a_pool(min=1, gpus=1))) == ["gpu@here"]
    two = world(offers=(SMALL, GPU))
    assert boots(acts(two, a_pool(min=1, gpus=2))) == []
    assert "nothing that it may buy is sold with 2 GPUs" in reasons(two, a_pool(min=1, gpus=2))["pool cpu"]
    assert boots(acts(world(), a_pool(min=1, gpus=1, offers=(OfferKey("small", "here"),)))) == []


def test_an_offer_that_the_provider_does_not_have_is_named_with_what_it_has() -> None:
    mistyped = a_pool(min=1, offers=(OfferKey("smal", "here"),))
    said = reasons(world(offers=(SMALL, GPU)), mistyped)["pool cpu"]
    assert said.endswith("but cloud does not sell smal@here; it sells small@here, gpu@here")
    assert reasons(world(offers=()), mistyped)["pool cpu"].endswith("but cloud lists no offers")


def test_an_offer_that_ends_soon_is_not_called_unknown() -> None:
    ending = replace(SMALL, gone_after=datetime.fromtimestamp(NOW + 86_400, UTC))
    said = reasons(world(offers=(ending,)), a_pool(min=1, offers=(OfferKey("small", "here"),)))["pool cpu"]
    assert said.endswith("but cloud will not sell its offers much longer")


def test_plain_work_boots_nothing_where_only_gpus_are_bought_and_a_plain_pool_is_there() -> None:
    pools = a_pool(), a_pool(name="gpu", gpus=1)
    assert boots(acts(world(waiting=1), *pools)) == ["small@there"]
    assert boots(acts(world(waiting=1), *reversed(pools))) == ["small@there"]
    assert boots(acts(world(waiting=[DemandItem(GPU_ONE)]), *pools)) == ["gpu@here"]


@pytest.mark.parametrize(
    ("pool", "wish"),
    [
        (a_pool(name="gpu", gpus=2), "gpus = 2"),
        (a_pool(name="gpu", warm=(WarmFloor(ONE, 1), WarmFloor(GPU_ONE, 1))), "gpus = 1 in its warm room"),
    ],
)
def test_gpus_at_a_provider_without_are_refused_with_what_to_do(pool: object, wish: str) -> None:
    (sentence,) = misfits([a_pool(), pool], {"cloud": NO_GPU})  # type: ignore[list-item]
    assert sentence.startswith(f"pool gpu: it wants GPUs ({wish}), and provider cloud has none; name a provider that")
    assert misfits([a_pool(), pool], {"cloud": CAPS}) == []  # type: ignore[list-item]


def test_gpus_without_the_runtime_that_hands_them_on_are_refused() -> None:
    (sentence,) = misfits([a_pool(gpus=1, runtimes=frozenset({"runsc"}))], {"cloud": CAPS})
    assert "of its runtimes none hands them on; add docker to them" in sentence


def test_a_provider_that_is_not_known_is_not_judged() -> None:
    assert misfits([a_pool(gpus=1)], {}) == []


def test_what_a_pool_promises_and_its_nodes_turn_out_not_to_run_buys_no_more_of_them() -> None:
    item = DemandItem(ONE, runtime="docker")
    row = an_intent(IntentState.READY)
    only_runsc = node_of(row)
    assert len(boots(acts(world(waiting=[item])))) == 1
    seen = world(row, nodes=(only_runsc,), waiting=[item])
    assert boots(acts(seen)) == []
    assert "no pool has nodes that fit" in reasons(seen)["demand"]
    assert len(boots(acts(seen, a_pool(spec="another")))) == 1
    assert len(boots(acts(seen, a_pool(), a_pool(name="second")))) == 1


def test_the_settings_of_a_pool_reach_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "as.toml"
    file.write_text(
        'gateway_url = "http://g"\ntoken_file = "/t"\n[providers.c]\n[[pools]]\nname = "gpu"\nprovider = "c"\n'
        "gpus = 2\npressure_hold_seconds = 45\n"
    )
    (pool,) = AutoscalerSettings.load(file, {}).policy().pools
    assert (pool.gpus, pool.pressure_hold_seconds) == (2, 45.0)


def test_a_pool_has_a_ceiling_for_each_node_that_is_largest_in_something() -> None:
    wide = replace(SMALL, type="wide", resources=replace(SMALL.resources, cpus=64.0))
    told = ceilings(world(offers=(SMALL, GPU, wide, replace(wide, location="there"))), FleetPolicy("test", (a_pool(),)))
    assert told is not None
    assert [(each.pool, each.shape.cpus, each.shape.gpus) for each in told.pools] == [
        ("cpu (wide@here)", 64, 0),
        ("cpu (gpu@here)", 16, 1),
    ]


def test_a_pool_whose_gpus_nobody_sells_holds_back_no_other_pools_ceiling() -> None:
    told = ceilings(world(offers=(SMALL,)), FleetPolicy("test", (a_pool(), a_pool(name="gpu", gpus=1))))
    assert told is not None
    assert [each.pool for each in told.pools] == ["cpu"]
