"""Compare a node's complete inventory with the rows of its sandboxes, and decide what follows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.wire.nodes import InventoryItem
from gateway.wire.states import ENDED, SandboxState

S = SandboxState

EXPECTED: Final = frozenset({S.RUNNING, S.PAUSED, S.CHECKPOINTED, S.RESTORING})
"""States in which the node must have the sandbox."""


@dataclass(frozen=True)
class RowUpdate:
    """The row becomes ``after``, if it still is ``before``."""

    before: Sandbox
    after: Sandbox


@dataclass(frozen=True)
class OrphanRemoval:
    """The node has something that no row owns: it removes this generation and older ones."""

    sandbox_id: str
    generation: int


Decision = RowUpdate | OrphanRemoval


def reconcile(
    rows: Iterable[Sandbox],
    inventory: Iterable[InventoryItem],
    seen: Mapping[str, int],
    node_id: str,
    now: datetime,
) -> list[Decision]:
    """Return the decisions that follow from one heartbeat.

    Args:
        rows: every row of this node that is not deleted.
        inventory: everything that the node has.
        seen: version of each row of this node when its previous heartbeat had been taken in. A node sends its
            heartbeats one after the other, so a row that has not changed since then is older than this inventory,
            and only for such a row does an absence or another state mean something.
        node_id: the node.
        now: UTC.
    """
    by_id = {row.id: row for row in rows}
    items = {item.sandbox_id: item for item in inventory}
    decisions: list[Decision] = []
    for item in items.values():
        decision = _for_item(by_id.get(item.sandbox_id), item, seen, now)
        if decision is not None:
            decisions.append(decision)
    decisions.extend(_for_missing(by_id.values(), items, seen, node_id, now))
    return decisions


def versions_after(rows: Iterable[Sandbox], decisions: Iterable[Decision]) -> dict[str, int]:
    """Return what `reconcile` needs as ``seen`` next time: the versions once ``decisions`` are applied."""
    versions = {row.id: row.version for row in rows}
    for decision in decisions:
        if isinstance(decision, RowUpdate):
            versions[decision.before.id] = decision.before.version + 1
    return versions


def _for_item(row: Sandbox | None, item: InventoryItem, seen: Mapping[str, int], now: datetime) -> Decision | None:
    remove = OrphanRemoval(item.sandbox_id, item.generation)
    if row is None or row.state is S.LOST or item.generation > row.generation:
        return remove
    if row.state is S.DELETING:
        return None  # its own controller sees to it
    if item.generation < row.generation:
        # A restart is on its way or was refused, and the node keeps the workspace for it.
        ended = item.state in ENDED and _may_run_on(row)
        return RowUpdate(row, transitions.old_run_ended(row, item, now)) if ended else None
    if item.operation_id != row.operation_id:
        return remove
    if row.state in ENDED:
        alive = item.state in transitions.UNSETTLED or item.state in EXPECTED
        return remove if alive and seen.get(row.id) == row.version else None
    after = _observed(row, item, seen, now)
    return None if after is None else RowUpdate(row, after)


def _observed(row: Sandbox, item: InventoryItem, seen: Mapping[str, int], now: datetime) -> Sandbox | None:
    """Return the row in the state that the engine reports, or ``None`` when the row stays as it is."""
    if row.state is S.CREATING or (row.state is S.RESTORING and item.state is not S.CHECKPOINTED):
        return transitions.settled(row, item, now)
    if item.state in ENDED:
        return transitions.ended(row, item, now)
    if seen.get(row.id) != row.version:
        return None
    match row.state, item.state:
        case S.RUNNING, S.PAUSED:
            return transitions.paused(row, now)
        case S.PAUSED, S.RUNNING:
            return transitions.resumed(row, now)
        case S.RESTORING, S.CHECKPOINTED:
            return transitions.checkpointed(row, now)  # nobody is at it any more; the next call asks again
        case _:
            return None


def _for_missing(
    rows: Iterable[Sandbox], items: Mapping[str, InventoryItem], seen: Mapping[str, int], node_id: str, now: datetime
) -> Iterator[RowUpdate]:
    for row in rows:
        item = items.get(row.id)
        present = item is not None and item.generation == row.generation
        if present or seen.get(row.id) != row.version:
            continue
        if row.state in EXPECTED:
            yield RowUpdate(row, transitions.lost(row, f"node {node_id} no longer has it", now))
        elif item is None and _may_run_on(row):
            yield RowUpdate(row, transitions.old_run_ended(row, None, now))


def _may_run_on(row: Sandbox) -> bool:
    """Return whether an earlier generation may run although the row failed; see `transitions.restart_refused`."""
    return row.state is S.FAILED and row.ended_at is None
