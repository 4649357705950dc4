"""Read and write nodes and join tokens: plain functions over a session."""

import json
from dataclasses import fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import delete, func, insert, select, update
from sqlmodel import Session, col

from gateway.core.model import JoinGrant, Node, NodeLoad
from gateway.core.placement import NodeRoom
from gateway.store import sandboxes
from gateway.store.db import StaleError, affected
from gateway.store.tables import JoinTokenRow, NodeRow
from gateway.wire.nodes import BootStages, Pressure, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState

_PLAIN: Final = frozenset(field.name for field in fields(Node)) - {"state", "total", "runtimes", "pressure", "stages"}

# -- nodes ------------------------------------------------------------------------------------------------------------


def get(session: Session, node_id: str) -> Node | None:
    """Return the node of this id, gone ones included."""
    row = session.get(NodeRow, node_id)
    return None if row is None else _node_of(row)


def of_instance(session: Session, instance: str) -> Node | None:
    """Return the node of this instance that is not gone."""
    statement = select(NodeRow).where(col(NodeRow.instance) == instance, col(NodeRow.state) != NodeState.GONE.value)
    row = session.scalars(statement).first()
    return None if row is None else _node_of(row)


def present(session: Session) -> list[Node]:
    """Return all nodes that are not gone, oldest first."""
    statement = (
        select(NodeRow)
        .where(col(NodeRow.state) != NodeState.GONE.value)
        .order_by(col(NodeRow.registered_at), col(NodeRow.id))
    )
    return [_node_of(row) for row in session.scalars(statement)]


def rooms(session: Session) -> list[NodeRoom]:
    """Return all nodes that are not gone, with what the rows of their sandboxes reserve."""
    reserved = sandboxes.reservations(session)
    return [NodeRoom(node, reserved[node.id].shape if node.id in reserved else Shape()) for node in present(session)]


def with_load(session: Session, nodes: list[Node]) -> list[NodeLoad]:
    """Return the same nodes, each with what its sandboxes take and since when there has been none."""
    reserved = sandboxes.reservations(session)
    loads = []
    for node in nodes:
        held = reserved.get(node.id)
        if held is None:
            loads.append(NodeLoad(node, Shape(), 0, node.registered_at))
        else:
            # The tombstone of the last sandbox to leave says when that was.
            idle_since = None if held.count else max(node.registered_at, held.last_change)
            loads.append(NodeLoad(node, held.shape, held.count, idle_since))
    return loads


def add(session: Session, node: Node) -> Node:
    """Write a new node."""
    session.execute(insert(NodeRow).values(**_columns(node)))
    return node


def save(session: Session, before: Node, after: Node) -> Node:
    """Write ``after`` over ``before``; return ``after`` with its new version.

    Raises:
        StaleError: the row is no longer ``before``.
    """
    written = replace(after, version=before.version + 1)
    statement = (
        update(NodeRow)
        .where(col(NodeRow.id) == before.id, col(NodeRow.version) == before.version)
        .values(**_columns(written))
        .execution_options(synchronize_session=False)
    )
    if affected(session.execute(statement)) != 1:
        raise StaleError(f"node {before.id} is no longer at version {before.version}")
    return written


def purge_gone(session: Session, before: datetime) -> int:
    """Delete the rows of gone nodes whose last heartbeat was before that time; return how many."""
    last = func.coalesce(NodeRow.heartbeat_at, NodeRow.registered_at)
    statement = (
        delete(NodeRow)
        .where(col(NodeRow.state) == NodeState.GONE.value, last < before)
        .execution_options(synchronize_session=False)
    )
    return affected(session.execute(statement))


# -- join tokens ------------------------------------------------------------------------------------------------------


def add_grant(session: Session, grant: JoinGrant, sha256: str, created_at: datetime) -> None:
    """Write a new join token."""
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
    """Return the join token with this hash."""
    row = session.scalars(select(JoinTokenRow).where(col(JoinTokenRow.sha256) == sha256)).first()
    return None if row is None else JoinGrant(**{field.name: getattr(row, field.name) for field in fields(JoinGrant)})


def newer_operation(session: Session, grant: JoinGrant) -> bool:
    """Return whether a join token was made later for another operation of the same instance."""
    other = col(JoinTokenRow.operation_id)
    statement = select(func.count()).where(
        col(JoinTokenRow.instance) == grant.instance,
        col(JoinTokenRow.created_at) > grant.created_at,
        other.is_not(None) if grant.operation_id is None else other != grant.operation_id,
    )
    return session.scalar(statement.select_from(JoinTokenRow)) != 0


def use_grant(session: Session, grant: JoinGrant, node_id: str, now: datetime) -> None:
    """Mark a join token as used by a node.

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
    """Delete the join tokens that expired before that time; return how many."""
    return affected(session.execute(delete(JoinTokenRow).where(col(JoinTokenRow.expires_at) < before)))


# -- rows and values --------------------------------------------------------------------------------------------------

# Parsed values are frozen, and rows are read far more often than these columns change.
_shape = lru_cache(4096)(Shape.model_validate_json)
_runtimes = lru_cache(256)(TypeAdapter(tuple[RuntimeReport, ...]).validate_json)


def _node_of(row: NodeRow) -> Node:
    return Node(
        state=NodeState(row.state),
        total=_shape(row.total),
        runtimes=_runtimes(row.runtimes),
        pressure=Pressure.model_validate_json(row.pressure),
        stages=None if row.stages is None else BootStages.model_validate_json(row.stages),
        **{name: getattr(row, name) for name in _PLAIN},
    )


def _columns(node: Node) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(node, name) for name in _PLAIN}
    return columns | {
        "state": node.state.value,
        "total": node.total.model_dump_json(),
        "runtimes": json.dumps([report.model_dump(mode="json") for report in node.runtimes]),
        "pressure": node.pressure.model_dump_json(),
        "stages": node.stages and node.stages.model_dump_json(),
    }
