"""What every route has at hand, and the names in its path."""

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from pydantic import ConfigDict, Field, StringConstraints, ValidationError, field_validator
from starlette.types import Scope

from gateway.errors import ApiError
from gateway.http.responses import from_validation, invalid_request
from gateway.node_client import Upstream
from gateway.services.assembly import Services
from gateway.wire import limits
from gateway.wire.base import Request
from gateway.wire.errors import ErrorBody, ErrorCode, FieldError
from gateway.wire.states import SandboxState

_SESSION: Final = re.compile(r"exec-[0-9a-f]{32}\.([1-9][0-9]{0,17})\.(.+)")


@dataclass(frozen=True)
class Edge:
    """What the routes work with."""

    services: Services
    upstream: Upstream
    version: str


@dataclass(frozen=True)
class SessionName:
    """A session id, read: the route to an exec is in its name."""

    session_id: str
    generation: int
    sandbox_id: str


def new_router(tag: str) -> APIRouter:
    """A router whose routes are documented with the one shape of errors, and named by their functions."""
    return APIRouter(
        tags=[tag],
        responses={"default": {"model": ErrorBody, "description": "Refused"}},
        generate_unique_id_function=lambda route: route.name,
    )


def edge_in(scope: Scope) -> Edge:
    """The `Edge` of the application that serves a request."""
    edge = scope["app"].state.edge
    if not isinstance(edge, Edge):
        raise TypeError(f"the application's edge is {type(edge).__name__}")
    return edge


async def _edge(request: Request) -> Edge:
    return edge_in(request.scope)


def is_id(text: str) -> bool:
    """Whether ``text`` can be the id of anything at all."""
    return re.fullmatch(limits.ID_PATTERN, text) is not None


def require_sandbox_id(text: str) -> str:
    """``text``, if a sandbox can have that id.

    Raises:
        ApiError: ``SANDBOX_NOT_FOUND``.
    """
    if not is_id(text):
        raise ApiError(ErrorCode.SANDBOX_NOT_FOUND, f"no sandbox can have the id {text[:100]!r}")
    return text


def read_session_id(text: str) -> SessionName:
    """The parts of a session id.

    Raises:
        ApiError: ``EXEC_NOT_FOUND``: it is not the name of a session.
    """
    found = _SESSION.fullmatch(text)
    if found is None or not is_id(found[2]):
        raise ApiError(
            ErrorCode.EXEC_NOT_FOUND,
            f"{text[:150]!r} is no id of an exec session: those have the form exec-<32 hex>.<generation>.<sandbox>",
        )
    return SessionName(text, int(found[1]), found[2])


async def _sandbox_id(sandbox_id: str) -> str:
    return require_sandbox_id(sandbox_id)


async def _node_id(node_id: str) -> str:
    if not is_id(node_id):
        raise ApiError(ErrorCode.NODE_NOT_FOUND, f"no node can have the id {node_id[:100]!r}")
    return node_id


async def _token_id(token_id: str) -> str:
    if not is_id(token_id):
        raise ApiError(ErrorCode.NOT_FOUND, f"no token can have the id {token_id[:100]!r}")
    return token_id


async def _prepare_id(prepare_id: str) -> str:
    if not is_id(prepare_id):
        raise ApiError(ErrorCode.NOT_FOUND, f"nothing prepared can have the id {prepare_id[:100]!r}")
    return prepare_id


async def _session(session_id: str) -> SessionName:
    return read_session_id(session_id)


Context = Annotated[Edge, Depends(_edge)]
SandboxPath = Annotated[str, Depends(_sandbox_id)]
NodePath = Annotated[str, Depends(_node_id)]
TokenPath = Annotated[str, Depends(_token_id)]
PreparePath = Annotated[str, Depends(_prepare_id)]
SessionPath = Annotated[SessionName, Depends(_session)]


MAX_QUERY_FIELDS = 2 * limits.MAX_LABELS
MAX_INTEGER = 2**53  # what JSON numbers hold exactly everywhere

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Query(Request):
    """A query string; its values come as text."""

    model_config = ConfigDict(strict=False)


class ListQuery(Query):
    """Which page of which sandboxes."""

    label: list[str] = Field(default=[], max_length=limits.MAX_LABELS)
    """``key=value``; repeated, a sandbox must carry them all."""
    state: SandboxState | None = None
    limit: int = Field(default=limits.DEFAULT_PAGE, ge=1, le=limits.MAX_PAGE)
    cursor: Annotated[str, StringConstraints(max_length=512)] | None = None
    refresh: Annotated[str, StringConstraints(max_length=16)] | None = None
    """Accepted for older clients: the list is always fresh."""

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


class WaitQuery(Query):
    """How long to wait for the end of a quick command."""

    wait_seconds: Wait = 0.0
    """Seconds, cut to `limits.MAX_LONG_POLL`; 0 answers as soon as the process runs."""


class EventsQuery(Query):
    """Which events of a session, and how long to wait while there are none."""

    after: Count = 0
    """Events with a greater sequence number."""
    limit: int = Field(default=limits.MAX_EVENTS_PER_READ, ge=1)
    """Cut to `limits.MAX_EVENTS_PER_READ`."""
    wait_seconds: Wait = 0.0
    """Seconds, cut to `limits.MAX_LONG_POLL`."""


class StreamQuery(Query):
    """Where the stream of a session begins."""

    after: Count = 0


class RemoveNodeQuery(Query):
    """What is known of the node's machine."""

    machine_gone: bool = False
    """The cloud has proved that the machine is no more; with its silence that is enough, whatever it held."""


class LogQuery(Query):
    """Which piece of which output."""

    stream: Literal["stdout", "stderr"] = "stdout"
    offset: Count = 0
    limit: int = Field(default=limits.MAX_LOG_CHUNK, ge=1, le=limits.MAX_LOG_CHUNK)


class FileQuery(Query):
    """Which file."""

    path: str = Field(min_length=1)
    """Absolute, or relative to the sandbox's working directory."""

    @field_validator("path")
    @classmethod
    def _fits_linux(cls, value: str) -> str:
        if len(value.encode()) > limits.MAX_PATH_BYTES:
            raise ValueError(f"path: may have {limits.MAX_PATH_BYTES} bytes at most")
        return value


Model = TypeVar("Model", bound=Query)


def read_query(scope: Scope, model: type[Model]) -> Model:
    """The query string of a raw request.

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
