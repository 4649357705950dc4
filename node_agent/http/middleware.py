"""What every request passes before a route sees it: the control token and the bound on its body.

Pure ASGI, so that streams are not touched (the framework's own base class buffers and slows them).
"""

import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from node_agent.errors import ApiError

OPEN_PATHS = frozenset({"/healthz"})
FILES_SUFFIX = "/files"


async def send_error(send: Send, error: ApiError) -> None:
    """Answers with the error's body."""
    body = error.json()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Authenticate:
    """Lets nobody in who does not show the control token; only the health check is open.

    Before registration there is no token, and everybody is refused.
    """

    def __init__(self, app: ASGIApp, control_token: Callable[[], str | None]) -> None:
        self._app = app
        self._control_token = control_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._known(scope):
            await self._app(scope, receive, send)
            return
        message = (
            "show the node's control token as 'Authorization: Bearer …'; it was told to the gateway at registration"
        )
        await send_error(send, ApiError(ErrorCode.UNAUTHORIZED, message))

    def _known(self, scope: Scope) -> bool:
        expected = self._control_token()
        kind, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
        if not expected or kind.lower() != "bearer":
            return False
        return hmac.compare_digest(shown.strip().encode(), expected.encode())


class LimitBody:
    """Refuses a body over the bound: at once where its length is announced, else while it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bound = limits.MAX_FILE_BODY if scope["path"].endswith(FILES_SUFFIX) else limits.MAX_JSON_BODY
        error = ApiError(ErrorCode.PAYLOAD_TOO_LARGE, f"the body may have {bound} bytes at most")
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > bound:
            await send_error(send, error)
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > bound:
                raise error
            return message

        await self._app(scope, bounded, send)
