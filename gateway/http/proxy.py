"""Bytes between a client and a node, both ways: in constant memory, with back-pressure, and cut when one end breaks.

An error that comes before the first byte is an ordinary refusal.  After that the only honest word is to cut the
connection: `StreamBrokenError`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import aiohttp
from starlette.types import Message, Receive, Send

from gateway.errors import ApiError
from gateway.http.middleware import StreamBrokenError
from gateway.node_client import IDLE_TIMEOUT, NodeCall, Upstream, broken, late, read_answer
from gateway.services.ports import NodeAddress

T = TypeVar("T")

CLIENT_IDLE: Final = 120.0  # seconds in which a client may take no byte of a stream

_PASSED: Final = frozenset({"content-type", "content-length", "x-sandbox-id", "x-sandbox-path"})


class CallerGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client leaves.  The request's body must have been read.

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


class Upload:
    """The body of a request as a node reads it.

    ``failure`` is what ended it early: the client left, or a layer refused the rest of the body.
    """

    def __init__(self, receive: Receive, on_chunk: Callable[[], None] | None = None) -> None:
        self._receive = receive
        self._on_chunk = on_chunk
        self.failure: CallerGoneError | ApiError | None = None
        self.patience = asyncio.timeout(None)
        """Runs out when the node takes nothing: the HTTP client's own timeouts begin after the last byte was sent."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces of the body; raises `failure`, which breaks the node's request off instead of ending it."""
        more = True
        while more:
            message = await self._next()
            more = bool(message.get("more_body", False))
            if message.get("body"):
                if self._on_chunk is not None:
                    self._on_chunk()
                self.patience.reschedule(asyncio.get_running_loop().time() + IDLE_TIMEOUT)
                yield message["body"]
                self.patience.reschedule(None)

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
    upstream: Upstream,
    node: NodeAddress,
    make_call: Callable[[Upload], NodeCall],
    receive: Receive,
    *,
    on_chunk: Callable[[], None] | None = None,
) -> bytes:
    """The node's answer to a call that carries the request's body.

    Raises:
        CallerGoneError: the client left before the end of its body; so did the call to the node.
        ApiError: as `Upstream.ask`, or what a layer refused the body with.
    """
    body = Upload(receive, on_chunk)
    call = make_call(body)
    try:
        async with body.patience, upstream.stream(node, call) as response:
            return await read_answer(node, call, response)
    except TimeoutError:
        raise late(node, call) from None
    except ApiError:
        if body.failure is not None:
            raise body.failure from None
        raise


async def download(
    upstream: Upstream,
    node: NodeAddress,
    call: NodeCall,
    receive: Receive,
    send: Send,
    *,
    on_chunk: Callable[[], None] | None = None,
) -> None:
    """Sends the node's answer to the client while it comes.

    Raises:
        ApiError: before the first byte, as `Upstream.ask`.
        StreamBrokenError: after it: the node broke off, or the client took nothing for too long.
    """

    async def work() -> None:
        async with upstream.stream(node, call) as response:
            await _pass_on(node, response, send, on_chunk)

    try:
        await while_connected(receive, work())
    except CallerGoneError:
        return


async def _pass_on(
    node: NodeAddress, response: aiohttp.ClientResponse, send: Send, on_chunk: Callable[[], None] | None
) -> None:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in response.headers.items()
        if name.lower() in _PASSED
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    try:
        async for chunk in response.content.iter_any():
            await _within_idle(send({"type": "http.response.body", "body": chunk, "more_body": True}))
            if on_chunk is not None:
                on_chunk()
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
        raise StreamBrokenError(broken(node, error)) from error
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _within_idle(sending: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(CLIENT_IDLE):
            await sending
    except TimeoutError:
        raise StreamBrokenError(f"the client took nothing for {CLIENT_IDLE:g} s") from None
