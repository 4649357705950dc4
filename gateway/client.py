"""The typed client of the gateway's operator and node API, for the autoscaler, the node agent and the command line.

Blocking, over `requests`, and usable from several threads.  It loads no web framework.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import requests
from pydantic import ValidationError

from gateway.wire import limits
from gateway.wire.audit import AuditPage, AuditQuery
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
from gateway.wire.system import GatewayHealth, GatewayReadiness, PolicyAnswer
from gateway.wire.tenants import DEFAULT_TENANT
from gateway.wire.tokens import TokenCreated, TokenList, TokenRecord, TokenRequest
from gateway.wire.usage import UsagePage

Model = TypeVar("Model", bound=WireModel)

CONNECT_TIMEOUT: Final = 3.0
READ_TIMEOUT: Final = 10.0
ATTEMPTS: Final = 4
FIRST_BACKOFF: Final = 0.25
MAX_BACKOFF: Final = 5.0
MAX_ANSWER: Final = 64 * limits.MIB
# Answers of a proxy in front of a gateway that restarts, in the proxy's own words.
PROXY_STATUSES: Final = frozenset({502, 503, 504})
PREVIEW: Final = 200


class GatewayUnreachableError(Exception):
    """No answer came: refused, reset, timed out, or no such host.  Whether the call took effect is not known."""


class GatewayError(Exception):
    """The gateway refused a call.

    Attributes:
        code: what went wrong; ``None`` when the answer is not in the gateway's own shape, such as a proxy's.
        status: the HTTP status.
        retryable: whether the same call may succeed later unchanged.
        retry_after: seconds to wait before that, if the gateway said so.
        body: the whole error, with ``code``.
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


