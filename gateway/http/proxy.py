"""Bytes between a client and a node, both ways: in constant memory, with back-pressure, and cut when one end breaks.

An error before the first byte is an ordinary refusal.  After it, the only honest end is to cut the connection:
`StreamBrokenError`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.types import Message, Receive, Scope, Send

from gateway.core.model import NodeAddress
from gateway.errors import ApiError
from gateway.http.middleware import REQUEST_ID_HEADER, StreamBrokenError
from gateway.http.responses import request_id_of
from gateway.node_client import NodeAnswer, NodeCall, NodeClient

T = TypeVar("T")

CLIENT_IDLE: Final = 120.0  # seconds for which a client may take no byte of a stream

_PASSED_HEADERS: Final = frozenset({"content-type", "content-length", "x-sandbox-id", "x-sandbox-path"})


class CallerGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


def forwarded(scope: Scope) -> dict[str, str]:
    """Return the headers that let a node log under the id of the request that it serves."""
    request_id = request_id_of(scope)
    return {REQUEST_ID_HEADER: request_id} if request_id else {}


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, or cancel it when the client leaves.  The request's body must have been read.

    Raises:
        CallerGoneError: the client left first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise CallerGoneError
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- upload -----------------------------------------------------------------------------------------------------------


class _Upload:
    """The body of a request, to be streamed to a node.

    ``failure`` is what ended it early: the client left, or a layer refused the rest of the body.
    """

    def __init__(self, receive: Receive, on_chunk: Callable[[], None]) -> None:
        self._receive = receive
        self._on_chunk = on_chunk
        self.failure: CallerGoneError | ApiError | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the body; raise `failure`, which aborts the node's request instead of ending it."""
        more = True
        while more:
            message = await self._next()
            more = bool(message.get("more_body", False))
            if message.get("body"):
                self._on_chunk()
                yield message["body"]

    async def _next(self) -> Message:
        try:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallerGoneError
        except (CallerGoneError, ApiError) as failure:
            self.failure = failure
            raise
        return message


async def upload(
    client: NodeClient,
    node: NodeAddress,
    make_call: Callable[[AsyncIterator[bytes]], NodeCall],
    receive: Receive,
    on_chunk: Callable[[], None],
) -> bytes:
    """Send the request's body to the node and return the node's answer.

    Args:
        client: sends the call.
        node: receives it.
        make_call: returns the call that carries the chunks of the body.
        receive: the request's own.
        on_chunk: called for each chunk.

    Raises:
        CallerGoneError: the client left before the end of its body; the call to the node was aborted as well.
        ApiError: as `NodeClient.fetch`, or what a layer refused the body with.
    """
    body = _Upload(receive, on_chunk)
    try:
        return await client.fetch(node, make_call(body.chunks()))
    except ApiError:
        if body.failure is not None:
            raise body.failure from None
        raise


# -- download ---------------------------------------------------------------------------------------------------------


async def download(
    client: NodeClient, node: NodeAddress, call: NodeCall, receive: Receive, send: Send, on_chunk: Callable[[], None]
) -> None:
    """Send the node's answer to the client as it arrives.

    Raises:
        ApiError: before the first byte, as `NodeClient.stream`.
        StreamBrokenError: after it: the node broke off, or the client read nothing for `CLIENT_IDLE` seconds.
    """

    async def work() -> None:
        async with client.stream(node, call) as answer:
            await _pass_on(answer, send, on_chunk)

    try:
        await while_connected(receive, work())
    except CallerGoneError:
        return


async def _pass_on(answer: NodeAnswer, send: Send, on_chunk: Callable[[], None]) -> None:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in answer.headers.items()
        if name.lower() in _PASSED_HEADERS
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for chunk in answer.chunks():
            await _within_idle(send({"type": "http.response.body", "body": chunk, "more_body": True}))
            on_chunk()
    except ApiError as error:
        raise StreamBrokenError(error.message) from error
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _within_idle(sending: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(CLIENT_IDLE):
            await sending
    except TimeoutError:
        raise StreamBrokenError(f"the client read nothing for {CLIENT_IDLE:g} s") from None
