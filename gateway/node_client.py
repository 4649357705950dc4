"""The gateway as a client of its nodes, over one aiohttp session.

Every failure becomes an `ApiError`, by the one table `FAILURES`: a node that cannot be reached is ``node_unreachable``
and never "not found", and a call whose outcome is unknown says so and is not called retryable unless sending it again
does no harm.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
from pydantic import ValidationError
from yarl import URL

from gateway.core.model import NodeAddress
from gateway.errors import ApiError
from gateway.wire import limits
from gateway.wire.base import WireModel
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.nodes import CreateOrder, InventoryItem, OrderAnswer

Model = TypeVar("Model", bound=WireModel)

CONNECT_TIMEOUT: Final = 3.0
ANSWER_TIMEOUT: Final = 15.0  # for a node's answer, beyond what the call itself may wait
CREATE_TIMEOUT: Final = 120.0  # the same order attaches again to a create that takes longer
DELETE_TIMEOUT: Final = 60.0
CALL_TIMEOUT: Final = 27.0  # for all that one call of a client waits for; clients in the field give up at 30 s
IDLE_TIMEOUT: Final = 90.0  # of a stream; nodes give a sign of life well within it
RETRY_AFTER: Final = 2.0
MAX_ANSWER: Final = 64 * limits.MIB  # events are bounded to 8 MiB of output, of which an escape makes six times that
MAX_ERROR: Final = limits.MIB
READ_BUFFER: Final = limits.MIB
# Below the 5 s after which a server closes an idle connection by default, so that no call goes out on one just closed.
KEEP_ALIVE: Final = 4.0

# Answers of a node to the gateway's own behaviour, which no client can cure.
_PROTOCOL_ERRORS: Final = frozenset(
    {ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.METHOD_NOT_ALLOWED}
)


class Failure(NamedTuple):
    """How one kind of exception is reported.

    Attributes:
        raised: the exception.
        code: the error code that it becomes.
        sent: whether the node may have received the call.
        cause: the cause in words; ``None`` takes it from the exception.
    """

    raised: type[Exception]
    code: ErrorCode
    sent: bool = True
    cause: str | None = None


_BAD_URL: Final = "the URL that it registered is not valid"

# The first row that matches counts.
FAILURES: Final = (
    Failure(aiohttp.ClientConnectorDNSError, ErrorCode.NODE_UNREACHABLE, sent=False, cause="no such host"),
    Failure(aiohttp.ClientConnectorError, ErrorCode.NODE_UNREACHABLE, sent=False),
    Failure(
        aiohttp.ConnectionTimeoutError,
        ErrorCode.NODE_UNREACHABLE,
        sent=False,
        cause=f"no connection within {CONNECT_TIMEOUT:g} s",
    ),
    Failure(TimeoutError, ErrorCode.TIMEOUT),  # aiohttp's other timeouts are of this type too
    Failure(ValidationError, ErrorCode.NODE_UNREACHABLE, cause="its answer is not in the protocol"),
    Failure(ValueError, ErrorCode.NODE_UNREACHABLE, sent=False, cause=_BAD_URL),  # aiohttp.InvalidURL is one too
    Failure(aiohttp.NonHttpUrlClientError, ErrorCode.NODE_UNREACHABLE, sent=False, cause=_BAD_URL),
    Failure(aiohttp.ClientError, ErrorCode.NODE_UNREACHABLE),
    Failure(OSError, ErrorCode.NODE_UNREACHABLE),
)


@dataclass(frozen=True)
class NodeCall:
    """One call to a node.

    Attributes:
        method: HTTP method.
        path: percent-encoded path below the node's URL.
        query: parameters of the query string.
        body: bytes, sent as JSON; or an iterator whose chunks are streamed.
        headers: sent in addition to the bearer token.
        timeout: seconds for the whole call; where a body streams in either direction, seconds until the answer begins
            and between two chunks.
        repeatable: whether the call may be sent again when its outcome is unknown.
        begin: seconds until the answer begins, where that is to be shorter than ``timeout``.
    """

    method: str
    path: str
    query: Mapping[str, str | int | float] | None = None
    body: bytes | AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] | None = None
    timeout: float = ANSWER_TIMEOUT
    repeatable: bool = True
    begin: float | None = None

    @property
    def streams(self) -> bool:
        """Whether the call's own body is streamed."""
        return not isinstance(self.body, bytes | None)


