"""Who may do what: one table of all routes, and the gate that checks every request against it.

The gate comes before routing and before the body is read, so that nobody without a token makes the gateway parse
anything.  A path or method outside the table needs a valid token too, of any scope.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.tenancy import PRINCIPAL
from gateway.services.tokens import Principal, TokenService
from gateway.wire.errors import ErrorCode
from gateway.wire.tokens import TOKEN_HEADER, TokenScope

MAX_TOKEN: Final = 512
JOIN_TOKEN: Final = "join_token"  # noqa: S105 - a key of the request's state


class RouteAccess(StrEnum):
    """Whom a route admits; the values are the words of docs and errors."""

    OPEN = "none"
    CLIENT = "client or operator"
    OPERATOR = "operator"
    NODE = "the node's own credential"
    JOIN = "a join token"
    BOOT = "an unused join token, a node or an operator"


ACCESS: Final[Mapping[tuple[str, str], RouteAccess]] = {
    ("GET", "/healthz"): RouteAccess.OPEN,
    ("GET", "/readyz"): RouteAccess.OPEN,
    ("GET", "/openapi.json"): RouteAccess.OPEN,
    ("POST", "/v1/sandboxes"): RouteAccess.CLIENT,
    ("GET", "/v1/sandboxes"): RouteAccess.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}"): RouteAccess.CLIENT,
    ("DELETE", "/v1/sandboxes/{sandbox_id}"): RouteAccess.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/pause"): RouteAccess.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/resume"): RouteAccess.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/restart"): RouteAccess.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}/logs"): RouteAccess.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}/usage"): RouteAccess.CLIENT,
    ("PUT", "/v1/sandboxes/{sandbox_id}/files"): RouteAccess.CLIENT,
    ("GET", "/v1/sandboxes/{sandbox_id}/files"): RouteAccess.CLIENT,
    ("POST", "/v1/sandboxes/{sandbox_id}/exec"): RouteAccess.CLIENT,
    ("GET", "/v1/exec/{session_id}"): RouteAccess.CLIENT,
    ("GET", "/v1/exec/{session_id}/events"): RouteAccess.CLIENT,
    ("GET", "/v1/exec/{session_id}/stream"): RouteAccess.CLIENT,
    ("POST", "/v1/exec/{session_id}/stdin"): RouteAccess.CLIENT,
    ("POST", "/v1/exec/{session_id}/close-stdin"): RouteAccess.CLIENT,
    ("POST", "/v1/exec/{session_id}/signal"): RouteAccess.CLIENT,
    ("GET", "/v1/demand"): RouteAccess.OPERATOR,
    ("PUT", "/v1/capacity/ceilings"): RouteAccess.OPERATOR,
    ("POST", "/v1/capacity/prepare"): RouteAccess.CLIENT,
    ("GET", "/v1/capacity/prepare"): RouteAccess.CLIENT,
    ("DELETE", "/v1/capacity/prepare/{prepare_id}"): RouteAccess.CLIENT,
    ("POST", "/v1/builders/prepare"): RouteAccess.CLIENT,
    ("GET", "/v1/builders/prepare"): RouteAccess.CLIENT,
    ("DELETE", "/v1/builders/prepare/{prepare_id}"): RouteAccess.CLIENT,
    ("GET", "/v1/nodes"): RouteAccess.OPERATOR,
    ("POST", "/v1/nodes/{node_id}/drain"): RouteAccess.OPERATOR,
    ("DELETE", "/v1/nodes/{node_id}"): RouteAccess.OPERATOR,
    ("POST", "/v1/nodes/join-tokens"): RouteAccess.OPERATOR,
    ("POST", "/v1/nodes/register"): RouteAccess.JOIN,
    ("POST", "/v1/nodes/{node_id}/heartbeat"): RouteAccess.NODE,
    ("GET", "/v1/bundle/manifest"): RouteAccess.BOOT,
    ("GET", "/v1/bundle/{file_name}"): RouteAccess.BOOT,
    ("GET", "/v1/tokens"): RouteAccess.OPERATOR,
    ("POST", "/v1/tokens"): RouteAccess.OPERATOR,
    ("DELETE", "/v1/tokens/{token_id}"): RouteAccess.OPERATOR,
    ("GET", "/v1/audit"): RouteAccess.OPERATOR,
    ("GET", "/v1/usage"): RouteAccess.CLIENT,
    ("GET", "/v1/policy"): RouteAccess.OPERATOR,
}

_CLIENTS: Final = frozenset({TokenScope.CLIENT, TokenScope.OPERATOR})


def secret_of(headers: Headers) -> str | None:
    """Return the token of a request, from the service's own header or else from ``Authorization``."""
    secret = headers.get(TOKEN_HEADER, "").strip()
    if not secret:
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        secret = rest.strip() if scheme.lower() == "bearer" else ""
    return secret or None


