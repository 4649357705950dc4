"""What becomes of a sandbox: states, reasons, what it holds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.core import transitions
from gateway.core.model import NOTHING, Sandbox
from gateway.core.placement import Placed
from gateway.core.transitions import OrderOutcome
from gateway.wire.errors import CODE_RULES, ErrorCode
from gateway.wire.nodes import InventoryItem
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason, IllegalTransitionError, SandboxState

S = SandboxState
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
SPEC = SandboxSpec(id="a", image="busybox", cpus=2, disk_mb=100, ttl_seconds=60, gpus="all")


def accepted() -> Sandbox:
    return transitions.accepted(SPEC, "hash", "op-1", NOW)


def creating() -> Sandbox:
    return transitions.placed(accepted(), Placed("n", "docker", 4), NOW)


def running() -> Sandbox:
    return transitions.running(creating(), item(S.RUNNING), NOW)


def item(state: SandboxState, reason: DeathReason | None = None) -> InventoryItem:
    return InventoryItem(
        sandbox_id="a", generation=1, operation_id="op-1", spec_hash="hash", state=state, reason=reason,
        runtime="docker", isolation="gvisor", shape=Shape(), exit_code=1,
    )  # fmt: skip


def test_the_ttl_counts_from_acceptance() -> None:
    assert accepted().expires_at == NOW + timedelta(seconds=60)


def test_what_is_held_follows_the_state() -> None:
    full = Shape(cpus=2, memory_mb=1024, disk_mb=100, gpus=4, slots=1)
    disk = Shape(disk_mb=100)
    assert accepted().held == NOTHING
    assert creating().held == full
    assert running().held == full
    assert transitions.paused(running(), NOW).held == full
    assert transitions.deleting(running(), DeathReason.TTL, NOW).held == full
    dead = transitions.ended(running(), item(S.EXITED), NOW)
    assert dead.held == disk
    assert transitions.deleting(dead, DeathReason.DELETED, NOW).held == disk
    assert transitions.failed(creating(), ErrorCode.IMAGE_ERROR, "x", NOW).held == NOTHING
    assert transitions.lost(running(), "gone", NOW).held == NOTHING
    assert transitions.requeued(creating(), "op-2", NOW).held == NOTHING


def test_requeueing_fences_the_old_order() -> None:
    again = transitions.requeued(creating(), "op-2", LATER)
    assert (again.state, again.generation, again.operation_id, again.node_id) == (S.PENDING, 2, "op-2", None)


@pytest.mark.parametrize(
    ("own", "before", "ttl", "after"),
    [
        (None, None, None, None),
        (None, None, 60, 60),
        (None, 30, 60, 30),
        (None, 90, 60, 60),
        (90, 90, 60, 90),  # the policy refuses what is more than its own longest
    ],
)
def test_a_restart_without_a_ttl_of_its_own_is_bound_by_that_of_the_policy(
    own: int | None, before: int | None, ttl: int | None, after: int | None
) -> None:
    def at(seconds: int | None) -> datetime | None:
        return None if seconds is None else LATER + timedelta(seconds=seconds)

    ended = replace(
        transitions.ended(running(), item(S.EXITED), NOW),
        spec=SPEC.model_copy(update={"ttl_seconds": own}),
        expires_at=at(before),
    )
    assert transitions.restarted(ended, "op-2", LATER, ttl).expires_at == at(after)


def test_a_restart_begins_with_a_clean_slate_and_keeps_the_deadline() -> None:
    dead = transitions.ended(running(), item(S.FAILED, DeathReason.OOM), NOW)
    again = transitions.restarted(dead, "op-2", LATER)
    assert (again.state, again.generation, again.reason, again.exit_code) == (S.CREATING, 2, None, None)
    assert (again.node_id, again.expires_at) == ("n", dead.expires_at)


@pytest.mark.parametrize(
    ("state", "ran", "expected"),
    [
        (S.CREATING, False, S.PENDING),
        (S.CREATING, True, S.LOST),
        (S.RUNNING, True, S.LOST),
        (S.PAUSED, True, S.LOST),
        (S.DELETING, True, S.DELETED),
        (S.EXITED, True, S.EXITED),
        (S.FAILED, True, S.FAILED),
        (S.LOST, True, None),
    ],
)
def test_when_the_node_is_given_up(state: SandboxState, ran: bool, expected: SandboxState | None) -> None:
    sandbox = replace(creating(), state=state, started_at=NOW if ran else None)
    after = transitions.without_node(sandbox, "op-2", "node n was given up", LATER)
    assert (after and after.state) == expected
    if after is not None and expected is not S.LOST:
        assert after.held == NOTHING


@pytest.mark.parametrize("state", list(S))
def test_delete_is_legal_in_every_state(state: SandboxState) -> None:
    on_node = replace(running(), state=state, reason=None)
    after = transitions.unless_leaving(on_node, DeathReason.TTL, LATER)
    if state in {S.DELETING, S.DELETED}:
        assert after is None
    else:
        assert after is not None
        assert after.state in {S.DELETING, S.DELETED}
        assert after.reason is DeathReason.TTL


def test_the_first_cause_of_death_stays() -> None:
    dead = transitions.ended(running(), item(S.FAILED, DeathReason.OOM), NOW)
    assert transitions.deleting(dead, DeathReason.DELETED, LATER).reason is DeathReason.OOM


def test_a_start_failure_in_an_inventory_becomes_the_error_of_the_create() -> None:
    dead = transitions.ended(creating(), item(S.FAILED, DeathReason.IMAGE_ERROR), NOW)
    assert dead.error is ErrorCode.IMAGE_ERROR
    assert transitions.ended(creating(), item(S.FAILED, DeathReason.OOM), NOW).error is None


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_of_an_order_has_an_outcome(code: ErrorCode) -> None:
    outcome = transitions.outcome_of(code)
    if outcome is OrderOutcome.FINAL:
        assert not CODE_RULES[code].retryable, "what may succeed later must not kill a sandbox"
    assert transitions.outcome_of(ErrorCode.NODE_UNREACHABLE) is OrderOutcome.UNKNOWN
    assert transitions.outcome_of(ErrorCode.TIMEOUT) is OrderOutcome.UNKNOWN
    assert transitions.outcome_of(ErrorCode.NODE_REFUSED) is OrderOutcome.REFUSED


def test_a_change_outside_the_table_is_a_bug() -> None:
    with pytest.raises(IllegalTransitionError):
        transitions.paused(accepted(), NOW)
