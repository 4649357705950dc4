"""The mutable place of one sandbox in the registry, and the refusals that follow from where it stands."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, SandboxState
from node_agent.errors import ApiError
from node_agent.runtime.base import Death, Order
from node_agent.sandboxes.model import Sandbox


@dataclass(eq=False)
class Entry:
    """The mutable place of one incarnation.  Guarded by the registry's lock."""

    sandbox: Sandbox
    created: "Future[Sandbox]" = field(default_factory=Future)
    deleted: "Future[None] | None" = None
    ended: threading.Event = field(default_factory=threading.Event)
    failure: ApiError | None = None
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held around engine calls on this id; a new generation takes it over."""

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self.sandbox.order.sandbox_id

    @property
    def generation(self) -> int:
        """The incarnation."""
        return self.sandbox.order.generation


def not_running(sandbox: Sandbox) -> ApiError:
    """The refusal of work that needs running processes."""
    death = sandbox.death
    detail = f": {death.detail}" if death and death.detail else ""
    hint = "; resume it first" if sandbox.state is SandboxState.PAUSED else ""
    return ApiError(
        ErrorCode.SANDBOX_NOT_RUNNING,
        f"sandbox {sandbox.order.sandbox_id} is {sandbox.state}{detail}{hint}",
        sandbox_id=sandbox.order.sandbox_id,
        state=sandbox.state,
        reason=death.reason if death else None,
    )


def attach(present: Entry, order: Order) -> "Future[Sandbox]":
    """What became, or will become, of an order that is already here.

    Raises:
        ApiError: ``CONFLICT`` where it is another order.
    """
    if present.generation > order.generation:
        raise newer(present, order.generation)
    if present.sandbox.order.spec_hash != order.spec_hash:
        raise ApiError(
            ErrorCode.CONFLICT,
            f"sandbox {order.sandbox_id} is here in generation {order.generation} with another spec",
            sandbox_id=order.sandbox_id,
        )
    if present.deleted is not None:
        raise overtaken(present)
    if present.failure is None and present.created.done():
        now: Future[Sandbox] = Future()
        now.set_result(present.sandbox)
        return now
    return present.created


def newer(entry: Entry, generation: int) -> ApiError:
    """The refusal of an order for an older generation."""
    return ApiError(
        ErrorCode.CONFLICT,
        f"sandbox {entry.id} is here in generation {entry.generation}; generation {generation} is outdated",
        sandbox_id=entry.id,
        state=entry.sandbox.state,
    )


def overtaken(entry: Entry) -> ApiError:
    """The answer to a create that a delete or a newer generation broke."""
    return ApiError(
        ErrorCode.CONFLICT,
        f"sandbox {entry.id}, generation {entry.generation}, was deleted or replaced while it was being created",
        sandbox_id=entry.id,
    )


def was_deleted(entry: Entry) -> bool:
    """Whether its delete has come to its end, and well."""
    outcome = entry.deleted
    return outcome is not None and outcome.done() and outcome.exception() is None


def deleted(detail: str) -> Death:
    """The death of a sandbox that somebody removed."""
    return Death(DeathReason.DELETED, None, detail, datetime.now(UTC))


def reason_of(code: ErrorCode) -> DeathReason:
    """Why a sandbox never ran, where the engine gave a code only."""
    reasons = {ErrorCode.IMAGE_ERROR: DeathReason.IMAGE_ERROR, ErrorCode.DISK_FULL: DeathReason.DISK_FULL}
    return reasons.get(code, DeathReason.START_ERROR)