def with_wait(wait: float, most: float = CALL_TIMEOUT) -> float:
    """Return the timeout of a call that may itself wait ``wait`` seconds on the node, cut to ``most`` seconds."""
    return min(wait + ANSWER_TIMEOUT, most)


def segment(text: str) -> str:
    """Percent-encode ``text`` as one segment of a path."""
    return quote(text, safe="")


class NodeAnswer:
    """The answer of a node, whose body has yet to be read."""

    def __init__(self, node: NodeAddress, call: NodeCall, response: aiohttp.ClientResponse) -> None:
        self._node = node
        self._call = call
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            ApiError: the answer broke off.
        """
        with _translated(self._node, self._call):
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def read(self, most: int = MAX_ANSWER) -> bytes:
        """Return the whole body.

        Raises:
            ApiError: the answer broke off, or is larger than ``most`` bytes.
        """
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise _unreachable(self._node, self._call, f"its answer is larger than {most} bytes")
        return b"".join(chunks)


class NodeClient:
    """Calls to nodes; implements `gateway.services.controllers.NodeOrders`.  An asynchronous context manager."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Bounded by the layer that bounds requests; a bound here could let waiting calls starve the short ones.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, read_bufsize=READ_BUFFER)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- orders -------------------------------------------------------------------------------------------------------

    async def create(self, node: NodeAddress, sandbox_id: str, order: CreateOrder) -> InventoryItem:
        path = f"/v1/sandboxes/{segment(sandbox_id)}"
        call = NodeCall("PUT", path, body=order.model_dump_json().encode(), timeout=CREATE_TIMEOUT)
        return (await self.fetch_model(node, call, OrderAnswer)).sandbox

    async def delete(self, node: NodeAddress, sandbox_id: str, generation: int) -> None:
        path = f"/v1/sandboxes/{segment(sandbox_id)}"
        await self.fetch(node, NodeCall("DELETE", path, {"generation": generation}, timeout=DELETE_TIMEOUT))

    async def pause(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        path = f"/v1/sandboxes/{segment(sandbox_id)}/pause"
        return (await self.fetch_model(node, NodeCall("POST", path, {"generation": generation}), OrderAnswer)).sandbox

    async def resume(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        path = f"/v1/sandboxes/{segment(sandbox_id)}/resume"
        return (await self.fetch_model(node, NodeCall("POST", path, {"generation": generation}), OrderAnswer)).sandbox

    # -- calls --------------------------------------------------------------------------------------------------------

    async def fetch_model(self, node: NodeAddress, call: NodeCall, answer: type[Model]) -> Model:
        """Return the node's answer as a model.

        Raises:
            ApiError: the node refused, could not be reached, or answered something else.
        """
        content = await self.fetch(node, call)
        with _translated(node, call):
            return answer.model_validate_json(content)

    async def fetch(self, node: NodeAddress, call: NodeCall) -> bytes:
        """Return the node's answer as it came, read whole and bounded.

        A streamed body is sent at the node's pace: the call ends where the node takes no byte for ``call.timeout``
        seconds, because the timeouts of aiohttp begin only after the last byte was sent.

        Raises:
            ApiError: as `fetch_model`.
        """
        deadline = asyncio.timeout(None if call.streams else call.timeout)
        if not isinstance(call.body, bytes | None):
            call = replace(call, body=_paced(call.body, deadline, call.timeout))
        with _translated(node, call):
            async with deadline, self._open(node, call) as response:
                return await NodeAnswer(node, call, response).read()

    @asynccontextmanager
    async def stream(self, node: NodeAddress, call: NodeCall) -> AsyncIterator[NodeAnswer]:
        """Yield the node's answer while it arrives; a refusal is raised before anything is yielded.

        Raises:
            ApiError: as `fetch_model`.
        """
        async with self._open(node, call) as response:
            yield NodeAnswer(node, call, response)

    @asynccontextmanager
    async def _open(self, node: NodeAddress, call: NodeCall) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield an answer of 2xx whose body has not been read."""
        if self._session is None:
            raise RuntimeError("used outside of its context")
        query = f"?{urlencode(call.query)}" if call.query else ""
        with _translated(node, call):
            response = await self._send(self._session, node, call, node.url.rstrip("/") + call.path + query)
        try:
            if not 200 <= response.status < 300:
                raise await _refusal(NodeAnswer(node, call, response), node, call)
            yield response
        finally:
            # A body that was not read, or not sent, to its end makes the connection useless for another call.
            if response.content.at_eof() and not call.streams:
                response.release()
            else:
                response.close()

    async def _send(
        self, session: aiohttp.ClientSession, node: NodeAddress, call: NodeCall, url: str
    ) -> aiohttp.ClientResponse:
        headers = {
            "Authorization": f"Bearer {node.control_token}",
            "Accept-Encoding": "identity",
            **({"Content-Type": "application/json"} if isinstance(call.body, bytes) else {}),
            **(call.headers or {}),
        }
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT, sock_read=call.timeout)
        async with asyncio.timeout(call.begin):
            return await session.request(
                call.method,
                URL(url, encoded=True),
                data=call.body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            )


async def _paced(body: AsyncIterator[bytes], deadline: asyncio.Timeout, seconds: float) -> AsyncIterator[bytes]:
    """Yield the chunks of ``body``; ``deadline`` runs while the node has yet to take one."""
    async for chunk in body:
        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
        yield chunk
        deadline.reschedule(None)


# -- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def _translated(node: NodeAddress, call: NodeCall) -> Iterator[None]:
    """Raise what `FAILURES` says for an exception of the block."""
    try:
        yield
    except tuple(failure.raised for failure in FAILURES) as error:
        failure = next(failure for failure in FAILURES if isinstance(error, failure.raised))
        if failure.code is ErrorCode.TIMEOUT:
            raise _timed_out(node, call) from error
        raise _unreachable(node, call, failure.cause or _cause(error), sent=failure.sent) from error


def _cause(error: BaseException) -> str:
    """Return the cause without the node's address, which is for the operator's eyes only."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) else type(error).__name__


def _unreachable(node: NodeAddress, call: NodeCall, cause: str, *, sent: bool = True) -> ApiError:
    message = f"node {node.node_id} cannot be reached now: {cause}"
    if not sent:
        message += "; nothing was begun, and its sandboxes live on while its agent restarts: try again in a few seconds"
        return ApiError(ErrorCode.NODE_UNREACHABLE, message, retryable=True, retry_after=RETRY_AFTER, begun=False)
    return _failed(ErrorCode.NODE_UNREACHABLE, message, repeatable=call.repeatable)


def _timed_out(node: NodeAddress, call: NodeCall) -> ApiError:
    seconds = call.begin or call.timeout
    message = f"node {node.node_id} gave no answer to {call.method} {call.path} within {seconds:g} s"
    return _failed(ErrorCode.TIMEOUT, message, repeatable=call.repeatable)


def _failed(code: ErrorCode, message: str, *, repeatable: bool) -> ApiError:
    if repeatable:
        return ApiError(code, message, retryable=True, retry_after=RETRY_AFTER)
    return ApiError(code, f"{message}; whether the call took effect is not known", retryable=False)


async def _refusal(answer: NodeAnswer, node: NodeAddress, call: NodeCall) -> ApiError:
    """Return what the node's answer other than 2xx means to the gateway's own client."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            body = ErrorBody.model_validate_json(await answer.read(MAX_ERROR))
    except (TimeoutError, ValidationError) as error:
        cause = f"it answered {answer.status} without a readable reason ({type(error).__name__})"
        return _unreachable(node, call, cause)
    except ApiError as error:
        return error
    if body.code in _PROTOCOL_ERRORS:
        return _unreachable(node, call, f"it answered {body.code.value}: {body.error}")
    if body.code is ErrorCode.SANDBOX_NOT_FOUND:
        # The gateway has a row for it, so it exists; its processes are gone, and the next heartbeat says why.
        return ApiError(ErrorCode.SANDBOX_NOT_RUNNING, f"node {node.node_id} no longer has the sandbox: {body.error}")
    retry_after = answer.headers.get("Retry-After", "")
    return ApiError.from_body(body, float(retry_after) if retry_after.isdigit() else None)
