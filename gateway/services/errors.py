"""The sentences with which calls about a sandbox are refused."""

from typing import Final

from gateway.core.model import Sandbox
from gateway.errors import ApiError, ErrorDetails
from gateway.wire.errors import ErrorCode
from gateway.wire.states import SandboxState

RETRY_AFTER: Final = 2.0
"""Seconds after which a caller of an unfinished create may look again."""


def _facts(sandbox: Sandbox) -> ErrorDetails:
    facts = ErrorDetails(sandbox_id=sandbox.id, state=sandbox.state.value)
    if sandbox.reason is not None:
        facts["reason"] = sandbox.reason.value
    return facts


def not_found(sandbox_id: str, tombstone: Sandbox | None) -> ApiError:
    """There is no such sandbox, or there is none any more."""
    if tombstone is None:
        return ApiError(ErrorCode.SANDBOX_NOT_FOUND, f"there is no sandbox {sandbox_id}", sandbox_id=sandbox_id)
    message = f"sandbox {sandbox_id} was deleted ({tombstone.reason}) at {tombstone.updated_at.isoformat()}"
    return ApiError(ErrorCode.SANDBOX_NOT_FOUND, message, **_facts(tombstone))


def not_running(sandbox: Sandbox) -> ApiError:
    """The call needs a sandbox that runs."""
    why = (
        f" ({sandbox.reason}: {sandbox.detail})" if sandbox.detail else f" ({sandbox.reason})" if sandbox.reason else ""
    )
    coming = sandbox.state in {SandboxState.PENDING, SandboxState.CREATING, SandboxState.RESTORING}
    message = f"sandbox {sandbox.id} is {sandbox.state}{why}"
    if coming:
        return ApiError(
            ErrorCode.SANDBOX_NOT_RUNNING,
            f"{message}; try again when it runs",
            retryable=True,
            retry_after=RETRY_AFTER,
            **_facts(sandbox),
        )
    return ApiError(ErrorCode.SANDBOX_NOT_RUNNING, message, **_facts(sandbox))


def no_room(sandbox: Sandbox, reasons: list[str], retry_after: float = RETRY_AFTER) -> ApiError:
    """It waits for room, and goes on waiting while somebody asks."""
    message = f"no node has room for sandbox {sandbox.id} now; it waits, ask again with the same id and spec"
    facts = _facts(sandbox)
    facts["reasons"], facts["pending_resources"] = reasons, sandbox.spec.shape
    return ApiError(ErrorCode.NO_ROOM, message, retry_after=retry_after, **facts)


def in_progress(sandbox: Sandbox) -> ApiError:
    """Its node is still at it."""
    return ApiError(
        ErrorCode.CREATE_IN_PROGRESS,
        f"sandbox {sandbox.id} is still being created on node {sandbox.node_id};"
        " it goes on, ask again with the same id and spec",
        retry_after=RETRY_AFTER,
        **_facts(sandbox),
    )


def still_deleting(sandbox: Sandbox) -> ApiError:
    """An earlier sandbox of this id is not gone yet."""
    return ApiError(
        ErrorCode.CREATE_IN_PROGRESS,
        f"an earlier sandbox {sandbox.id} is still being deleted on node {sandbox.node_id}; ask again"
        " later, or use another id",
        retry_after=RETRY_AFTER,
        **_facts(sandbox),
    )


def deleted_meanwhile(sandbox: Sandbox) -> ApiError:
    """It was deleted while a caller waited for it to run."""
    return ApiError(
        ErrorCode.SANDBOX_NOT_RUNNING,
        f"sandbox {sandbox.id} was deleted ({sandbox.reason}) while it was being brought up",
        **_facts(sandbox),
    )


def failed(sandbox: Sandbox) -> ApiError:
    """It could not be brought up, and why."""
    code = sandbox.error or ErrorCode.START_ERROR
    return ApiError(code, sandbox.detail or f"sandbox {sandbox.id} could not be brought up", **_facts(sandbox))


def other_generation(sandbox: Sandbox, generation: int) -> ApiError:
    """The session belongs to an incarnation that is no more."""
    return ApiError(
        ErrorCode.EXEC_LOST,
        f"the session belongs to generation {generation} of sandbox {sandbox.id}, which is now at {sandbox.generation};"
        " how it ended is not known",
        **_facts(sandbox),
    )


def node_away(sandbox: Sandbox) -> ApiError:
    """Its node does not answer, or is no more."""
    return ApiError(
        ErrorCode.NODE_UNREACHABLE,
        f"node {sandbox.node_id} of sandbox {sandbox.id} cannot be reached; try again",
        retry_after=RETRY_AFTER,
        **_facts(sandbox),
    )


def no_room_to_restart(sandbox: Sandbox, short: list[str]) -> ApiError:
    """Others took the room that it had on its node, and its workspace is nowhere else."""
    message = f"node {sandbox.node_id} has too little free to restart sandbox {sandbox.id}: {', '.join(short)}"
    return ApiError(ErrorCode.NO_ROOM, f"{message}; try again later", retry_after=RETRY_AFTER, **_facts(sandbox))


def workspace_gone(sandbox: Sandbox) -> ApiError:
    """There is nothing to restart from."""
    return ApiError(
        ErrorCode.SANDBOX_NOT_RUNNING,
        f"sandbox {sandbox.id} cannot be restarted: its node, and with it its workspace, is gone; delete it",
        **_facts(sandbox),
    )
