"""Reading and writing nodes and join tokens.  Plain functions over a session."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import delete, func, insert, select, update
from sqlmodel import Session, col

from gateway.core.model import JoinGrant, Node, NodeLoad
from gateway.core.placement import NodeRoom
from gateway.store import sandboxes
from gateway.store.db import StaleError, affected
from gateway.store.mapping import join_grant_of, node_columns, node_of
from gateway.store.tables import JoinTokenRow, NodeRow
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState


def get(session: Session, node_id: str) -> Node | None:
    """The node of this id, gone ones included."""
    row = session.get(NodeRow, node_id)
    return None if row is None else node_of(row)


def of_instance(session: Session, instance: str) -> Node | None:
    """The node of this instance that is not gone."""
    statement = select(NodeRow).where(col(NodeRow.instance) == instance, col(NodeRow.state) != NodeState.GONE.value)
    row = session.scalars(statement).first()
    return None if row is None else node_of(row)


def present(session: Session) -> list[Node]:
    """All nodes that are not gone, oldest first."""
    statement = (
        select(NodeRow)
        .where(col(NodeRow.state) != NodeState.GONE.value)
        .order_by(col(NodeRow.registered_at), col(NodeRow.id))
    )
    return [node_of(row) for row in session.scalars(statement)]


def rooms(session: Session) -> list[NodeRoom]:
    """All nodes that are not gone, with what the rows of their sandboxes take."""
    loads = sandboxes.loads(session)
    return [NodeRoom(node, loads[node.id].reserved if node.id in loads else Shape()) for node in present(session)]


def with_load(session: Session, nodes: list[Node]) -> list[NodeLoad]:
    """The same nodes, each with what its sandboxes take and since when there has been none."""
    loads = sandboxes.loads(session)
    answer = []
    for node in nodes:
        load = loads.get(node.id)
        if load is None:
            answer.append(NodeLoad(node, Shape(), 0, node.registered_at))
        else:
            # The tombstone of the last sandbox to leave says when that was.
            idle_since = None if load.count else max(node.registered_at, load.last_change)
            answer.append(NodeLoad(node, load.reserved, load.count, idle_since))
    return answer


def add(session: Session, node: Node) -> Node:
    """Writes a new node."""
    session.execute(insert(NodeRow).values(**node_columns(node)))
    return node


def save(session: Session, before: Node, after: Node) -> Node:
    """Writes ``after`` over ``before``; the answer is ``after`` with its new version.

    Raises:
        StaleError: the row is no longer ``before``.
    """
    written = replace(after, version=before.version + 1)
    statement = (
        update(NodeRow)
        .where(col(NodeRow.id) == before.id, col(NodeRow.version) == before.version)
        .values(**node_columns(written))
        .execution_options(synchronize_session=False)
    )
    if affected(session.execute(statement)) != 1:
        raise StaleError(f"node {before.id} is no longer at version {before.version}")
    return written


def purge_gone(session: Session, before: datetime) -> int:
    """Forgets the nodes that are gone and were last heard of before that time; how many."""
    last = func.coalesce(NodeRow.heartbeat_at, NodeRow.registered_at)
    statement = (
        delete(NodeRow)
        .where(col(NodeRow.state) == NodeState.GONE.value, last < before)
        .execution_options(synchronize_session=False)
    )
    return affected(session.execute(statement))


def add_grant(session: Session, grant: JoinGrant, sha256: str, created_at: datetime) -> None:
    """Writes a new join token."""
    session.execute(
        insert(JoinTokenRow).values(
            id=grant.id,
            sha256=sha256,
            instance=grant.instance,
            pool=grant.pool,
            created_at=created_at,
            expires_at=grant.expires_at,
            operation_id=grant.operation_id,
            role=grant.role,
        )
    )


def grant_of(session: Session, sha256: str) -> JoinGrant | None:
    """The join token with this hash."""
    row = session.scalars(select(JoinTokenRow).where(col(JoinTokenRow.sha256) == sha256)).first()
    return None if row is None else join_grant_of(row)


def newer_operation(session: Session, grant: JoinGrant) -> bool:
    """Whether a join token was made later for another operation of the same instance."""
    other = col(JoinTokenRow.operation_id)
    statement = select(func.count()).where(
        col(JoinTokenRow.instance) == grant.instance,
        col(JoinTokenRow.created_at) > grant.created_at,
        other.is_not(None) if grant.operation_id is None else other != grant.operation_id,
    )
    return session.scalar(statement.select_from(JoinTokenRow)) != 0


def use_grant(session: Session, grant: JoinGrant, node_id: str, now: datetime) -> None:
    """Marks a join token as used by a node.

    Raises:
        StaleError: somebody else used it meanwhile.
    """
    before = col(JoinTokenRow.used_at)
    unused = before.is_(None) if grant.used_at is None else before == grant.used_at
    statement = (
        update(JoinTokenRow)
        .where(col(JoinTokenRow.id) == grant.id, unused)
        .values(used_at=now, node_id=node_id)
        .execution_options(synchronize_session=False)
    )
    if affected(session.execute(statement)) != 1:
        raise StaleError(f"join token {grant.id} was used meanwhile")


def purge_grants(session: Session, before: datetime) -> int:
    """Forgets the join tokens that expired before that time; how many."""
    return affected(session.execute(delete(JoinTokenRow).where(col(JoinTokenRow.expires_at) < before)))
