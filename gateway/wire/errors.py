"""The one shape of an error on the wire, and the closed list of its codes."""

from enum import StrEnum
from typing import Final, NamedTuple

from gateway.wire.base import WireAnswer
from gateway.wire.resources import Shape


class ErrorCode(StrEnum):
    """What went wrong.  Clients decide by code; the sentence beside it is for people."""

    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    POLICY_DENIED = "policy_denied"
    QUOTA_EXCEEDED = "quota_exceeded"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    INVALID_REQUEST = "invalid_request"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED = "unsupported"
    SANDBOX_NOT_FOUND = "sandbox_not_found"
    SANDBOX_NOT_RUNNING = "sandbox_not_running"
    SPEC_CONFLICT = "spec_conflict"
    CONFLICT = "conflict"
    NEVER_FITS = "never_fits"
    CAPACITY = "capacity"
    NO_ROOM = "no_room"
    CREATE_IN_PROGRESS = "create_in_progress"
    IMAGE_ERROR = "image_error"
    START_ERROR = "start_error"
    EXEC_NOT_FOUND = "exec_not_found"
    EXEC_LOST = "exec_lost"
    EXEC_LIMIT = "exec_limit"
    STDIN_CLOSED = "stdin_closed"
    FILE_NOT_FOUND = "file_not_found"
    IS_DIRECTORY = "is_directory"
    NOT_A_DIRECTORY = "not_a_directory"
    FILE_PERMISSION = "file_permission"
    DISK_FULL = "disk_full"
    TRANSFER_INTERRUPTED = "transfer_interrupted"
    NODE_NOT_FOUND = "node_not_found"
    NODE_UNREACHABLE = "node_unreachable"
    NODE_REFUSED = "node_refused"
    TOKEN_USED = "token_used"  # noqa: S105 - a code, not a secret
    BUSY = "busy"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


class CodeRule(NamedTuple):
    """HTTP status, and whether the same call may succeed later unchanged."""

    status: int
    retryable: bool


CODE_RULES: Final[dict[ErrorCode, CodeRule]] = {
    ErrorCode.UNAUTHORIZED: CodeRule(401, False),
    ErrorCode.FORBIDDEN: CodeRule(403, False),
    ErrorCode.POLICY_DENIED: CodeRule(403, False),
    ErrorCode.QUOTA_EXCEEDED: CodeRule(429, False),
    ErrorCode.NOT_FOUND: CodeRule(404, False),
    ErrorCode.METHOD_NOT_ALLOWED: CodeRule(405, False),
    ErrorCode.INVALID_REQUEST: CodeRule(422, False),
    ErrorCode.PAYLOAD_TOO_LARGE: CodeRule(413, False),
    ErrorCode.UNSUPPORTED: CodeRule(422, False),
    ErrorCode.SANDBOX_NOT_FOUND: CodeRule(404, False),
    ErrorCode.SANDBOX_NOT_RUNNING: CodeRule(409, False),
    ErrorCode.SPEC_CONFLICT: CodeRule(409, False),
    ErrorCode.CONFLICT: CodeRule(409, True),
    ErrorCode.NEVER_FITS: CodeRule(422, False),
    ErrorCode.CAPACITY: CodeRule(422, False),
    ErrorCode.NO_ROOM: CodeRule(503, True),
    ErrorCode.CREATE_IN_PROGRESS: CodeRule(503, True),
    ErrorCode.IMAGE_ERROR: CodeRule(422, False),
    ErrorCode.START_ERROR: CodeRule(422, False),
    ErrorCode.EXEC_NOT_FOUND: CodeRule(404, False),
    ErrorCode.EXEC_LOST: CodeRule(410, False),
    ErrorCode.EXEC_LIMIT: CodeRule(429, True),
    ErrorCode.STDIN_CLOSED: CodeRule(409, False),
    ErrorCode.FILE_NOT_FOUND: CodeRule(404, False),
    ErrorCode.IS_DIRECTORY: CodeRule(400, False),
    ErrorCode.NOT_A_DIRECTORY: CodeRule(400, False),
    ErrorCode.FILE_PERMISSION: CodeRule(403, False),
    ErrorCode.DISK_FULL: CodeRule(507, False),
    ErrorCode.TRANSFER_INTERRUPTED: CodeRule(503, True),
    ErrorCode.NODE_NOT_FOUND: CodeRule(404, False),
    ErrorCode.NODE_UNREACHABLE: CodeRule(503, True),
    ErrorCode.NODE_REFUSED: CodeRule(503, True),
    ErrorCode.TOKEN_USED: CodeRule(409, False),
    ErrorCode.BUSY: CodeRule(503, True),
    ErrorCode.TIMEOUT: CodeRule(504, True),
    ErrorCode.INTERNAL: CodeRule(500, False),
}


class FieldError(WireAnswer):
    """One field of a request that was refused."""

    field: str
    """Dotted path of the field, e.g. ``security.pids_limit``; empty for the body as a whole."""
    problem: str
    """What is wrong with the field."""
    allowed: str | None = None
    """What would be taken instead, where a policy refused it."""
    where: str | None = None
    """Where the operator has set that: file, table and key."""


class ErrorBody(WireAnswer):
    """The body of every answer that is not 2xx, from gateway and node alike."""

    error: str
    """One sentence: what happened, to what, and what to do next."""
    code: ErrorCode
    """One of a closed list; clients decide by it."""
    retryable: bool = False
    """Whether the same call may succeed later, and can be repeated without harm."""
    begun: bool | None = None
    """False: nothing of the call was begun, so even one that is not idempotent may be sent again; else not known."""
    fields: list[FieldError] | None = None
    """Each part of the request that was refused."""
    sandbox_id: str | None = None
    """The sandbox that the error is about."""
    state: str | None = None
    """State of that sandbox."""
    reason: str | None = None
    """Why that sandbox ended."""
    reasons: list[str] | None = None
    """Why no node took the sandbox, one sentence per node or pool; at most 20, and a count of the others."""
    pending_resources: Shape | None = None
    """What waits for room with this create: its own shape alone, since what others wait for is not told."""
    requested_resources: Shape | None = None
    """What this create requested."""
    maximum_resources: Shape | None = None
    """The largest shape of any node, present or possible."""
    request_id: str | None = None
    """As in ``X-Request-Id`` and in the logs."""
