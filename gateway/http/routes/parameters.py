"""What a route takes from a request: the gateway's parts, the ids in its path, and its query string.

Query strings are models: unknown keys and wrong values are refused as in bodies.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from pydantic import (
    AfterValidator,
    AwareDatetime,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)
from starlette.types import Scope

from gateway import errors
from gateway.errors import ApiError
from gateway.http.responses import from_validation, invalid_request
from gateway.http.tenancy import SESSION_ID, caller_of, meant
from gateway.node_client import NodeClient
from gateway.services.assembly import Services
from gateway.services.tokens import Principal
from gateway.wire import base, limits
from gateway.wire.errors import ErrorBody, ErrorCode, FieldError
from gateway.wire.states import SandboxState
from gateway.wire.tenants import DEFAULT_TENANT, TenantName, is_id, is_qualified
from gateway.wire.text import of_form
from gateway.wire.usage import UsageBy, UsageQuery

MAX_QUERY_FIELDS: Final = 2 * limits.MAX_LABELS


def new_router(tag: str) -> APIRouter:
    """Return a router whose routes are documented with the one shape of errors and named after their functions."""
    return APIRouter(
        tags=[tag],
        responses={"default": {"model": ErrorBody, "description": "Refused"}},
        generate_unique_id_function=lambda route: route.name,
    )


# -- parts of the gateway ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """What the routes work with."""

    services: Services
    node_client: NodeClient
    version: str


def parts_of(scope: Scope) -> Parts:
    """Return the `Parts` of the application that serves a request."""
    parts = scope["app"].state.parts
    if not isinstance(parts, Parts):
        raise TypeError(f"the application's parts are {type(parts).__name__}")
    return parts


async def _parts(request: Request) -> Parts:
    return parts_of(request.scope)


async def _caller(request: Request) -> Principal:
    return caller_of(request.scope)


GatewayParts = Annotated[Parts, Depends(_parts)]
Caller = Annotated[Principal, Depends(_caller)]

# -- ids in paths -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SessionId:
    """A parsed session id: the route to an exec is in its name."""

    text: str
    generation: int
    sandbox_id: str
    """The qualified one."""


def _checked_id(text: str, code: ErrorCode, kind: str) -> str:
    if not is_id(text):
        raise ApiError(code, f"no {kind} can have the id {text[:100]!r}")
    return text


def _named_id(caller: Principal, text: str, code: ErrorCode, kind: str) -> str:
    if not is_qualified(text):
        raise ApiError(code, f"no {kind} can have the id {text[:100]!r}")
    return meant(caller, text)


def parse_sandbox_id(scope: Scope, text: str) -> str:
    """Return the qualified id of the sandbox that the caller of a request means.

    Raises:
        ApiError: ``SANDBOX_NOT_FOUND``: no sandbox can have that id.
    """
    return _named_id(caller_of(scope), text, ErrorCode.SANDBOX_NOT_FOUND, "sandbox")


def parse_session_id(scope: Scope, text: str) -> SessionId:
    """Return the parts of the id of a session that the caller of a request may have.

    Raises:
        ApiError: ``EXEC_NOT_FOUND``: no session can have that id; ``SANDBOX_NOT_FOUND``: it is another tenant's.
    """
    found = SESSION_ID.fullmatch(text)
    if found is None or not is_qualified(found[2]):
        raise ApiError(
            ErrorCode.EXEC_NOT_FOUND,
            f"{text[:150]!r} is not an exec session id: those have the form exec-<32 hex>.<generation>.<sandbox>",
        )
    # A client that named the session itself knows it by the sandbox's id in its own tenant.
    sandbox_id = meant(caller_of(scope), found[2])
    if not is_qualified(sandbox_id):
        # Nodes are asked for a session by its whole id, so that of another tenant must not get there.
        raise errors.not_found(found[2], None)
    return SessionId(text[: found.start(2)] + sandbox_id, int(found[1]), sandbox_id)


async def _sandbox_id(sandbox_id: str, request: Request) -> str:
    return parse_sandbox_id(request.scope, sandbox_id)


async def _session_id(session_id: str, request: Request) -> SessionId:
    return parse_session_id(request.scope, session_id)


async def _node_id(node_id: str) -> str:
    return _checked_id(node_id, ErrorCode.NODE_NOT_FOUND, "node")


async def _token_id(token_id: str) -> str:
    return _checked_id(token_id, ErrorCode.NOT_FOUND, "token")


async def _prepare_id(prepare_id: str, caller: Caller) -> str:
    return _named_id(caller, prepare_id, ErrorCode.NOT_FOUND, "prepared capacity")


SandboxPath = Annotated[str, Depends(_sandbox_id)]
SessionPath = Annotated[SessionId, Depends(_session_id)]
NodePath = Annotated[str, Depends(_node_id)]
TokenPath = Annotated[str, Depends(_token_id)]
PreparePath = Annotated[str, Depends(_prepare_id)]

# -- query strings ----------------------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0, le=limits.MAX_INTEGER)]
Wait = Annotated[float, Field(ge=0, le=limits.MAX_INTEGER, allow_inf_nan=False)]


class QueryModel(base.WireRequest):
    """A query string, whose values arrive as text."""

    model_config = ConfigDict(strict=False)


class ListQuery(QueryModel):
    """Which sandboxes, and which page of them."""

    label: list[str] = Field(default=[], max_length=limits.MAX_LABELS)
    """``key=value``; repeated, a sandbox must carry all of them."""
    state: SandboxState | None = None
    limit: int = Field(default=limits.DEFAULT_PAGE, ge=1, le=limits.MAX_PAGE)
    cursor: Annotated[str, StringConstraints(max_length=512)] | None = None
    tenant: TenantName | None = None
    """Only this tenant's; for operators."""
    refresh: Annotated[str, StringConstraints(max_length=16)] | None = None
    """Accepted for older clients: the list is always fresh."""

    @field_validator("cursor", "refresh", mode="before")
    @classmethod
    def _empty_is_absent(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("label")
    @classmethod
    def _pairs(cls, value: list[str]) -> list[str]:
        for text in value:
            if not text.partition("=")[1] or text.startswith("="):
                raise ValueError("label: must have the form key=value")
        return value

    @property
    def labels(self) -> dict[str, str]:
        """The labels to match."""
        return dict(text.split("=", 1) for text in self.label)


class CreateQuery(QueryModel):
    """How long a create may wait for its sandbox to run."""

    wait_seconds: Wait = limits.CREATE_WAIT
    """Seconds, cut to `limits.CREATE_WAIT`; a client that gives up earlier sends less, and so learns why it waits."""


class WaitQuery(QueryModel):
    """How long to wait for the end of a quick command."""

    wait_seconds: Wait = 0.0
    """Seconds, cut to `limits.MAX_LONG_POLL`; 0 answers as soon as the process runs."""


class StartQuery(WaitQuery):
    """How a session is named, and how long to wait for the end of a quick command."""

    session: Annotated[str, of_form(r"^[0-9a-f]{32}$", "32 hex digits")] | None = None
    """The 32 hex digits of the session's id, chosen by the client, which so knows the id before any answer; the same
    again gives the session that is there.  Without it the service chooses."""


class EventsQuery(QueryModel):
    """Which events of a session, and how long to wait while there are none."""

    after: Count = 0
    """Events with a greater sequence number."""
    limit: int = Field(default=limits.MAX_EVENTS_PER_READ, ge=1, le=limits.MAX_INTEGER)
    """Cut to `limits.MAX_EVENTS_PER_READ`."""
    wait_seconds: Wait = 0.0
    """Seconds, cut to `limits.MAX_LONG_POLL`."""


class StreamQuery(QueryModel):
    """Where the stream of a session begins."""

    after: Count = 0
    """Start after this sequence number."""


class RemoveNodeQuery(QueryModel):
    """What is known about the node's machine."""

    machine_gone: bool = False
    """The provider has proved that the machine no longer exists; once the node is silent, what it held is lost."""


class LogQuery(QueryModel):
    """Which output, and which part of it."""

    stream: Literal["stdout", "stderr"] = "stdout"
    offset: int = Field(default=0, ge=0, le=limits.MAX_LOG_OFFSET)
    limit: int = Field(default=limits.MAX_LOG_CHUNK, ge=1, le=limits.MAX_LOG_CHUNK)


class AuditParameters(QueryModel):
    """Which lines of the audit log."""

    since: AwareDatetime | None = None
    """Not earlier than this."""
    until: AwareDatetime | None = None
    """Earlier than this."""
    tenant: TenantName | None = None
    """What this tenant did, or what was done to its sandboxes."""
    limit: int = Field(default=limits.DEFAULT_PAGE, ge=1, le=limits.MAX_PAGE)
    cursor: Annotated[str, StringConstraints(max_length=512)] | None = None


class PolicyParameters(QueryModel):
    """Whose policy."""

    tenant: TenantName = DEFAULT_TENANT
    """Tenant; one without tables of its own has the defaults."""


def _sane(moment: datetime) -> datetime:
    if not 2000 <= moment.year < 3000:
        raise ValueError("must be of this millennium")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_sane)]


