"""Reading the sandboxes that wait for room: kinds of needs, and ids in the order of their turn."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, select
from sqlmodel import Session, col

from gateway.core.model import Sandbox
from gateway.core.placement import Wanted
from gateway.store.mapping import sandbox_of
from gateway.store.tables import SandboxRow
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import SandboxState

CHUNK: Final = 500


@dataclass(frozen=True)
class Waiting:
    """A sandbox that waits."""

    sandbox_id: str
    shape: Shape
    runtime: RuntimeName | None
    isolation: Isolation
    since: datetime


_PENDING: Final = col(SandboxRow.state) == SandboxState.PENDING.value


def kinds(session: Session) -> dict[str, Sandbox]:
    """By need: one of those that wait with it; however many wait, only these rows are read."""
    statement = select(func.min(SandboxRow.id)).where(_PENDING).group_by(col(SandboxRow.want))
    ids = list(session.scalars(statement))
    found: dict[str, Sandbox] = {}
    for start in range(0, len(ids), CHUNK):
        rows = session.scalars(select(SandboxRow).where(col(SandboxRow.id).in_(ids[start : start + CHUNK])))
        found |= {row.want: sandbox_of(row) for row in rows}
    return found


def queue(session: Session) -> list[Waiting]:
    """All that wait, oldest first; what they need is read once for all that need the same."""
    needs = {want: Wanted.of(example) for want, example in kinds(session).items()}
    statement = select(col(SandboxRow.id), col(SandboxRow.want), col(SandboxRow.created_at)).where(_PENDING)
    # One that began to wait between the two queries is told next time.
    rows = session.execute(statement.order_by(col(SandboxRow.created_at), col(SandboxRow.id)))
    return [
        Waiting(sandbox_id, need.shape, need.runtime, need.isolation, since)
        for sandbox_id, want, since in rows
        if (need := needs.get(want)) is not None
    ]


def turns(session: Session, want: str, page: int) -> Iterator[tuple[datetime, str]]:
    """When each of those with this need began to wait, and its id, oldest first; read ``page`` at a time."""
    began, name = col(SandboxRow.created_at), col(SandboxRow.id)
    statement = select(began, name).where(_PENDING, col(SandboxRow.want) == want).order_by(began, name).limit(page)
    after: tuple[datetime, str] | None = None
    while True:
        later = statement
        if after is not None:
            later = statement.where((began > after[0]) | ((began == after[0]) & (name > after[1])))
        found = [(moment, sandbox_id) for moment, sandbox_id in session.execute(later)]
        yield from found
        if len(found) < page:
            return
        after = found[-1]
