"""The layers that write the audit log, and what routes add to a call's lines.

`AuditTrail` is outside of everything that can refuse a call, so that refusals are written too; `AuditGate` is behind
the check of the token.

A call that changes something has two lines: one before its effect, so that a gateway that is killed leaves none
without a trace, and one with its outcome.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.auth import JOIN_TOKEN, TABLE, MatchedPath
from gateway.http.responses import ERROR_CODE, ERROR_FIELDS, request_id_of
from gateway.http.tenancy import PRINCIPAL, SESSION_ID, meant
from gateway.services.audit import AuditLog
from gateway.services.tasks import AsyncClock
from gateway.services.tokens import Principal
from gateway.wire.audit import MAX_TEXT, TENANTS_OWN, AuditActor, AuditEntry, AuditOutcome

_FACTS: Final = "audit"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# What a heartbeat changes is written as a change by the service.
_SILENT: Final = "/v1/nodes/{node_id}/heartbeat"
# They work on what exists already and write nothing to the gateway's disk.
_INSIDE: Final = ("/v1/exec/", "/v1/sandboxes/{sandbox_id}")
# What they make is named in the body, which only the route reads: it calls `announce` itself.
_BY_ROUTE: Final = frozenset({"/v1/sandboxes", "/v1/capacity/prepare", "/v1/builders/prepare"})
_ANNOUNCE: Final = "audit_announce"
_PAUSE: Final = "/v1/sandboxes/{sandbox_id}/pause"
_CALLER_GONE: Final = 499


def add_facts(scope: Scope, *, target: dict[str, str] | None = None, **facts: str) -> None:
    """Add to the line of a call what only its route knows.

    Args:
        scope: of the request.
        target: ids of what the call is about, beside those in its path; qualified ones.
        **facts: further fields of `AuditEntry`.
    """
    known: dict[str, Any] = scope["state"].setdefault(_FACTS, {"target": {}})
    known["target"].update(target or {})
    known.update(facts)


async def announce(scope: Scope) -> None:
    """Write the line of a call that is about to take effect, with what is known of it; return when it is written."""
    write: Callable[[], Awaitable[None]] = scope["state"][_ANNOUNCE]
    await write()


class AuditTrail:
    """ASGI layer that writes the line of a call before its answer goes out."""

    def __init__(self, app: ASGIApp, log: AuditLog, clock: AsyncClock) -> None:
        self._app = app
        self._log = log
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        changes = scope["method"] not in _READS
        answered = False
        scope.setdefault("state", {})[_ANNOUNCE] = partial(self._announce, scope)

        async def noted(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                await self._answered(scope, message["status"], changes)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if changes and not answered:
                self._log.note(self._entry(scope, None, TABLE.match(scope["path"])))

    async def _announce(self, scope: Scope) -> None:
        add_facts(scope, call=uuid4().hex)
        entry = self._entry(scope, None, TABLE.match(scope["path"]))
        await self._log.write(entry.model_copy(update={"outcome": AuditOutcome.PENDING}))

    async def _answered(self, scope: Scope, status: int, changes: bool) -> None:
        route = TABLE.match(scope["path"])
        refused = 400 <= status < 500 and status != _CALLER_GONE
        if route.template == _SILENT:
            changes = False
        if not changes and not refused:
            return
        entry = self._entry(scope, status, route)
        known = PRINCIPAL in scope["state"] or JOIN_TOKEN in scope["state"]
        if refused and (not changes or not known):
            await self._log.write_refusal(entry)
        else:
            await self._log.write(entry)

    def _entry(self, scope: Scope, status: int | None, route: MatchedPath) -> AuditEntry:
        state = scope["state"]
        principal: Principal | None = state.get(PRINCIPAL)
        facts: dict[str, Any] = state.get(_FACTS, {"target": {}})
        headers = Headers(scope=scope)
        return AuditEntry(
            time=self._clock.now(),
            actor=_actor(state),
            tenant=None if principal is None else principal.tenant,
            token_id=None if principal is None else principal.token_id,
            token_name=None if principal is None else principal.name,
            address=scope["client"][0] if scope.get("client") else None,
            forwarded_for=_short(headers.get("x-forwarded-for")),
            request_id=request_id_of(scope),
            method=scope["method"][:MAX_TEXT],
            route=route.template,
            status=status,
            fields=state.get(ERROR_FIELDS),
            **{"code": state.get(ERROR_CODE)}
            | {name: _short(value) for name, value in facts.items() if name != "target"},
            target={
                name: value[:MAX_TEXT] for name, value in (_targets(route.names, principal) | facts["target"]).items()
            },
        )


class AuditGate:
    """ASGI layer that lets a call through once its first line is written, and refuses it where none could be.

    It also refuses what makes something new while the disk's reserve is not whole.

    Args:
        app: the next layer.
        log: where the lines go.
        require_room: raises while the reserve is not whole.
    """

    def __init__(self, app: ASGIApp, log: AuditLog, require_room: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._log = log
        self._require_room = require_room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        template = None if scope["method"] in _READS else TABLE.match(scope["path"]).template
        if template not in {None, _SILENT}:
            # A delete makes room and a pause saves it, so neither is refused for want of it.
            if scope["method"] != "DELETE" and template != _PAUSE:
                makes = not str(template).startswith(_INSIDE)
                self._log.require_room(makes=makes)
                if makes:
                    await self._require_room()
            if template not in _BY_ROUTE:
                await announce(scope)
        await self._app(scope, receive, send)


def _actor(state: dict[str, Any]) -> AuditActor:
    principal: Principal | None = state.get(PRINCIPAL)
    if principal is not None:
        return AuditActor(principal.scope.value)
    return AuditActor.JOIN if JOIN_TOKEN in state else AuditActor.NOBODY


def _targets(names: dict[str, str], principal: Principal | None) -> dict[str, str]:
    """Return the ids in a path as the caller means them: a guess at another tenant's names nothing of that tenant.

    Of a caller without a valid token, who means nobody's, only ids are kept that belong to no tenant.
    """
    if principal is None:
        return {name: value for name, value in names.items() if name not in TENANTS_OWN}
    targets = {name: meant(principal, value) if name in TENANTS_OWN else value for name, value in names.items()}
    session = names.get("session_id")
    known = None if session is None else SESSION_ID.fullmatch(session)
    if session is not None and known is not None:
        # Its id ends with that of its sandbox.
        sandbox_id = meant(principal, known[2])
        targets |= {"session_id": session[: known.start(2)] + sandbox_id, "sandbox_id": sandbox_id}
    return targets


def _short(value: str | None) -> str | None:
    return None if value is None else value[:MAX_TEXT]