def permitted(access: RouteAccess | None, principal: Principal, node_id: str | None) -> bool:
    """Return whether ``principal`` may use a route; ``access`` is ``None`` for a path that does not exist."""
    if access is RouteAccess.CLIENT:
        return principal.scope in _CLIENTS
    if access is RouteAccess.OPERATOR:
        return principal.scope is TokenScope.OPERATOR
    if access is RouteAccess.NODE:
        return principal.scope is TokenScope.NODE and node_id is not None and principal.node_id == node_id
    if access is RouteAccess.BOOT:
        return principal.scope in {TokenScope.OPERATOR, TokenScope.NODE}
    # A join token belongs to no principal, so every principal has the wrong kind of token for that route.
    return access is not RouteAccess.JOIN


Methods = dict[str, RouteAccess]
"""Whom each method of one path admits."""


@dataclass(frozen=True)
class MatchedPath:
    """The rows of `ACCESS` for a path."""

    template: str | None = None
    """``None``: there is no such path."""
    methods: Methods = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The parts of the path that the template leaves open."""


class AccessTable:
    """Finds the rows of `ACCESS` for a path: a fixed one is never taken for an id."""

    def __init__(self) -> None:
        self._fixed: dict[str, Methods] = {}
        patterns: dict[str, Methods] = {}
        for (method, template), access in ACCESS.items():
            (patterns if "{" in template else self._fixed).setdefault(template, {})[method] = access
        self._patterns = [(compile_path(template)[0], template, methods) for template, methods in patterns.items()]

    def match(self, path: str) -> MatchedPath:
        """Return the rows for a path; none where it does not exist."""
        if (fixed := self._fixed.get(path)) is not None:
            return MatchedPath(path, fixed)
        for pattern, template, methods in self._patterns:
            if (found := pattern.match(path)) is not None:
                return MatchedPath(template, methods, found.groupdict())
        return MatchedPath()


TABLE: Final = AccessTable()


class AuthGate:
    """ASGI layer that admits a request, with its `Principal` in the request's state, or refuses it."""

    def __init__(self, app: ASGIApp, tokens: TokenService) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._check(scope)
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        matched = TABLE.match(scope["path"])
        methods, names = matched.methods, matched.names
        access = methods.get(scope["method"])
        if access is RouteAccess.OPEN:
            return
        secret = secret_of(Headers(scope=scope))
        if secret is None or len(secret) > MAX_TOKEN:
            raise ApiError(
                ErrorCode.UNAUTHORIZED,
                f"a token is required: send it as 'Authorization: Bearer <token>' or as {TOKEN_HEADER}",
            )
        state: dict[str, Any] = scope["state"]
        if access in {RouteAccess.JOIN, RouteAccess.BOOT} and not await self._is_principal(secret):
            # Registration checks it again, in the transaction that uses it up.
            await self._tokens.verify_join_token(secret)
            state[JOIN_TOKEN] = secret
            return
        principal = await self._tokens.verify(secret)
        state[PRINCIPAL] = principal
        if methods and access is None:
            raise _method_not_allowed(scope, tuple(sorted(methods)))
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


def _method_not_allowed(scope: Scope, allowed: tuple[str, ...]) -> ApiError:
    where = f"{scope['method']} {scope['path'][:300]}"
    sentence = f"{where} is no method of this path; it has {', '.join(allowed)}"
    return ApiError(ErrorCode.METHOD_NOT_ALLOWED, sentence, allow=allowed)
