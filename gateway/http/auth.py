"""Who may do what: one table of all routes, and the gate that holds every request against it.

The gate stands before routing and before the body is read, so that nobody without a token makes the gateway parse
anything.  A path or method that the table does not hold needs a valid token too, whoever's it is.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.services.tokens import Principal, TokenService
from gateway.wire.errors import ErrorCode
from gateway.wire.tokens import TOKEN_HEADER
from gateway.wire.tokens import Scope as TokenScope

MAX_TOKEN: Final = 512
PRINCIPAL: Final = "principal"
JOIN_TOKEN: Final = "join_token"  # noqa: S105 - a key of the request's state


class Access(StrEnum):
    """Whom a route lets in."""

    OPEN = "none"
    CLIENT = "client or operator"
    OPERATOR = "operator"
    NODE = "the node's own credential"
    JOIN = "a join token"
    BOOT = "an unused join token, a node or an operator"


ACCESS: Final[Mapping[tuple[str, str], Access]] = {
    ("GET", "/healthz"): Access.OPEN,
    ("GET", "/readyz"): Access.OPEN,
    ("GET", "/openapi.json"): Access.OPEN,
    ("POST", "/v1/sandboxes"): Access.CLIENT,
    ("GET", "/v1/sandboxes"): Access.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}"): Access.CLIENT,
    ("DELETE", "/v1/sandboxes/{sandbox_id}"): Access.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/pause"): Access.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/resume"): Access.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/restart"): Access.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}/logs"): Access.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}/usage"): Access.CLIENT,
    ("PUT", "/v1/sandboxes/{sandbox_id}/files"): Access.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}/files"): Access.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/exec"): Access.CLIENT,
    ("GET", "/v1/exec/{session_id}"): Access.CLIENT,
    ("GET", "/v1/exec/{session_id}/events"): Access.CLIENT,
    ("GET", "/v1/exec/{session_id}/stream"): Access.CLIENT,
    ("POST", "/v1/exec/{session_id}/stdin"): Access.CLIENT,
    ("POST", "/v1/exec/{session_id}/close-stdin"): Access.CLIENT,
    ("POST", "/v1/exec/{session_id}/signal"): Access.CLIENT,
    ("GET", "/v1/demand"): Access.OPERATOR,
    ("PUT", "/v1/capacity/ceilings"): Access.OPERATOR,
    ("POST", "/v1/capacity/prepare"): Access.CLIENT,
    ("GET", "/v1/capacity/prepare"): Access.CLIENT,
    ("DELETE", "/v1/capacity/prepare/{prepare_id}"): Access.CLIENT,
    ("POST", "/v1/builders/prepare"): Access.CLIENT,
    ("GET", "/v1/builders/prepare"): Access.CLIENT,
    ("DELETE", "/v1/builders/prepare/{prepare_id}"): Access.CLIENT,
    ("GET", "/v1/nodes"): Access.OPERATOR,
    ("POST", "/v1/nodes/{node_id}/drain"): Access.OPERATOR,
    ("DELETE", "/v1/nodes/{node_id}"): Access.OPERATOR,
    ("POST", "/v1/nodes/join-tokens"): Access.OPERATOR,
    ("POST", "/v1/nodes/register"): Access.JOIN,
    ("POST", "/v1/nodes/{node_id}/heartbeat"): Access.NODE,
    ("GET", "/v1/bundle/manifest"): Access.BOOT,
    ("GET", "/v1/bundle/{file_name}"): Access.BOOT,
    ("GET", "/v1/tokens"): Access.OPERATOR,
    ("POST", "/v1/tokens"): Access.OPERATOR,
    ("DELETE", "/v1/tokens/{token_id}"): Access.OPERATOR,
}

_CLIENTS: Final = frozenset({TokenScope.CLIENT, TokenScope.OPERATOR})


def secret_of(headers: Headers) -> str | None:
    """The token that a request shows, in either of the two headers; the service's own header goes first."""
    secret = headers.get(TOKEN_HEADER, "").strip()
    if not secret:
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        secret = rest.strip() if scheme.lower() == "bearer" else ""
    return secret or None


def permitted(access: Access | None, principal: Principal, node_id: str | None) -> bool:
    """Whether ``principal`` may use a route; ``access`` ``None`` is a path that does not exist."""
    if access is Access.CLIENT:
        return principal.scope in _CLIENTS
    if access is Access.OPERATOR:
        return principal.scope is TokenScope.OPERATOR
    if access is Access.NODE:
        return principal.scope is TokenScope.NODE and node_id is not None and principal.node_id == node_id
    if access is Access.BOOT:
        return principal.scope in {TokenScope.OPERATOR, TokenScope.NODE}
    # The join token is no principal: whoever is one has the wrong kind of token for that route.
    return access is not Access.JOIN


class _Table:
    """Finds the row of a request."""

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], Access] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], Access]]] = {}
        for (method, template), access in ACCESS.items():
            if "{" in template:
                self._patterns.setdefault(method, []).append((compile_path(template)[0], access))
            else:
                self._fixed[method, template] = access

    def find(self, method: str, path: str) -> tuple[Access | None, dict[str, str]]:
        access = self._fixed.get((method, path))
        if access is not None:
            return access, {}
        for pattern, candidate in self._patterns.get(method, ()):
            found = pattern.match(path)
            if found:
                return candidate, found.groupdict()
        return None, {}


class Gate:
    """ASGI layer that lets a request through, with its `Principal` in the request's state, or refuses it."""

    def __init__(self, app: ASGIApp, tokens: TokenService) -> None:
        self._app = app
        self._tokens = tokens
        self._table = _Table()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._check(scope)
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        access, names = self._table.find(scope["method"], scope["path"])
        if access is Access.OPEN:
            return
        secret = secret_of(Headers(scope=scope))
        if secret is None or len(secret) > MAX_TOKEN:
            raise ApiError(
                ErrorCode.UNAUTHORIZED,
                f"a token is needed: send it as 'Authorization: Bearer <token>' or as {TOKEN_HEADER}",
            )
        state: dict[str, Any] = scope["state"]
        if access in {Access.JOIN, Access.BOOT} and not await self._is_principal(secret):
            # Registration judges it again, in the step that uses it up.
            await self._tokens.verify_join_token(secret)
            state[JOIN_TOKEN] = secret
            return
        principal = await self._tokens.verify(secret)
        state[PRINCIPAL] = principal
        if not permitted(access, principal, names.get("node_id")):
            raise ApiError(
                ErrorCode.FORBIDDEN,
                f"{scope['method']} {scope['path']} needs {'another token' if access is None else access.value};"
                f" this token's scope is {principal.scope.value}",
            )

    async def _is_principal(self, secret: str) -> bool:
        try:
            await self._tokens.verify(secret)
        except ApiError as error:
            if error.code is ErrorCode.UNAUTHORIZED:
                return False
            raise
        return True
