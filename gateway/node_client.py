"""The gateway as a client of its nodes, over one aiohttp session.

Every failure becomes an `ApiError`: a node that cannot be reached is ``node_unreachable`` and never "not found", and a
call whose outcome is not known says so and is not called retryable unless sending it again does no harm.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
from pydantic import ValidationError
from yarl import URL

from gateway.errors import ApiError
from gateway.http.middleware import REQUEST_ID_HEADER
from gateway.http.responses import request_id_of
from gateway.services.ports import NodeAddress
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
MAX_ANSWER: Final = 64 * limits.MIB  # events are bounded to 8 MiB of output, of which an escape makes six times that
MAX_ERROR: Final = limits.MIB
READ_BUFFER: Final = limits.MIB
# Below the 5 s after which a server closes an idle connection by default, so that no call goes out on one just closed.
KEEP_ALIVE: Final = 4.0

# What a node says of the gateway's own behaviour, which no client can cure.
_PROTOCOL: Final = frozenset(
    {ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.METHOD_NOT_ALLOWED}
)


@dataclass(frozen=True)
class NodeCall:
    """One call to a node.

    ``again`` tells whether the call may be sent again when its outcome is not known.  ``timeout`` is in seconds: for
    the whole call, or, where a body streams, until the answer begins and between two pieces of it; ``begin`` is a
    shorter bound for the begin alone.
    """

    method: str
    path: str
    query: Mapping[str, str | int | float] | None = None
    body: bytes | AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] | None = None
    timeout: float = ANSWER_TIMEOUT
    again: bool = True
    begin: float | None = None


def with_wait(wait: float, most: float = CALL_TIMEOUT) -> float:
    """The timeout of a call that may itself wait ``wait`` seconds on the node, ``most`` at most."""
    return min(wait + ANSWER_TIMEOUT, most)


def segment(text: str) -> str:
    """``text`` as one segment of a path."""
    return quote(text, safe="")


class Upstream:
    """Calls to nodes; implements `gateway.services.ports.NodeGateway`.  An asynchronous context manager."""

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

    async def create(self, node: NodeAddress, order: CreateOrder) -> InventoryItem:
        path = f"/v1/sandboxes/{segment(order.spec.id)}"
        call = NodeCall("PUT", path, body=order.model_dump_json().encode(), timeout=CREATE_TIMEOUT)
        return (await self.ask(node, call, OrderAnswer)).sandbox

    async def delete(self, node: NodeAddress, sandbox_id: str, generation: int) -> None:
        path = f"/v1/sandboxes/{segment(sandbox_id)}"
        await self.bytes(node, NodeCall("DELETE", path, {"generation": generation}, timeout=DELETE_TIMEOUT))

    async def pause(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        path = f"/v1/sandboxes/{segment(sandbox_id)}/pause"
        return (await self.ask(node, NodeCall("POST", path, {"generation": generation}), OrderAnswer)).sandbox

    async def resume(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        path = f"/v1/sandboxes/{segment(sandbox_id)}/resume"
        return (await self.ask(node, NodeCall("POST", path, {"generation": generation}), OrderAnswer)).sandbox

    # -- calls --------------------------------------------------------------------------------------------------------

    async def ask(self, node: NodeAddress, call: NodeCall, answer: type[Model]) -> Model:
        """The node's answer as a model.

        Raises:
            ApiError: the node refused, could not be reached, or answered something else.
        """
        content = await self.bytes(node, call)
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise _unreachable(node, call, f"its answer is no {answer.__name__}") from error

    async def bytes(self, node: NodeAddress, call: NodeCall) -> bytes:
        """The node's answer as it came, read whole and bounded.

        Raises:
            ApiError: as `ask`.
        """
        try:
            async with asyncio.timeout(call.timeout), self._open(node, call) as response:
                return await read_answer(node, call, response)
        except TimeoutError:
            raise late(node, call) from None

    @asynccontextmanager
    async def stream(self, node: NodeAddress, call: NodeCall) -> AsyncIterator[aiohttp.ClientResponse]:
        """The node's answer while it comes; a refusal is raised before anything is yielded.

        Raises:
            ApiError: as `ask`.
        """
        async with self._open(node, call) as response:
            yield response

    @asynccontextmanager
    async def _open(self, node: NodeAddress, call: NodeCall) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of 2xx, its body not yet read."""
        if self._session is None:
            raise RuntimeError("used outside of its context")
        query = f"?{urlencode(call.query)}" if call.query else ""
        response = await self._send(node, call, node.url.rstrip("/") + call.path + query)
        try:
            if not 200 <= response.status < 300:
                raise await _refusal(node, call, response)
            yield response
        finally:
            # What was not read, or not sent, makes the connection useless for another call.
            if response.content.at_eof() and (call.body is None or isinstance(call.body, bytes)):
                response.release()
            else:
                response.close()

    async def _send(self, node: NodeAddress, call: NodeCall, url: str) -> aiohttp.ClientResponse:
        assert self._session is not None  # noqa: S101 - checked by the only caller
        headers = {
            "Authorization": f"Bearer {node.control_token}",
            "Accept-Encoding": "identity",
            **({"Content-Type": "application/json"} if isinstance(call.body, bytes) else {}),
            **(call.headers or {}),
        }
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT, sock_read=call.timeout)
        try:
            async with asyncio.timeout(call.begin):
                return await self._session.request(
                    call.method,
                    URL(url, encoded=True),
                    data=call.body,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                )
        except aiohttp.ClientConnectorError as error:
            # Nothing was sent, so sending it again does no harm whatever it is.
            raise _unreachable(node, call, _why(error), sent=False) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise _unreachable(node, call, f"no connection within {CONNECT_TIMEOUT} s", sent=False) from error
        except (aiohttp.ServerTimeoutError, TimeoutError) as error:
            raise late(node, call) from error
        except ValueError as error:  # aiohttp's InvalidURL is one too
            raise _unreachable(node, call, "the URL that it registered is not valid", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(node, call, _why(error)) from error


def forwarded(scope: Mapping[str, object]) -> dict[str, str]:
    """Headers that let the node log under the id of the request that it serves."""
    request_id = request_id_of(dict(scope))
    return {REQUEST_ID_HEADER: request_id} if request_id else {}


def broken(node: NodeAddress, error: BaseException) -> str:
    """The sentence for a stream from the node that broke off."""
    return f"the stream from node {node.node_id} broke off: {_why(error)}"


def _why(error: BaseException) -> str:
    """The cause without the node's address, which is nobody's business but the operator's."""
    number = getattr(error, "errno", None)
    if isinstance(number, int):
        return os.strerror(number)
    return "no such host" if isinstance(error, aiohttp.ClientConnectorDNSError) else type(error).__name__


def _unreachable(node: NodeAddress, call: NodeCall, why: str, *, sent: bool = True) -> ApiError:
    known = not sent or call.again
    outcome = "" if known else "; whether what was asked has happened is not known"
    return ApiError(
        ErrorCode.NODE_UNREACHABLE,
        f"node {node.node_id} cannot be reached now: {why}{outcome}",
        retryable=known,
        retry_after=2 if known else None,
    )


def late(node: NodeAddress, call: NodeCall) -> ApiError:
    """The node said nothing, or took nothing, for as long as the call may wait."""
    seconds = call.begin or call.timeout
    outcome = "" if call.again else "; whether what was asked has happened is not known"
    return ApiError(
        ErrorCode.TIMEOUT,
        f"node {node.node_id} gave no answer to {call.method} {call.path} within {seconds:g} s{outcome}",
        retryable=call.again,
        retry_after=2 if call.again else None,
    )


async def read_answer(
    node: NodeAddress, call: NodeCall, response: aiohttp.ClientResponse, most: int = MAX_ANSWER
) -> bytes:
    """All of an answer, of ``most`` bytes at most.

    Raises:
        ApiError: ``NODE_UNREACHABLE``: it broke off or is larger.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in response.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise _unreachable(node, call, f"its answer is larger than {most} bytes")
    except (aiohttp.ClientError, OSError) as error:
        raise _unreachable(node, call, f"its answer broke off ({_why(error)})") from error
    return b"".join(pieces)


async def _refusal(node: NodeAddress, call: NodeCall, response: aiohttp.ClientResponse) -> ApiError:
    """What the node's answer other than 2xx means to the gateway's own client."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            body = ErrorBody.model_validate_json(await read_answer(node, call, response, MAX_ERROR))
    except (TimeoutError, ValidationError) as error:
        return _unreachable(node, call, f"it answered {response.status} and {type(error).__name__} instead of a reason")
    except ApiError as error:
        return error
    if body.code in _PROTOCOL:
        return _unreachable(node, call, f"it answered {body.code.value}: {body.error}")
    if body.code is ErrorCode.SANDBOX_NOT_FOUND:
        # The gateway has a row for it, so it exists; its processes are gone, and the next heartbeat tells why.
        return ApiError(
            ErrorCode.SANDBOX_NOT_RUNNING, f"node {node.node_id} does not have the sandbox (any more): {body.error}"
        )
    retry_after = response.headers.get("Retry-After", "")
    return ApiError.from_body(body, float(retry_after) if retry_after.isdigit() else None)
