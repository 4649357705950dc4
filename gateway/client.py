"""The typed client of the gateway's operator and node API, for the autoscaler, the node agent and the command line.

Blocking, over `requests`, and usable from several threads.  It loads no web framework.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar
from urllib.parse import quote

import requests
from pydantic import ValidationError

from gateway.wire import limits
from gateway.wire.base import WireModel
from gateway.wire.capacity import Ceilings, Demand
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.nodes import (
    BundleManifest,
    DrainRequest,
    Heartbeat,
    HeartbeatAnswer,
    JoinToken,
    JoinTokenRequest,
    NodeEnvelope,
    NodeList,
    NodeRecord,
    RegisterAnswer,
    RegisterRequest,
)
from gateway.wire.sandboxes import DeleteAnswer, SandboxEnvelope, SandboxList, SandboxRecord
from gateway.wire.states import SandboxState
from gateway.wire.system import GatewayHealth, GatewayReadiness
from gateway.wire.tokens import TokenCreated, TokenList, TokenRecord, TokenRequest

Model = TypeVar("Model", bound=WireModel)

CONNECT_TIMEOUT: Final = 3.0
READ_TIMEOUT: Final = 10.0
ATTEMPTS: Final = 4
FIRST_BACKOFF: Final = 0.25
MAX_BACKOFF: Final = 5.0
MAX_ANSWER: Final = 64 * limits.MIB
# What a proxy in front of a gateway that restarts answers, in its own words.
PROXY_STATUSES: Final = frozenset({502, 503, 504})
PREVIEW: Final = 200


class GatewayUnreachableError(Exception):
    """No answer came: refused, reset, timed out, or no such host.  What was asked may or may not have happened."""


class GatewayError(Exception):
    """The gateway answered that it did not do what was asked.

    Attributes:
        code: what went wrong; ``None`` when the answer was not in the gateway's own shape, as a proxy's would be.
        status: the HTTP status.
        retryable: whether the same call may succeed later without any change.
        retry_after: seconds to wait before that, when the gateway said so.
        body: the whole error.
    """

    def __init__(
        self, message: str, *, status: int, body: ErrorBody | None, retryable: bool, retry_after: float | None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.code: ErrorCode | None = body.code if body else None
        self.retryable = retryable
        self.retry_after = retry_after


class _PerThread(threading.local):
    """A `requests.Session` is not promised to be safe between threads, so each has its own connections."""

    def __init__(self) -> None:
        self.session = requests.Session()


class _Bearer(requests.auth.AuthBase):
    """Puts the token on each request.  An auth object also keeps ``~/.netrc`` from replacing it."""

    def __init__(self, token: str) -> None:
        self._value = f"Bearer {token}" if token else None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value is not None:
            request.headers["Authorization"] = self._value
        return request


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` as seconds from now, whichever of its two forms it has; never negative."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def _why(error: BaseException) -> str:
    """What the operating system said, if it did; else what the library says."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__cause__ or found.__context__
    return str(error)


def _error_of(response: requests.Response, content: bytes) -> GatewayError:
    """The error that an answer other than 2xx stands for."""
    retry_after = _seconds(response.headers.get("Retry-After"))
    try:
        body = ErrorBody.model_validate_json(content)
    except ValidationError:
        preview = content[:PREVIEW].decode(errors="replace").strip()
        return GatewayError(
            f"{response.url} answered {response.status_code}, not in the gateway's own words: {preview!r}",
            status=response.status_code,
            body=None,
            retryable=response.status_code in PROXY_STATUSES,
            retry_after=retry_after,
        )
    return GatewayError(
        body.error, status=response.status_code, body=body, retryable=body.retryable, retry_after=retry_after
    )


