"""What every route has at hand, and the names in its path."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from starlette.types import Scope

from gateway.errors import ApiError
from gateway.node_client import Upstream
from gateway.services.assembly import Services
from gateway.wire import limits
from gateway.wire.errors import ErrorBody, ErrorCode

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