class GatewayClient:
    """The gateway as its operators and nodes use it.

    Idempotent calls are tried up to ``attempts`` times, with a growing random pause that honours ``Retry-After``;
    the others exactly once.

    Args:
        url: the gateway's origin; a path below which it is mounted is kept.
        token: bearer token of every call; empty sends none, which is enough for health.
        timeout: seconds for connecting, and between two chunks of an answer.
        attempts: most attempts of an idempotent call.
        sleep: waits that many seconds; tests and stoppable daemons bring their own.

    Raises:
        GatewayError: (every call) the gateway refused.
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
        """Register a node.  The client's token is the join token, which this uses up."""
        return self._once("POST", "/v1/nodes/register", RegisterAnswer, body=request)

    def heartbeat(self, node_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Report the complete inventory of one node.  Not retried: the next heartbeat is newer."""
        return self._once("POST", f"/v1/nodes/{quote(node_id, safe='')}/heartbeat", HeartbeatAnswer, body=heartbeat)

    # -- operators ----------------------------------------------------------------------------------------------------

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        """Create a token with which one instance may register once."""
        return self._once("POST", "/v1/nodes/join-tokens", JoinToken, body=request)

    def nodes(self) -> list[NodeRecord]:
        """Return all nodes that are not gone."""
        return self._retried("GET", "/v1/nodes", NodeList).nodes

    def drain(self, node_id: str, draining: bool = True) -> NodeRecord:
        """Close a node to new sandboxes, or open it again."""
        path = f"/v1/nodes/{quote(node_id, safe='')}/drain"
        return self._retried("POST", path, NodeEnvelope, body=DrainRequest(draining=draining)).node

    def remove_node(self, node_id: str, *, machine_gone: bool = False) -> NodeRecord:
        """Remove a node that holds nothing.  A retry after a lost answer finds it gone: ``node_not_found``.

        Args:
            node_id: the node.
            machine_gone: the provider has proved that its machine no longer exists; once it is silent, what it held is
                lost.
        """
        query = [("machine_gone", "true")] if machine_gone else []
        return self._retried("DELETE", f"/v1/nodes/{quote(node_id, safe='')}", NodeEnvelope, query=query).node

    def demand(self) -> Demand:
        """Return what waits for capacity now."""
        return self._retried("GET", "/v1/demand", Demand)

    def bundle(self) -> BundleManifest:
        """Return the list of files that a machine needs to become a node."""
        return self._retried("GET", "/v1/bundle/manifest", BundleManifest)

    def put_ceilings(self, ceilings: Ceilings) -> None:
        """Set the largest node that each pool can ever hold; replaces all earlier ceilings."""
        self._attempt_repeatedly("PUT", "/v1/capacity/ceilings", body=ceilings)

    def tokens(self) -> list[TokenRecord]:
        """Return all tokens, oldest first, without their secrets."""
        return self._retried("GET", "/v1/tokens", TokenList).tokens

    def create_token(self, request: TokenRequest) -> TokenCreated:
        """Create a token; only this answer carries its secret."""
        return self._once("POST", "/v1/tokens", TokenCreated, body=request)

    def revoke_token(self, token_id: str) -> TokenRecord:
        """Revoke a token at once."""
        return self._retried("DELETE", f"/v1/tokens/{quote(token_id, safe='')}", TokenRecord)

    def audit(self, query: AuditQuery) -> AuditPage:
        """Return one page of what was done and refused."""
        given = query.model_dump(mode="json", exclude_none=True)
        return self._retried("GET", "/v1/audit", AuditPage, query=[(name, str(value)) for name, value in given.items()])

    def usage(self, **query: str) -> UsagePage:
        """Return one page of what was used; ``query`` as in ``GET /v1/usage``."""
        return self._retried("GET", "/v1/usage", UsagePage, query=list(query.items()))

    def policy(self, tenant: str) -> PolicyAnswer:
        """Return what holds for a tenant's clients."""
        return self._retried("GET", "/v1/policy", PolicyAnswer, query=[("tenant", tenant)])

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    def sandboxes(
        self, *, labels: Mapping[str, str] | None = None, state: SandboxState | None = None
    ) -> Iterator[SandboxRecord]:
        """Yield all sandboxes that carry all of ``labels`` and are in ``state``, oldest first, read page by page."""
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
        """Return one sandbox."""
        return self._retried("GET", f"/v1/sandboxes/{quote(sandbox_id, safe='')}", SandboxEnvelope).sandbox

    def delete_sandbox(self, sandbox_id: str) -> DeleteAnswer:
        """Delete a sandbox, in any state; ``deleted`` is false when there was none."""
        return self._retried("DELETE", f"/v1/sandboxes/{quote(sandbox_id, safe='')}", DeleteAnswer)

    # -- health -------------------------------------------------------------------------------------------------------

    def health(self) -> GatewayHealth:
        """Return the health of the gateway.  Not retried."""
        return self._once("GET", "/healthz", GatewayHealth)

    def readiness(self) -> GatewayReadiness:
        """Return whether the gateway can serve, with its problems while it cannot.  Not retried."""
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
        return self._parsed(path, answer, self._attempt_repeatedly(method, path, body=body, query=query))

    def _parsed(self, path: str, answer: type[Model], content: bytes) -> Model:
        with _translated(self.url):
            return answer.model_validate_json(content)

    def _attempt_repeatedly(
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
        """Return one answer and its body, which is read whole and bounded."""
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body is not None else {})
        with (
            _translated(self.url),
            self._local.session.request(
                method,
                self.url + path,
                params=list(query),
                data=None if body is None else body.model_dump_json().encode(),
                headers=headers,
                auth=self._auth,
                timeout=self._timeout,
                allow_redirects=False,
                stream=True,
            ) as response,
        ):
            return response, _bounded(response)


def _bounded(response: requests.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    for chunk in response.iter_content(limits.MIB):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER:
            raise GatewayUnreachableError(f"the answer of {response.url} is larger than {MAX_ANSWER} bytes")
    return b"".join(chunks)


class _PerThread(threading.local):
    """One session a thread: a `requests.Session` is not documented to be thread-safe."""

    def __init__(self) -> None:
        self.session = requests.Session()


class _Bearer(requests.auth.AuthBase):
    """Put the token on each request.  An auth object also keeps ``~/.netrc`` from replacing it."""

    def __init__(self, token: str) -> None:
        self._value = f"Bearer {token}" if token else None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value is not None:
            request.headers["Authorization"] = self._value
        return request


# -- the service on this machine --------------------------------------------------------------------------------------


def known_tenants(gateway: GatewayClient) -> set[str]:
    """Return the tenants of all tokens, and those with tables in the policy file."""
    return {*gateway.policy(DEFAULT_TENANT).tenants, *(record.tenant for record in gateway.tokens())}


def local_url(root: Path) -> str | None:
    """Return the URL of the `sandboxes up` that runs over the state directory ``root``, as far as we may read it."""
    return _first_line(root / "url")


def local_token(root: Path, url: str, scope: str) -> str | None:
    """Return the token that a `sandboxes up` over ``root`` left for the service at ``url``, and for no other."""
    return _first_line(root / "tokens" / scope) if local_url(root) == url.rstrip("/") else None


def _first_line(path: Path) -> str | None:
    """Return the one line of a file; ``None`` where it is missing, empty or closed to us."""
    try:
        return path.read_text().strip().rstrip("/") or None
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None


# -- errors -----------------------------------------------------------------------------------------------------------

# What went wrong, by the exception of a library.
FAILURES: Final[dict[type[Exception], str]] = {
    requests.RequestException: "gave no answer: {cause}",
    ValidationError: "gave an answer that is no {cause}",
}


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Raise `GatewayUnreachableError` for an exception of `FAILURES` in the block."""
    try:
        yield
    except tuple(FAILURES) as error:
        (problem,) = {text for kind, text in FAILURES.items() if isinstance(error, kind)}
        raise GatewayUnreachableError(f"the gateway at {url} {problem.format(cause=_cause(error))}") from error


def _error_of(response: requests.Response, content: bytes) -> GatewayError:
    """Return the error for an answer other than 2xx."""
    retry_after = _seconds(response.headers.get("Retry-After"))
    try:
        body = ErrorBody.model_validate_json(content)
    except ValidationError:
        preview = content[:PREVIEW].decode(errors="replace").strip()
        return GatewayError(
            f"{response.url} answered {response.status_code}, but not as a gateway does: {preview!r}",
            status=response.status_code,
            body=None,
            retryable=response.status_code in PROXY_STATUSES,
            retry_after=retry_after,
        )
    return GatewayError(
        body.error, status=response.status_code, body=body, retryable=body.retryable, retry_after=retry_after
    )


def _seconds(header: str | None) -> float | None:
    """Return ``Retry-After`` as seconds from now, in either of its two forms; never negative."""
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


def _cause(error: BaseException) -> str:
    """Return the expected model, or the operating system's words if there are any, or the library's."""
    if isinstance(error, ValidationError):
        return error.title  # its text repeats the input, which may hold a secret
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__cause__ or found.__context__
    return str(error)