class GatewayClient:
    """The gateway as its operators and nodes use it.

    Idempotent calls are tried up to ``attempts`` times, with a growing random pause that honours ``Retry-After``;
    the others exactly once.

    Args:
        url: the gateway's origin; a path below which it is mounted is kept.
        token: bearer of every call; empty sends none, which is enough for health.
        timeout: seconds for connecting, and between two pieces of an answer.
        attempts: most tries of an idempotent call.
        sleep: waits that many seconds; tests and stoppable daemons bring their own.

    Raises:
        GatewayError: (every call) the gateway answered and refused.
        GatewayUnreachableError: (every call) no answer came.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: tuple[float, float] = (CONNECT_TIMEOUT, READ_TIMEOUT),
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self._auth = _Bearer(token.strip())
        self._timeout = timeout
        self._attempts = attempts
        self._sleep = sleep
        self._local = _PerThread()

    # -- nodes about themselves ---------------------------------------------------------------------------------------

    def register(self, request: RegisterRequest) -> RegisterAnswer:
        """Introduces a node.  The client's token is the join token, which is used up by this."""
        return self._once("POST", "/v1/nodes/register", RegisterAnswer, body=request)

    def heartbeat(self, node_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Tells the complete truth of one node.  Not retried: the next heartbeat is the better one."""
        return self._once("POST", f"/v1/nodes/{quote(node_id, safe='')}/heartbeat", HeartbeatAnswer, body=heartbeat)

    # -- operators ----------------------------------------------------------------------------------------------------

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        """A token with which one instance may register once."""
        return self._once("POST", "/v1/nodes/join-tokens", JoinToken, body=request)

    def nodes(self) -> list[NodeRecord]:
        """All nodes that are not gone."""
        return self._retried("GET", "/v1/nodes", NodeList).nodes

    def drain(self, node_id: str, draining: bool = True) -> NodeRecord:
        """Closes a node for new sandboxes, or opens it again."""
        path = f"/v1/nodes/{quote(node_id, safe='')}/drain"
        return self._retried("POST", path, NodeEnvelope, body=DrainRequest(draining=draining)).node

    def remove_node(self, node_id: str, *, machine_gone: bool = False) -> NodeRecord:
        """Forgets a node that holds nothing.  A second try after a lost answer finds it gone: ``node_not_found``.

        Args:
            node_id: the node.
            machine_gone: the cloud has proved that its machine is no more: once it is silent, what it held is lost.
        """
        query = [("machine_gone", "true")] if machine_gone else []
        return self._retried("DELETE", f"/v1/nodes/{quote(node_id, safe='')}", NodeEnvelope, query=query).node

    def demand(self) -> Demand:
        """What waits for capacity now."""
        return self._retried("GET", "/v1/demand", Demand)

    def bundle(self) -> BundleManifest:
        """What a machine needs to become a node."""
        return self._retried("GET", "/v1/bundle/manifest", BundleManifest)

    def put_ceilings(self, ceilings: Ceilings) -> None:
        """Tells the largest shapes that could be had; replaces what was told before."""
        self._attempt_often("PUT", "/v1/capacity/ceilings", body=ceilings)

    def tokens(self) -> list[TokenRecord]:
        """All tokens, oldest first, without their secrets."""
        return self._retried("GET", "/v1/tokens", TokenList).tokens

    def create_token(self, request: TokenRequest) -> TokenCreated:
        """A new token; the only answer that carries its secret."""
        return self._once("POST", "/v1/tokens", TokenCreated, body=request)

    def revoke_token(self, token_id: str) -> TokenRecord:
        """Ends a token at once."""
        return self._retried("DELETE", f"/v1/tokens/{quote(token_id, safe='')}", TokenRecord)

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    def sandboxes(
        self, *, labels: Mapping[str, str] | None = None, state: SandboxState | None = None
    ) -> Iterator[SandboxRecord]:
        """All sandboxes that carry all of ``labels`` and are in ``state``, oldest first, read page by page."""
        query: list[tuple[str, str]] = [("label", f"{key}={value}") for key, value in (labels or {}).items()]
        if state is not None:
            query.append(("state", state.value))
        cursor: str | None = None
        while True:
            page_query = [*query, ("cursor", cursor)] if cursor else query
            page = self._retried("GET", "/v1/sandboxes", SandboxList, query=page_query)
            yield from page.sandboxes
            cursor = page.next_cursor
            if not cursor:
                return

    def sandbox(self, sandbox_id: str) -> SandboxRecord:
        """One sandbox."""
        return self._retried("GET", f"/v1/sandboxes/{quote(sandbox_id, safe='')}", SandboxEnvelope).sandbox

    def delete_sandbox(self, sandbox_id: str) -> DeleteAnswer:
        """Deletes a sandbox, in every state; ``deleted`` is false when there was none."""
        return self._retried("DELETE", f"/v1/sandboxes/{quote(sandbox_id, safe='')}", DeleteAnswer)

    # -- health -------------------------------------------------------------------------------------------------------

    def health(self) -> GatewayHealth:
        """Whether the process answers.  Not retried."""
        return self._once("GET", "/healthz", GatewayHealth)

    def readiness(self) -> GatewayReadiness:
        """Whether it can serve; ``ok`` is false, with the problems, while it cannot.  Not retried."""
        response, content = self._send("GET", "/readyz", None, ())
        try:
            return GatewayReadiness.model_validate_json(content)
        except ValidationError:
            raise _error_of(response, content) from None

    # -- transport ----------------------------------------------------------------------------------------------------

    def _once(self, method: str, path: str, answer: type[Model], *, body: WireModel | None = None) -> Model:
        return self._parsed(path, answer, self._attempt(method, path, body, ()))

    def _retried(
        self,
        method: str,
        path: str,
        answer: type[Model],
        *,
        body: WireModel | None = None,
        query: list[tuple[str, str]] | tuple[()] = (),
    ) -> Model:
        return self._parsed(path, answer, self._attempt_often(method, path, body=body, query=query))

    def _parsed(self, path: str, answer: type[Model], content: bytes) -> Model:
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise GatewayUnreachableError(
                f"{self.url}{path} answered something that is no {answer.__name__}"
            ) from error

    def _attempt_often(
        self,
        method: str,
        path: str,
        *,
        body: WireModel | None = None,
        query: list[tuple[str, str]] | tuple[()] = (),
    ) -> bytes:
        for attempt in range(self._attempts - 1):
            pause = random.uniform(0.5, 1.0) * min(MAX_BACKOFF, FIRST_BACKOFF * 2**attempt)  # noqa: S311 - no secret
            try:
                return self._attempt(method, path, body, query)
            except GatewayUnreachableError:
                self._sleep(pause)
            except GatewayError as error:
                if not error.retryable or (error.retry_after or 0.0) > MAX_BACKOFF:
                    raise
                self._sleep(max(pause, error.retry_after or 0.0))
        return self._attempt(method, path, body, query)

    def _attempt(
        self, method: str, path: str, body: WireModel | None, query: list[tuple[str, str]] | tuple[()]
    ) -> bytes:
        response, content = self._send(method, path, body, query)
        if not 200 <= response.status_code < 300:
            raise _error_of(response, content)
        return content

    def _send(
        self, method: str, path: str, body: WireModel | None, query: list[tuple[str, str]] | tuple[()]
    ) -> tuple[requests.Response, bytes]:
        """One exchange, read whole and bounded."""
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            with self._local.session.request(
                method,
                self.url + path,
                params=list(query),
                data=None if body is None else body.model_dump_json().encode(),
                headers=headers,
                auth=self._auth,
                timeout=self._timeout,
                allow_redirects=False,
                stream=True,
            ) as response:
                return response, self._bounded(response)
        except requests.RequestException as error:
            raise GatewayUnreachableError(f"the gateway at {self.url} gave no answer: {_why(error)}") from error

    def _bounded(self, response: requests.Response) -> bytes:
        pieces: list[bytes] = []
        size = 0
        for piece in response.iter_content(limits.MIB):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER:
                raise GatewayUnreachableError(f"the answer of {response.url} is larger than {MAX_ANSWER} bytes")
        return b"".join(pieces)
