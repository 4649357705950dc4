"""`plan`, `settle` and their helpers: one idea a test, no clock, no database."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from autoscaler.core import backoff, naming, states
from autoscaler.core.actions import (
    Adopt,
    Boot,
    CancelDrain,
    Drain,
    Forget,
    Learn,
    Move,
    RefusalKind,
    Retry,
    Stop,
    Sweep,
    WaitKind,
)
from autoscaler.core.findings import applied, settle
from autoscaler.core.offers import ceilings
from autoscaler.core.packing import NOTHING, Bin, grouped, items, largest_first, vector
from autoscaler.core.packing import pack as pack_groups
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy, OfferKey, PoolPolicy
from autoscaler.core.states import IntentState, IntentTransitionError
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind, DemandItem, Intent, NodeView, ProviderView, World
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import (
    Applied,
    Billing,
    Caps,
    ErrorKind,
    Instance,
    Offer,
    Phase,
    ProviderError,
    Resources,
    Scope,
)

S = IntentState
NOW = 1_900_000_000.0
CAPS = Caps(
    unique_names=True,
    list_is_atomic=True,
    deleted_vanish=True,
    billing=Billing.PER_SECOND,
    max_user_data=None,
    calls_per_hour=None,
    has_gpu=True,
)
SMALL = Offer("small", "here", Resources(4, 8192, 80_000), Decimal("0.01"), available=True)
CHEAP_FAR = Offer("small", "there", Resources(4, 8192, 80_000), Decimal("0.005"), available=True)
GPU = Offer("gpu", "here", Resources(16, 65536, 80_000, gpus=1), Decimal("1"), available=True)
ONE = Shape(cpus=1, memory_mb=1024, disk_mb=1024, slots=1)
THERE = BackOffKey(BackOffKind.OFFER, "cloud", "small@there")
FULL = Shape(cpus=4, memory_mb=7680, disk_mb=70_000, slots=10)


def a_pool(**changes: Any) -> PoolPolicy:
    values: dict[str, Any] = {"name": "cpu", "provider": "cloud", "role": "sandbox", "min": 0, "max": 3}
    return PoolPolicy(
        **(
            values
            | {"idle_seconds": 100.0, "boot_seconds": 300.0, "cpu_overcommit": 1.0, "hold_seconds": 0.0}
            | changes
        )
    )


def an_intent(state: IntentState, number: int = 1, **changes: Any) -> Intent:
    operation = f"op{number}"
    intent = Intent(
        operation_id=operation,
        pool="cpu",
        provider="cloud",
        name=f"test-cpu-{operation}",
        type="small",
        location="here",
        state=state,
        created_at=NOW - 50,
        changed_at=NOW - 50,
        deadline=NOW + 250,
        instance_id=f"vm-{operation}",
        node_id=f"node-{operation}" if state in (S.READY, S.DRAINING) else None,
    )
    return replace(intent, **changes)


def instance_of(intent: Intent, phase: Phase = Phase.RUNNING, **changes: Any) -> Instance:
    made = Instance(
        id=f"vm-{intent.operation_id}",
        name=intent.name,
        labels=naming.labels("test", intent.pool, "sandbox", intent.operation_id),
        phase=phase,
        type=intent.type,
        location=intent.location,
        created_at=datetime.fromtimestamp(NOW - 50, UTC),
    )
    return replace(made, **changes)


def node_of(intent: Intent, **changes: Any) -> NodeView:
    node = NodeView(
        id=f"node-{intent.operation_id}",
        instance=intent.name,
        pool=intent.pool,
        state=NodeState.READY,
        total=FULL,
        reserved=Shape(),
        sandboxes=0,
        runtimes=frozenset({"runsc"}),
        isolations=frozenset({"gvisor"}),
        heartbeat_at=NOW - 1,
        idle_since=NOW - 10,
    )
    return replace(node, **changes)


def world(
    *intents: Intent, nodes: tuple[NodeView, ...] = (), waiting: int | list[DemandItem] = 0, **changes: Any
) -> World:
    """Rows whose instances all run, unless ``instances`` says otherwise."""
    listed = changes.pop("instances", tuple(instance_of(i) for i in intents if i.state not in (S.PLANNED, S.CALLING)))
    offers = changes.pop("offers", (SMALL, CHEAP_FAR, GPU))
    view = ProviderView(changes.pop("caps", CAPS), listed, taken_at=NOW, offers=offers, problem="it is asleep")
    items = [DemandItem(ONE)] * waiting if isinstance(waiting, int) else waiting
    return replace(World(intents, providers={"cloud": view}, nodes=nodes, waiting=tuple(items)), **changes)


def acts(seen: World, *pools: PoolPolicy, **rules: Any) -> tuple[object, ...]:
    return plan(seen, FleetPolicy("test", pools or (a_pool(),), **rules), NOW).actions


def reasons(seen: World, *pools: PoolPolicy, **rules: Any) -> dict[str, str]:
    waits = plan(seen, FleetPolicy("test", pools or (a_pool(),), **rules), NOW).waits
    return {wait.subject: wait.reason for wait in waits}


def kinds(seen: World, *pools: PoolPolicy, **rules: Any) -> dict[str, WaitKind | RefusalKind]:
    """Why what was not done is put off, by its subject."""
    waits = plan(seen, FleetPolicy("test", pools or (a_pool(),), **rules), NOW).waits
    return {wait.subject: wait.kind for wait in waits}


def boots(actions: tuple[object, ...]) -> list[str]:
    return [str(action.offer) for action in actions if isinstance(action, Boot)]


def drains(seen: World, *pools: PoolPolicy, **rules: Any) -> list[str]:
    return [action.operation_id for action in acts(seen, *pools, **rules) if isinstance(action, Drain)]


def busy(intent: Intent, **changes: Any) -> NodeView:
    return node_of(intent, reserved=FULL, sandboxes=3, idle_since=None, **changes)


# -- booting ----------------------------------------------------------------------------------------------------------


def test_no_demand_no_action() -> None:
    assert acts(world()) == ()


def test_waiting_work_boots_the_cheapest_offer_with_the_reason() -> None:
    reason = "nothing has room for 1 cpus, 1024 MiB, 1024 MiB disk (gvisor)"
    assert acts(world(waiting=1)) == (Boot("cpu", "cloud", OfferKey("small", "there"), 300.0, reason),)


def test_the_pools_own_order_of_offers_wins_over_the_price() -> None:
    listed = (OfferKey("small", "here"), OfferKey("small", "there"))
    assert boots(acts(world(waiting=1), a_pool(offers=listed))) == ["small@here"]


def test_an_offer_that_is_held_back_is_passed_over() -> None:
    held = BackOff(THERE, NOW + 60, 1, NOW, "capacity")
    assert boots(acts(world(waiting=1, backoffs={held.key: held}))) == ["small@here"]


def test_a_back_off_that_is_over_holds_nothing() -> None:
    held = BackOff(THERE, NOW, 1, NOW - 60, "capacity")
    assert boots(acts(world(waiting=1, backoffs={held.key: held}))) == ["small@there"]


def test_a_provider_that_is_held_back_sells_nothing() -> None:
    held = BackOff(BackOffKey(BackOffKind.PROVIDER, "cloud"), NOW + 60, 1, NOW, "quota")
    seen = world(waiting=2, backoffs={held.key: held})
    assert acts(seen) == ()
    assert kinds(seen)["pool cpu"] is RefusalKind.BACKOFF


def test_what_is_not_available_is_not_tried() -> None:
    offers = (replace(SMALL, available=False),)
    assert acts(world(waiting=1, offers=offers)) == ()
    assert "small@here is not available" in reasons(world(waiting=1, offers=offers))["pool cpu"]


def test_a_gpu_shape_goes_to_the_offer_that_has_one() -> None:
    item = DemandItem(replace_shape(ONE, gpus=1))
    assert boots(acts(world(waiting=[item]))) == ["gpu@here"]


def test_an_isolation_that_no_pool_has_buys_nothing() -> None:
    seen = world(waiting=[DemandItem(ONE, isolation="runc")])
    assert acts(seen, a_pool(isolations=frozenset({"gvisor"}))) == ()
    assert "no pool has nodes that fit" in reasons(seen, a_pool(isolations=frozenset({"gvisor"})))["demand"]


def test_the_second_pool_is_used_when_the_first_is_full() -> None:
    full, other = a_pool(max=0), a_pool(name="more")
    (boot,) = acts(world(waiting=1), full, other)
    assert isinstance(boot, Boot)
    assert boot.pool == "more"


def test_the_second_pool_is_not_used_while_the_first_only_takes_its_time() -> None:
    seen = world(an_intent(S.BOOTING), waiting=9)
    pools = a_pool(max_in_flight=1), a_pool(name="more")
    assert acts(seen, *pools) == ()
    assert kinds(seen, *pools)["pool cpu"] is RefusalKind.IN_FLIGHT


def test_every_row_that_is_not_gone_counts_against_the_maximum() -> None:
    rows = [an_intent(S.DELETING, 1), an_intent(S.READY, 2), an_intent(S.BOOTING, 3)]
    full = node_of(rows[1], reserved=Shape(cpus=4, memory_mb=7680, slots=10), sandboxes=3, idle_since=None)
    seen = world(*rows, nodes=(full,), waiting=9)
    assert boots(acts(seen)) == []
    assert kinds(seen)["pool cpu"] is RefusalKind.POOL_FULL


def test_what_boots_counts_in_full_until_its_deadline_and_not_after() -> None:
    assert acts(world(an_intent(S.BOOTING), waiting=4)) == ()
    late = an_intent(S.BOOTING, deadline=NOW - 1)
    stop, *rest = acts(world(late, waiting=4))
    assert stop == Stop("op1", "it did not run within 49 s", boot_failed=True)
    assert rest == []
    assert "has just failed" in reasons(world(late, waiting=4))["pool cpu"]


def test_free_room_of_a_node_that_nobody_booted_counts() -> None:
    foreign = node_of(an_intent(S.READY), instance="somebody-elses")
    assert acts(world(nodes=(foreign,), waiting=4)) == ()


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.UNREACHABLE, NodeState.LOST])
def test_room_of_a_node_that_takes_nothing_does_not_count(state: NodeState) -> None:
    row = an_intent(S.READY)
    assert len(boots(acts(world(row, nodes=(node_of(row, state=state),), waiting=1)))) == 1


def test_the_minimum_is_kept_one_a_tick() -> None:
    assert len(boots(acts(world(), a_pool(min=2)))) == 1
    assert len(boots(acts(world(), a_pool(min=2), creates_per_tick=5))) == 2
    assert kinds(world(), a_pool(min=2))["pool cpu"] is RefusalKind.TICK_FULL


def test_a_learned_shape_replaces_the_guess() -> None:
    seen = world(waiting=1, learned={("cpu", "small", ""): Shape(cpus=0.5, memory_mb=100, slots=1)})
    assert boots(acts(seen)) == ["gpu@here"]


def test_a_blind_provider_boots_nothing() -> None:
    seen = world(waiting=1, instances=None)
    assert acts(seen, a_pool(min=1)) == ()
    assert reasons(seen)["provider cloud"] == "nothing is concluded or changed there: it is asleep"


def test_a_node_whose_provider_went_blind_while_it_came_has_no_more_room_than_it_has() -> None:
    row = an_intent(S.BOOTING)
    other = ProviderView(CAPS, (), taken_at=NOW, offers=(SMALL,))
    pools = a_pool(), a_pool(name="other", provider="other")
    full = node_of(row, reserved=Shape(cpus=4, memory_mb=7000, disk_mb=1024, slots=4), sandboxes=4, idle_since=None)
    for node, expected in ((full, ["small@here"]), (node_of(row), [])):
        seen = world(row, nodes=(node,), waiting=1, instances=None)
        seen = replace(seen, providers={**seen.providers, "other": other})
        assert boots(acts(seen, *pools)) == expected


# -- creates without an answer ----------------------------------------------------------------------------------------


def test_a_planned_row_is_called() -> None:
    assert acts(world(an_intent(S.PLANNED))) == (Retry("op1", "planned"),)


def test_a_call_without_answer_is_made_again_when_its_time_has_come() -> None:
    again = an_intent(S.CALLING, attempts=1, next_try_at=NOW + 5)
    assert acts(world(again)) == ()
    (retry,) = acts(world(replace(again, next_try_at=NOW)))
    assert isinstance(retry, Retry)


def test_without_unique_names_two_listings_must_lack_it_first() -> None:
    again = an_intent(S.CALLING, attempts=1)
    loose = replace(CAPS, unique_names=False)
    assert acts(world(again, caps=loose)) == ()
    seen = world(again, caps=loose, missing_before=frozenset({again.sighting}))
    (retry,) = acts(seen)
    assert isinstance(retry, Retry)
    assert acts(replace(seen, clock_settled=False)) == (), "how long it was under way is not known"


def test_after_a_jump_of_the_clock_what_was_given_up_may_still_come() -> None:
    seen = world(an_intent(S.ABANDONED, detail="why"), instances=(), clock_settled=False)
    assert acts(seen) == ()
    assert acts(replace(seen, clock_settled=True)) == (Stop("op1", "why", boot_failed=True),)


# -- closing and stopping ---------------------------------------------------------------------------------------------


def idle_world(*, idle: float, **changes: Any) -> World:
    row = an_intent(S.READY)
    return world(row, nodes=(node_of(row, idle_since=NOW - idle),), **changes)


def test_an_idle_node_beyond_the_minimum_is_closed() -> None:
    assert acts(idle_world(idle=100)) == (Drain("op1", "node-op1", "idle for 100 s"),)
    assert reasons(idle_world(idle=60))["test-cpu-op1"] == "it is idle; it is closed in 40 s"
    assert acts(idle_world(idle=1000), a_pool(min=1)) == ()


def test_an_idle_node_that_waiting_work_fits_is_kept() -> None:
    assert acts(idle_world(idle=1000, waiting=1)) == ()


def test_after_a_jump_of_the_clock_no_node_is_closed() -> None:
    assert acts(idle_world(idle=4000, clock_settled=False)) == ()


def test_one_node_a_tick_is_closed_the_longest_idle_first() -> None:
    rows = [an_intent(S.READY, number) for number in (1, 2)]
    nodes = (node_of(rows[0], idle_since=NOW - 200), node_of(rows[1], idle_since=NOW - 300))
    assert [a.operation_id for a in acts(world(*rows, nodes=nodes)) if isinstance(a, Drain)] == ["op2"]


def draining(**changes: Any) -> World:
    row = an_intent(S.DRAINING, drain_mark=NOW - 10)
    node = node_of(row, state=NodeState.DRAINING, **changes.pop("node", {}))
    return world(row, nodes=(node,), **changes)


def test_a_closed_empty_node_is_stopped_after_its_next_heartbeat() -> None:
    assert acts(draining()) == (Stop("op1", "node node-op1 is drained and empty", drained=True),)
    seen = draining(node={"heartbeat_at": NOW - 10})
    assert acts(seen) == ()
    assert "its next heartbeat shall show" in reasons(seen)["test-cpu-op1"]


def test_a_drain_is_cancelled_by_work_on_it_by_demand_and_by_the_minimum() -> None:
    for seen, pool in (
        (draining(node={"sandboxes": 1}), a_pool()),
        (draining(waiting=1), a_pool()),
        (draining(), a_pool(min=1)),
    ):
        (action,) = acts(seen, pool)
        assert isinstance(action, CancelDrain), action


def test_a_drain_that_was_not_confirmed_is_asked_for_again() -> None:
    row = an_intent(S.DRAINING)
    (action,) = acts(world(row, nodes=(node_of(row),)))
    assert isinstance(action, Drain)


def test_a_lost_node_is_stopped_after_long_silence_only() -> None:
    row = an_intent(S.READY)
    fresh = world(row, nodes=(node_of(row, state=NodeState.LOST, heartbeat_at=NOW - 400),))
    assert acts(fresh) == ()
    old = world(row, nodes=(node_of(row, state=NodeState.LOST, heartbeat_at=NOW - 1800),))
    assert acts(old) == (Stop("op1", "node node-op1 has been silent for 1800 s"),)
    assert acts(replace(old, clock_settled=False)) == ()


def test_a_delete_is_repeated_when_it_shows_nothing_and_confirmed_when_it_is_absent() -> None:
    assert acts(world(an_intent(S.DELETING, changed_at=NOW - 10))) == ()
    assert acts(world(an_intent(S.DELETING, changed_at=NOW - 60))) == (Stop("op1", "it is still there; asking again"),)
    (stop,) = acts(world(an_intent(S.DELETING, changed_at=NOW), instances=()))
    assert stop == Stop("op1", "it is listed no more; the provider shall confirm it")


@pytest.mark.parametrize("state", [S.LOST, S.ABANDONED])
def test_what_was_given_up_is_deleted(state: IntentState) -> None:
    (stop,) = acts(world(an_intent(state, detail="why"), instances=()))
    assert stop == Stop("op1", "why", boot_failed=True)


# -- strays -----------------------------------------------------------------------------------------------------------


def stray_world(age: float, **changes: Any) -> World:
    stray = instance_of(an_intent(S.READY), created_at=datetime.fromtimestamp(NOW - age, UTC))
    return world(instances=(stray,), **changes)


def test_an_old_stray_goes_at_its_second_sighting() -> None:
    assert acts(stray_world(1000)) == ()
    (sweep,) = acts(stray_world(1000, orphans_before=frozenset({"vm-op1"})))
    assert isinstance(sweep, Sweep)
    assert (sweep.provider, sweep.instance_id) == ("cloud", "vm-op1")


def test_the_node_of_another_order_of_its_name_keeps_no_stray() -> None:
    lost = an_intent(S.READY)
    seen = stray_world(1000, orphans_before=frozenset({"vm-op1"}), nodes=(node_of(lost, operation_id="another"),))
    assert [a.instance_id for a in acts(seen) if isinstance(a, Sweep)] == ["vm-op1"]
    own = replace(seen, nodes=(node_of(lost, operation_id="op1"),))
    assert acts(own) == ()
    assert "its node works" in reasons(own)[lost.name]


def test_a_stray_that_was_told_to_go_gets_the_time_for_it() -> None:
    held = BackOff(backoff.sweep_key("cloud", "vm-op1"), NOW + 60, 1, NOW, "busy: protected")
    seen = stray_world(1000, orphans_before=frozenset({"vm-op1"}), backoffs={held.key: held})
    assert acts(seen) == ()
    assert kinds(seen)["test-cpu-op1"] is WaitKind.BACKOFF
    assert len(acts(replace(seen, backoffs={held.key: replace(held, until=NOW)}))) == 1


def test_a_young_stray_a_jumped_clock_or_a_silent_gateway_keep_it() -> None:
    seen = frozenset({"vm-op1"})
    assert acts(stray_world(800, orphans_before=seen)) == ()
    assert acts(stray_world(1000, orphans_before=seen, clock_settled=False)) == ()
    assert acts(replace(stray_world(1000, orphans_before=seen), nodes=None)) == ()


def test_of_two_instances_of_one_operation_the_younger_is_a_stray() -> None:
    row = an_intent(S.BOOTING)
    older = instance_of(row, created_at=datetime.fromtimestamp(NOW - 2000, UTC))
    twin = instance_of(row, id="vm-twin", created_at=datetime.fromtimestamp(NOW - 1000, UTC))
    seen = world(row, instances=(twin, older), orphans_before=frozenset({"vm-twin"}))
    assert [a.instance_id for a in acts(seen) if isinstance(a, Sweep)] == ["vm-twin"]


def test_a_node_whose_instance_is_gone_is_forgotten() -> None:
    node = node_of(an_intent(S.READY))
    seen = world(nodes=(node,), gone=frozenset({node.instance}))
    assert acts(seen) == (Forget("node-op1", "its instance test-cpu-op1 is gone"),)


# -- settling ---------------------------------------------------------------------------------------------------------


def finds(seen: World) -> tuple[object, ...]:
    return settle(seen, FleetPolicy("test", (a_pool(),)), NOW)


def moves(seen: World) -> list[IntentState]:
    return [finding.to for finding in finds(seen) if isinstance(finding, Move)]


def test_a_listed_instance_settles_a_call_without_answer() -> None:
    row = an_intent(S.CALLING, instance_id=None)
    assert finds(world(row, instances=(instance_of(row),))) == (
        Move("op1", S.BOOTING, "the provider lists it", instance_id="vm-op1"),
    )


def test_a_call_past_its_deadline_is_given_up_for_good() -> None:
    assert moves(world(an_intent(S.CALLING, deadline=NOW - 1))) == [S.ABANDONED]
    assert moves(world(an_intent(S.PLANNED, deadline=NOW - 1))) == [S.GONE]


def test_a_registered_node_makes_it_ready() -> None:
    row = an_intent(S.BOOTING)
    node = node_of(row)
    assert finds(world(row, nodes=(node,))) == (
        Move("op1", S.READY, "node node-op1 has registered", node_id="node-op1"),
        Learn("cpu", "small", "", node.total),
    )
    assert moves(world(row, nodes=(node_of(row, state=NodeState.UNREACHABLE),))) == [S.READY]
    assert moves(world(row, nodes=(node_of(row, heartbeat_at=None),))) == []


def test_absence_takes_two_complete_listings() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row),), instances=())
    assert moves(seen) == []
    assert moves(replace(seen, missing_before=frozenset({row.sighting}))) == [S.LOST]
    blind = world(row, nodes=(node_of(row),), instances=None, missing_before=frozenset({row.sighting}))
    assert moves(blind) == []


def test_a_forgotten_node_takes_two_looks() -> None:
    row = an_intent(S.READY)
    assert moves(world(row)) == []
    assert moves(world(row, unknown_nodes_before={"op1": 2.0})) == [S.LOST]
    assert moves(replace(world(row, unknown_nodes_before={"op1": 2.0}), nodes=None)) == []


@pytest.mark.parametrize(("phase", "state"), [(Phase.LOST, S.LOST), (Phase.STOPPING, S.DELETING)])
def test_what_the_provider_says_of_an_instance_is_taken(phase: Phase, state: IntentState) -> None:
    row = an_intent(S.READY)
    assert moves(world(row, nodes=(node_of(row),), instances=(instance_of(row, phase),))) == [state]


def test_a_machine_lost_after_its_node_registered_is_no_failed_boot() -> None:
    row = an_intent(S.BOOTING)
    seen = world(row, nodes=(node_of(row),), instances=(instance_of(row, Phase.LOST),))
    assert finds(seen)[:1] == (Move("op1", S.LOST, "the provider says that it is lost", node_id="node-op1"),)
    (stop,) = acts(world(an_intent(S.LOST, node_id="node-op1", detail="lost"), instances=()))
    assert stop == Stop("op1", "lost")


def test_a_working_node_without_a_row_is_adopted() -> None:
    lost = an_intent(S.READY)
    (adopt,) = [f for f in finds(world(instances=(instance_of(lost),), nodes=(node_of(lost),))) if isinstance(f, Adopt)]
    assert (adopt.intent.operation_id, adopt.intent.state, adopt.intent.node_id) == ("op1", S.READY, "node-op1")
    closed = world(instances=(instance_of(lost),), nodes=(node_of(lost, state=NodeState.DRAINING),))
    assert [f.intent.state for f in finds(closed) if isinstance(f, Adopt)] == [S.DRAINING]
    gone = world(instances=(instance_of(lost),), nodes=(node_of(lost),), gone=frozenset({lost.name}))
    assert not [f for f in finds(gone) if isinstance(f, Adopt)]


def test_a_second_instance_of_a_name_that_a_row_has_is_not_adopted() -> None:
    row = an_intent(S.BOOTING)
    other = instance_of(row, id="vm-other", labels=naming.labels("test", "cpu", "sandbox", "older"))
    seen = world(row, instances=(instance_of(row, Phase.BOOTING), other), nodes=(node_of(row, operation_id="older"),))
    assert not [f for f in finds(seen) if isinstance(f, Adopt)]
    twin = instance_of(row, id="vm-twin", labels=naming.labels("test", "cpu", "sandbox", "another"))
    both = world(instances=(other, twin), nodes=(node_of(row),))
    assert [f.intent.operation_id for f in finds(both) if isinstance(f, Adopt)] == ["older"]


def test_the_shape_of_a_node_is_learned_once() -> None:
    row = an_intent(S.READY)
    node = node_of(row)
    assert finds(world(row, nodes=(node,))) == (Learn("cpu", "small", "", node.total),)
    nearly = replace_shape(node.total, disk_mb=69_000)
    assert finds(world(row, nodes=(node,), learned={("cpu", "small", ""): nearly})) == ()


def test_a_new_node_without_its_gpu_is_learned_before_a_second_one_is_bought() -> None:
    row = an_intent(S.BOOTING, type="gpu", running_at=NOW - 5)
    seen = world(row, nodes=(node_of(row),), waiting=[DemandItem(replace_shape(ONE, gpus=1))])
    found = finds(seen)
    assert [type(finding) for finding in found] == [Move, Learn]
    assert boots(acts(applied(seen, found, NOW))) == []


# -- the rest ---------------------------------------------------------------------------------------------------------


def replace_shape(shape: Shape, **changes: Any) -> Shape:
    return shape.model_copy(update=changes)


def test_the_table_knows_every_state_and_ends_in_gone_only() -> None:
    assert set(states.TRANSITIONS) == set(IntentState) == set(states.TEARDOWN)
    assert [state for state, after in states.TRANSITIONS.items() if not after] == [S.GONE]


@pytest.mark.parametrize("state", list(IntentState))
def test_giving_up_goes_by_the_table_to_deleting_or_gone(state: IntentState) -> None:
    at = state
    for step in states.TEARDOWN[state]:
        at = states.next_state(at, step)
    assert at in (S.DELETING, S.GONE)


def test_a_change_that_the_table_lacks_is_a_bug() -> None:
    with pytest.raises(IntentTransitionError, match="abandoned -> calling"):
        states.next_state(S.ABANDONED, S.CALLING)


def failure(kind: ErrorKind, scope: Scope) -> ProviderError:
    return ProviderError("no", kind=kind, applied=Applied.NO, scope=scope)


@pytest.mark.parametrize(
    ("kind", "scope", "key"),
    [
        (ErrorKind.CAPACITY, Scope.OFFER, BackOffKey(BackOffKind.OFFER, "cloud", "small@here")),
        (ErrorKind.CAPACITY, Scope.LOCATION, BackOffKey(BackOffKind.LOCATION, "cloud", "here")),
        (ErrorKind.QUOTA, Scope.OFFER, BackOffKey(BackOffKind.PROVIDER, "cloud")),
        (ErrorKind.AUTH, Scope.INSTANCE, BackOffKey(BackOffKind.PROVIDER, "cloud")),
        (ErrorKind.CONFIG, Scope.POOL, BackOffKey(BackOffKind.POOL, "cpu")),
        (ErrorKind.EXISTS, Scope.INSTANCE, BackOffKey(BackOffKind.POOL, "cpu")),
    ],
)
def test_a_failure_holds_back_as_far_as_it_reaches(kind: ErrorKind, scope: Scope, key: BackOffKey) -> None:
    found = backoff.key_of(failure(kind, scope), "cloud", "cpu", OfferKey("small", "here"))
    assert found == key
    assert found in backoff.keys("cloud", "cpu", OfferKey("small", "here"))


def grown(previous: BackOff | None, now: float, least: float = 0.0) -> BackOff:
    return backoff.grown(previous, THERE, bounds=(10.0, 35.0), now=now, reason="r", least=least)


def test_a_back_off_doubles_with_failed_windows_up_to_its_bound() -> None:
    first = grown(None, 0.0)
    second = grown(first, 11.0)
    third = grown(second, 40.0)
    assert [first.until, second.until - 11, third.until - 40] == [10.0, 20.0, 35.0]


def test_failures_inside_one_window_do_not_double_it_and_quiet_hours_forget() -> None:
    first = grown(None, 0.0)
    assert grown(first, 5.0).failures == 1
    assert grown(first, 5.0 + backoff.FORGET_SECONDS).failures == 1
    assert grown(None, 0.0, least=100.0).until == 100.0


def pack(waiting: list[DemandItem], bins: list[Bin]) -> list[DemandItem]:
    most = max((each.free for each in bins), default=NOTHING)
    return items(pack_groups(largest_first(grouped(waiting), most), bins))


def test_packing_takes_the_largest_first_and_all_resources_count() -> None:
    big = DemandItem(Shape(cpus=3, memory_mb=10, slots=1))
    small = DemandItem(Shape(cpus=1, memory_mb=1, slots=1))
    room = Bin("n", vector(Shape(cpus=4, memory_mb=100, slots=2)), frozenset({"runsc"}), frozenset({"gvisor"}))
    assert pack([small, small, big], [room]) == [small]
    assert room.used


def test_a_runtime_that_was_asked_for_must_be_there() -> None:
    room = Bin("n", vector(Shape(cpus=4, memory_mb=100, slots=2)), frozenset({"runsc"}), frozenset({"gvisor"}))
    assert pack([DemandItem(Shape(cpus=1, slots=1), runtime="docker")], [room])


def test_ceilings_are_the_largest_node_of_each_pool_or_unknown() -> None:
    policy = FleetPolicy("test", (a_pool(offers=(OfferKey("small", "here"),)), a_pool(name="off", max=0)))
    told = ceilings(world(), policy)
    assert told is not None
    assert [(p.pool, p.shape.memory_mb, p.max_nodes) for p in told.pools] == [("cpu", 8192 - 512, 3)]
    assert ceilings(world(offers=()), policy) is None


def test_a_name_fits_every_cloud() -> None:
    longest = "a" * 24
    assert len(naming.instance_name(longest, longest, "x" * naming.OPERATION_LENGTH)) <= 63
