"""The worlds find bugs: each of these is planted, and the audit has to notice it by the invariant that it breaks."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from autoscaler.clock import ClockGuard
from autoscaler.core import deletion, findings, naming, plan, purchase
from autoscaler.core.actions import BootRefusal, RefusalKind, Stop, Wait, WaitKind
from autoscaler.core.plan_builder import PlanBuilder
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.world import Intent, NodeView, World
from autoscaler.executor import Executor
from autoscaler.instances import InstanceCreator
from autoscaler.reconcile import Reconciler
from providers.base import Applied, ErrorKind, Ref
from providers.rate_limit import Priority, RateLimit
from providers.testing.fake import FakeProvider
from tests.scenario.autoscaler.fake_gateway import FakeGateway
from tests.scenario.autoscaler.happenings import worlds
from tests.scenario.autoscaler.stage import CLOUDS
from tests.scenario.autoscaler.worlds import Happening, InvariantError, Mutation, RateLimitedProvider, play

Patch = Callable[[pytest.MonkeyPatch], None]
WORLDS = 200
SHORT = 300
SEARCH = settings(
    max_examples=WORLDS,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class FoundError(Exception):
    """A world has noticed."""

    def __init__(self, error: InvariantError) -> None:
        super().__init__(str(error))
        self.error = error


def pools(**changes: object) -> Mutation:
    return lambda rules: replace(rules, pools=tuple(replace(each, **changes) for each in rules.pools))  # type: ignore[arg-type]


def one_more(rules: FleetPolicy) -> FleetPolicy:
    return replace(rules, pools=tuple(replace(each, max=each.max + 1) for each in rules.pools))


POLICIES: dict[str, tuple[set[int], Mutation]] = {
    "the maximum of a pool is one too high": ({3}, one_more),
    "the maximum of the fleet is ignored": ({3}, lambda rules: replace(rules, max=None)),
    "the cap of a pool in euro an hour is ignored": ({3}, pools(max_hourly=None)),
    "the cap of a pool in euro a month is ignored": ({3}, pools(max_monthly=None)),
    "the cap of the fleet in euro is ignored": ({3}, lambda rules: replace(rules, max_hourly=Decimal(10))),
    "orphans are deleted young": ({5, 8}, lambda rules: replace(rules, orphan_seconds=0.0)),
    "boots get half their time": ({5, 8}, pools(start_seconds=30.0, boot_seconds=20.0)),
    "an idle node is never closed": ({2}, pools(idle_seconds=1e9)),
}


# -- the rules of one plan --------------------------------------------------------------------------------------------


def never_looks_again(patch: pytest.MonkeyPatch) -> None:
    def drained(intent: Intent, _node: NodeView) -> Stop:
        return Stop(intent.operation_id, "it was closed")

    patch.setattr(deletion, "_drained", drained)
    patch.setattr(Executor, "_is_still_drained", lambda _self, _intent: True)


def with_views(patch: pytest.MonkeyPatch, change: Callable[[World], World]) -> None:
    """Settle rows by another world than the one that was seen."""
    real = findings.settle
    patch.setattr("autoscaler.reconcile.settle", lambda world, rules, now: real(change(world), rules, now))


def one_listing_is_enough(patch: pytest.MonkeyPatch) -> None:
    with_views(patch, lambda world: replace(world, missing_before=frozenset(i.sighting for i in world.intents)))


def a_failed_listing_is_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    def emptied(world: World) -> World:
        views = {
            name: replace(view, instances=()) if view.instances is None else view
            for name, view in world.providers.items()
        }
        missing = frozenset(intent.sighting for intent in world.intents)
        return replace(world, providers=views, missing_before=missing)

    with_views(patch, emptied)


def planned_rows_do_not_count(patch: pytest.MonkeyPatch) -> None:
    real = purchase._pool_refusal

    def refusal(draft: Any, pool: Any) -> BootRefusal | None:
        found = real(draft, pool)
        return None if found is not None and found.kind in (RefusalKind.POOL_FULL, RefusalKind.FLEET_FULL) else found

    patch.setattr(purchase, "_pool_refusal", refusal)


def demand_is_never_met(patch: pytest.MonkeyPatch) -> None:
    """Leave out what is on its way, so that a minimum is booted again and again."""
    patch.setattr("autoscaler.core.plan_builder.KEPT", frozenset())


def a_silent_node_is_deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    def stop(draft: PlanBuilder, intent: Intent) -> Stop | None:
        node = draft.world.node_of(intent)
        is_silent = node is not None and node.state in ("unreachable", "lost") and intent.node_id
        return Stop(intent.operation_id, "it is silent") if is_silent else None

    patch.setattr(deletion, "_verdict", stop)


def the_clock_is_always_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClockGuard, "check", lambda _self: True)


def nothing_is_adopted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(findings, "_adoptions", lambda *_world: iter(()))


# -- orders and answers -----------------------------------------------------------------------------------------------


def a_new_name_at_every_try(patch: pytest.MonkeyPatch) -> None:
    tries = iter(range(10**6))
    real = FakeProvider._create

    def create(self: FakeProvider, want: Any) -> object:
        return real(self, replace(want, name=f"{want.name}-{next(tries)}"))

    patch.setattr(FakeProvider, "_create", create)


def labels_are_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(naming, "operation_of", lambda _instance: None)


def an_unknown_outcome_is_a_refusal(patch: pytest.MonkeyPatch) -> None:
    real = InstanceCreator._refused

    def refused(self: InstanceCreator, intent: Intent, error: Any) -> object:
        error.applied = Applied.NO
        return real(self, replace(intent, attempts=1), error)

    patch.setattr(InstanceCreator, "_refused", refused)


def orders_are_never_late(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(CLOUDS, "north", replace(CLOUDS["north"], settle_seconds=0.0))


def one_look_before_an_order_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    real = plan._wait_to_create

    def wait(draft: PlanBuilder, intent: Intent) -> Wait | None:
        found = real(draft, intent)
        return None if found is not None and found.kind is WaitKind.SECOND_LISTING else found

    patch.setattr(plan, "_wait_to_create", wait)


# -- older orders -----------------------------------------------------------------------------------------------------


def a_node_is_known_by_its_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "node_of", lambda world, intent: world.nodes_by_instance.get(intent.name))


def tokens_are_bound_to_a_name_only(patch: pytest.MonkeyPatch) -> None:
    real = FakeGateway.join_token

    def join_token(self: Any, request: Any) -> object:
        return real(self, request.model_copy(update={"operation_id": None}))

    patch.setattr(FakeGateway, "join_token", join_token)


def deletes_go_by_the_name(patch: pytest.MonkeyPatch) -> None:
    real = RateLimitedProvider.delete

    def delete(self: RateLimitedProvider, ref: Ref) -> object:
        return real(self, Ref(name=ref.name) if ref.name is not None else ref)

    patch.setattr(RateLimitedProvider, "delete", delete)


# -- calls, and who makes them ----------------------------------------------------------------------------------------


def calls_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RateLimit, "wait", lambda _self, _priority: 0.0)


def nothing_is_kept_for_deletes(patch: pytest.MonkeyPatch) -> None:
    real = RateLimit.wait
    patch.setattr(RateLimit, "wait", lambda self, _priority: real(self, Priority.DELETE))


def nobody_locks(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def held(_path: Path) -> Any:
        yield

    patch.setattr("autoscaler.lock.held", held)


def one_blind_cloud_stops_all(patch: pytest.MonkeyPatch) -> None:
    real = Reconciler.look

    def look(self: Reconciler) -> object:
        report = real(self)
        is_blind = any(view.instances is None for view in report.world.providers.values())
        return replace(report, plan=replace(report.plan, actions=())) if is_blind else report

    patch.setattr(Reconciler, "look", look)


PATCHES: dict[str, tuple[set[int], Patch]] = {
    "a closed node is deleted without proof": ({5}, never_looks_again),
    "one listing is enough to miss something": ({6}, one_listing_is_enough),
    "a listing that failed is taken for an empty one": ({6}, a_failed_listing_is_an_empty_one),
    "only what is called counts against the maximum": ({3}, planned_rows_do_not_count),
    "what is on its way does not count": ({2, 3, 7}, demand_is_never_met),
    "a node that is silent for a moment is deleted": ({2, 5}, a_silent_node_is_deleted_at_once),
    "a jump of the clock is not noticed": ({8}, the_clock_is_always_right),
    "a lost journal is not built up again": ({2}, nothing_is_adopted),
    "every try gets a new name": ({1, 2}, a_new_name_at_every_try),
    "labels are not read back": ({2, 5, 6}, labels_are_left_out),
    "an unknown outcome is taken for a refusal": ({1, 2}, an_unknown_outcome_is_a_refusal),
    "an order is sent again before the first can have come through": ({1}, orders_are_never_late),
    "one look is enough before an order is sent again": ({1}, one_look_before_an_order_is_sent_again),
    "a node is known by its name only": ({10}, a_node_is_known_by_its_name),
    "a join token is bound to a name only": ({10}, tokens_are_bound_to_a_name_only),
    "a delete goes by the name": ({10}, deletes_go_by_the_name),
    "calls are not counted": ({9}, calls_are_not_counted),
    "no calls are kept for deletes": ({9}, nothing_is_kept_for_deletes),
    "two act at once": ({1}, nobody_locks),
    "one blind cloud stops all": ({4}, one_blind_cloud_stops_all),
}
RARE: dict[str, list[Happening]] = {
    "one look is enough before an order is sent again": [
        ("wait", 2),
        ("lose", ("north", "create")),
        ("ask", ("gpu", 1)),
        ("down", ("north", 9)),
        ("hide", 0),
        ("wait", 15),
    ],
    "a jump of the clock is not noticed": [("ask", ("gpu", 1)), ("wait", 1), ("skew", 2203), ("wait", 12)],
    "a node is known by its name only": [
        ("wait", 2),
        ("ask", ("gpu", 1)),
        ("wait", 1),
        ("namesake", 0),
        ("wait", 8),
    ],
    "the cap of a pool in euro an hour is ignored": [
        ("fault", ("east", "create", ErrorKind.CAPACITY, Applied.NO)),  # the dearer offer is bought
        ("ask", ("big", 25)),
        ("wait", 8),
    ],
    "the cap of a pool in euro a month is ignored": [
        *[("ask", ("big", 3)), ("wait", 20), ("leave", None), ("wait", 40)] * 3
    ],
    "a delete goes by the name": [
        ("wait", 2),
        ("ask", ("gpu", 1)),
        ("wait", 1),
        ("namesake", 0),
        ("wait", 8),
        ("leave", None),
        ("wait", 40),
    ],
    "one blind cloud stops all": [("wait", 12), ("dark", ("east", True)), ("break", 0), *[("wait", 40)] * 7],
}
"""Worlds that take more chance than a test has time for."""
SEEDS = {
    "a closed node is deleted without proof": 5,
}
"""With which the search is short, where it is not with 0."""
SLOW = {
    "an order is sent again before the first can have come through",
}
"""Seen to need many worlds, and left to the soak."""


def noticed(directory: Path, name: str, mutate: Mutation = lambda rules: rules) -> InvariantError | None:
    """Return what the first world that notices raises; ``None`` when none does."""
    if name in RARE:
        with pytest.raises(InvariantError) as caught:
            play(directory, RARE[name], mutate)
        return caught.value

    @seed(SEEDS.get(name, 0))
    @SEARCH
    @given(worlds)
    def search(happenings: list[Happening]) -> None:
        try:
            play(directory, happenings, mutate, patience=SHORT)
        except InvariantError as first:
            if not first.may_be_slow:
                raise FoundError(first) from first
            # A wrong one never comes to rest, however long it takes.
            try:
                play(directory, happenings, mutate)
            except InvariantError as error:
                raise FoundError(error) from error

    try:
        search()
    except FoundError as found:
        return found.error
    return None


def named(names: dict[str, Any]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.soak) if name in SLOW else name for name in names]


@pytest.mark.parametrize("name", named(POLICIES))
def test_a_wrong_rule_is_found(tmp_path: Path, name: str) -> None:
    invariants, mutate = POLICIES[name]
    found = noticed(tmp_path, name, mutate)
    assert found is not None, name
    assert found.number in invariants, found


@pytest.mark.parametrize("name", named(PATCHES))
def test_wrong_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    invariants, patch = PATCHES[name]
    patch(monkeypatch)
    found = noticed(tmp_path, name)
    assert found is not None, name
    assert found.number in invariants, found
