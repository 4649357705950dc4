"""What a node's inventory means for the rows, as a table."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest

from gateway.core import transitions
from gateway.core.inventory import Decision, OrphanRemoval, RowUpdate, reconcile, versions_after
from gateway.core.model import Sandbox
from gateway.wire.nodes import InventoryItem
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import ENDED, SANDBOX_TRANSITIONS, DeathReason, SandboxState

S = SandboxState
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = SandboxSpec(id="a", image="busybox")


def row(state: SandboxState, generation: int = 2, version: int = 7) -> Sandbox:
    accepted = transitions.accepted(SPEC, "hash", "op", NOW, generation)
    ended_at = NOW if state in ENDED else None
    return replace(accepted, state=state, node_id="n", version=version, started_at=NOW, ended_at=ended_at)


def item(state: SandboxState, generation: int = 2, operation_id: str = "op") -> InventoryItem:
    return InventoryItem(
        sandbox_id="a", generation=generation, operation_id=operation_id, spec_hash="hash", state=state,
        reason=DeathReason.OOM if state is S.FAILED else None, runtime="runsc", isolation="gvisor", shape=Shape(),
    )  # fmt: skip


def decide(rows: list[Sandbox], items: list[InventoryItem], *, old: bool = True) -> list[Decision]:
    seen = {each.id: each.version for each in rows} if old else {}
    return reconcile(rows, items, seen, "n", NOW)


def outcome(decisions: list[Decision]) -> str:
    assert len(decisions) <= 1
    if not decisions:
        return "-"
    (decision,) = decisions
    return decision.after.state.value if isinstance(decision, RowUpdate) else f"remove {decision.generation}"


@pytest.mark.parametrize(
    ("in_store", "on_node", "expected"),
    [
        (S.CREATING, S.CREATING, "-"),
        (S.CREATING, S.RUNNING, "running"),
        (S.CREATING, S.EXITED, "exited"),
        (S.CREATING, S.FAILED, "failed"),
        (S.CREATING, None, "-"),
        (S.RUNNING, S.RUNNING, "-"),
        (S.RUNNING, S.PAUSED, "paused"),
        (S.RUNNING, S.EXITED, "exited"),
        (S.RUNNING, S.FAILED, "failed"),
        (S.RUNNING, None, "lost"),
        (S.PAUSED, S.RUNNING, "running"),
        (S.PAUSED, S.PAUSED, "-"),
        (S.PAUSED, S.FAILED, "failed"),
        (S.PAUSED, None, "lost"),
        (S.EXITED, S.EXITED, "-"),
        (S.EXITED, S.RUNNING, "remove 2"),
        (S.EXITED, None, "-"),
        (S.FAILED, S.RUNNING, "remove 2"),
        (S.FAILED, None, "-"),
        (S.LOST, S.RUNNING, "remove 2"),
        (S.LOST, None, "-"),
        (S.DELETING, S.RUNNING, "-"),
        (S.DELETING, None, "-"),
    ],
)
def test_row_and_engine(in_store: SandboxState, on_node: SandboxState | None, expected: str) -> None:
    items = [] if on_node is None else [item(on_node)]
    assert outcome(decide([row(in_store)], items)) == expected


@pytest.mark.parametrize(
    ("in_store", "on_node", "expected"),
    [
        (S.RUNNING, None, "-"),
        (S.RUNNING, S.PAUSED, "-"),
        (S.PAUSED, S.RUNNING, "-"),
        (S.EXITED, S.RUNNING, "-"),
        (S.RUNNING, S.FAILED, "failed"),
        (S.CREATING, S.RUNNING, "running"),
    ],
)
def test_a_row_younger_than_the_inventory_is_not_judged_by_absence(
    in_store: SandboxState, on_node: SandboxState | None, expected: str
) -> None:
    items = [] if on_node is None else [item(on_node)]
    assert outcome(decide([row(in_store)], items, old=False)) == expected


def test_what_no_row_owns_is_removed() -> None:
    assert decide([], [item(S.RUNNING, 3)]) == [OrphanRemoval("a", 3)]
    assert decide([row(S.RUNNING)], [item(S.RUNNING, 3)]) == [OrphanRemoval("a", 3), *decide([row(S.RUNNING)], [])]
    assert outcome(decide([row(S.CREATING)], [item(S.RUNNING, operation_id="other")])) == "remove 2"


def test_an_older_generation_stays_for_the_restart_that_is_on_its_way() -> None:
    assert decide([row(S.CREATING)], [item(S.RUNNING, 1)]) == []
    assert outcome(decide([row(S.RUNNING)], [item(S.RUNNING, 1)])) == "lost"


@pytest.mark.parametrize(
    ("on_node", "old", "ended"),
    [
        (S.RUNNING, True, False),
        (S.EXITED, False, True),
        (S.FAILED, True, True),
        (None, False, False),
        (None, True, True),
    ],
)
def test_the_end_of_the_run_before_a_refused_restart_is_recorded(
    on_node: SandboxState | None, old: bool, ended: bool
) -> None:
    refused = transitions.restart_refused(row(S.CREATING), "full", NOW)
    decisions = decide([refused], [] if on_node is None else [item(on_node, 1)], old=old)
    assert decisions == ([RowUpdate(refused, replace(refused, ended_at=NOW))] if ended else [])


@pytest.mark.parametrize(
    ("state", "engine", "generation", "old"),
    list(product(S, S, (1, 2, 3), (True, False))),
)
def test_every_decision_is_in_the_table(state: SandboxState, engine: SandboxState, generation: int, old: bool) -> None:
    if state in {S.DELETED, S.PENDING}:
        return  # such rows belong to no node
    for decision in decide([row(state)], [item(engine, generation)], old=old):
        if isinstance(decision, RowUpdate):
            assert decision.after.state in SANDBOX_TRANSITIONS[decision.before.state]


def test_versions_are_those_after_the_decisions() -> None:
    rows = [row(S.RUNNING)]
    assert versions_after(rows, []) == {"a": 7}
    assert versions_after(rows, decide(rows, [item(S.FAILED)])) == {"a": 8}
