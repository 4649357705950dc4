"""Rows to domain values and back."""

import json
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

from pydantic import TypeAdapter

from gateway.core.model import JoinGrant, Node, Sandbox, Token
from gateway.core.placement import Wanted
from gateway.store.tables import JoinTokenRow, NodeRow, SandboxRow, TokenRow
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import BootStages, Pressure, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason, NodeState, SandboxState

_RUNTIMES = TypeAdapter(tuple[RuntimeReport, ...])
LARGEST_KEPT: Final = 4096
"""Longest text of a spec whose parsed value is kept."""

# Parsed values are frozen, and rows are read far more often than these columns change.
_shape = lru_cache(4096)(Shape.model_validate_json)
_runtimes = lru_cache(256)(_RUNTIMES.validate_json)
_kept_spec = lru_cache(4096)(SandboxSpec.model_validate_json)


def _spec(text: str) -> SandboxSpec:
    return _kept_spec(text) if len(text) <= LARGEST_KEPT else SandboxSpec.model_validate_json(text)


_SANDBOX_PLAIN = frozenset(field.name for field in fields(Sandbox)) - {"spec", "state", "reason", "error"}
_NODE_PLAIN = frozenset(field.name for field in fields(Node)) - {"state", "total", "runtimes", "pressure", "stages"}


def sandbox_of(row: SandboxRow) -> Sandbox:
    """The domain value of a row."""
    return Sandbox(
        spec=_spec(row.spec),
        state=SandboxState(row.state),
        reason=None if row.reason is None else DeathReason(row.reason),
        error=None if row.error is None else ErrorCode(row.error),
        **{name: getattr(row, name) for name in _SANDBOX_PLAIN},
    )


def sandbox_columns(sandbox: Sandbox) -> dict[str, Any]:
    """The columns of a sandbox, ``id`` included."""
    columns: dict[str, Any] = {name: getattr(sandbox, name) for name in _SANDBOX_PLAIN}
    held = sandbox.held
    return columns | {
        "id": sandbox.id,
        "spec": sandbox.spec.model_dump_json(),
        "want": Wanted.of(sandbox).key,
        "state": sandbox.state.value,
        "reason": sandbox.reason and sandbox.reason.value,
        "error": sandbox.error and sandbox.error.value,
        "held_cpus": held.cpus,
        "held_memory_mb": held.memory_mb,
        "held_disk_mb": held.disk_mb,
        "held_gpus": held.gpus,
        "held_slots": held.slots,
    }


def node_of(row: NodeRow) -> Node:
    """The domain value of a row."""
    return Node(
        state=NodeState(row.state),
        total=_shape(row.total),
        runtimes=_runtimes(row.runtimes),
        pressure=Pressure.model_validate_json(row.pressure),
        stages=None if row.stages is None else BootStages.model_validate_json(row.stages),
        **{name: getattr(row, name) for name in _NODE_PLAIN},
    )


def node_columns(node: Node) -> dict[str, Any]:
    """The columns of a node, ``id`` included."""
    columns: dict[str, Any] = {name: getattr(node, name) for name in _NODE_PLAIN}
    return columns | {
        "state": node.state.value,
        "total": node.total.model_dump_json(),
        "runtimes": json.dumps([report.model_dump(mode="json") for report in node.runtimes]),
        "pressure": node.pressure.model_dump_json(),
        "stages": node.stages and node.stages.model_dump_json(),
    }


def token_of(row: TokenRow) -> Token:
    """The domain value of a row, without its hash."""
    return Token(**{field.name: getattr(row, field.name) for field in fields(Token)})


def join_grant_of(row: JoinTokenRow) -> JoinGrant:
    """The domain value of a row, without its hash."""
    return JoinGrant(**{field.name: getattr(row, field.name) for field in fields(JoinGrant)})