class UsageParameters(QueryModel):
    """What to sum up, over which time."""

    since: Moment | None = None
    """In the first hour to count; by default 24 hours before ``until``."""
    until: Moment | None = None
    """In the last hour to count, or at its end; by default now."""
    tenant: TenantName | None = None
    """Only this tenant's; for operators."""
    by: UsageBy = "tenant"
    limit: int = Field(default=limits.DEFAULT_PAGE, ge=1, le=limits.MAX_PAGE)
    cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None

    def query(self, now: datetime, bound_to: str | None) -> UsageQuery:
        """Return what is asked for.

        Args:
            now: UTC.
            bound_to: the tenant that the caller is bound to; ``None`` for an operator.
        """
        until = self.until or now
        return UsageQuery(
            since=self.since or until - timedelta(days=1),
            until=until,
            tenant=bound_to or self.tenant,
            by=self.by,
            limit=self.limit,
            cursor=self.cursor,
        )


class FileQuery(QueryModel):
    """Which file."""

    path: str = Field(min_length=1, max_length=limits.MAX_PATH_BYTES)
    """Path of the file: absolute, or relative to the sandbox's working directory."""

    @field_validator("path")
    @classmethod
    def _fits_linux(cls, value: str) -> str:
        if len(value.encode()) > limits.MAX_PATH_BYTES:
            raise ValueError(f"path: may have {limits.MAX_PATH_BYTES} bytes at most")
        return value


Model = TypeVar("Model", bound=QueryModel)


def read_query(scope: Scope, model: type[Model]) -> Model:
    """Return the query string of a raw request as a model.

    Raises:
        ApiError: ``INVALID_REQUEST`` that names each field.
    """
    try:
        text = scope["query_string"].decode("ascii")
        # Strict: a name that is not UTF-8 must not quietly become another name.
        values = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as error:
        problem = "must be percent-encoded UTF-8" if isinstance(error, UnicodeError) else str(error)
        raise invalid_request(f"the query string {problem}", FieldError(field="", problem=problem)) from error
    single = {name: found[0] if len(found) == 1 else found for name, found in values.items()}
    try:
        return model.model_validate(single)
    except ValidationError as error:
        raise from_validation(error.errors()) from None
