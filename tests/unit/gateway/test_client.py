"""The typed client: what it sends, how it reads answers, and when it retries."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from gateway import client as module
from gateway.client import GatewayClient, GatewayError, GatewayUnreachableError
from gateway.wire import limits
from gateway.wire.audit import AuditQuery
from gateway.wire.capacity import Ceilings
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import Heartbeat, JoinTokenRequest, NodeRecord, RegisterRequest
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxList, SandboxSpec
from gateway.wire.states import NodeState, SandboxState
from gateway.wire.tokens import TokenCreated, TokenRecord, TokenRequest, TokenScope
from tests.fakes.gateway import error, sandbox_record
from tests.fakes.scripted import Drop, Recorded, Reply, ScriptedServer

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TOKEN_RECORD = TokenRecord(id="t", name="n", scope=TokenScope.CLIENT, created_at=NOW)
HEARTBEAT = Heartbeat(
    sequence=1,
    boot_id="b",
    node_url="http://n",
    agent_version="1",
    total=Shape(),
    reserved=Shape(),
    used_memory_mb=1,
    used_disk_mb=1,
    runtimes=[],
    inventory=[],
)
REGISTER = RegisterRequest(node_url="http://n", instance="i", agent_version="1", total=Shape(), runtimes=[])
NODE_RECORD = NodeRecord(
    id="node-1",
    instance="i",
    pool="cpu",
    state=NodeState.READY,
    node_url="http://127.0.0.1:1",
    agent_version="1",
    total=Shape(),
    reserved=Shape(),
    runtimes=[],
    sandboxes=0,
    registered_at=NOW,
)
NODE = {"node": NODE_RECORD.model_dump(mode="json")}
BOX = sandbox_record(SandboxSpec(id="box", image="i")).model_dump(mode="json")


class Server:
    """Answers each call with the next reply, the last one for ever, and records the calls."""

    def __init__(self) -> None:
        self.seen: list[Recorded] = []
        self.replies: list[Reply] = []
        self.lock = threading.Lock()

    def __call__(self, request: Recorded) -> Reply:
        with self.lock:
            self.seen.append(request)
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with ScriptedServer(server) as running:
        yield running.url


class Sleeps(list[float]):
    """Records how long it was asked to sleep, without sleeping."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def json_reply(value: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(value).encode(), headers)


# name -> (call, method, path, answer, whether it is retried)
CALLS: dict[str, tuple[Callable[[GatewayClient], Any], str, str, Any, bool]] = {
    "register": (
        lambda c: c.register(REGISTER),
        "POST",
        "/v1/nodes/register",
        {"node_id": "n", "credential": "c", "control_token": "k", "heartbeat_seconds": 5},
        False,
    ),
    "heartbeat": (
        lambda c: c.heartbeat("n 1", HEARTBEAT),
        "POST",
        "/v1/nodes/n%201/heartbeat",
        {"heartbeat_seconds": 5},
        False,
    ),
    "join_token": (
        lambda c: c.join_token(JoinTokenRequest(instance="i", pool="p")),
        "POST",
        "/v1/nodes/join-tokens",
        {"token": "j", "instance": "i", "expires_at": NOW.isoformat()},
        False,
    ),
    "nodes": (lambda c: c.nodes(), "GET", "/v1/nodes", {"nodes": []}, True),
    "drain": (lambda c: c.drain("n", False), "POST", "/v1/nodes/n/drain", NODE, True),
    "remove_node": (
        lambda c: c.remove_node("n", machine_gone=True),
        "DELETE",
        "/v1/nodes/n",
        NODE,
        True,
    ),
    "demand": (
        lambda c: c.demand(),
        "GET",
        "/v1/demand",
        {"waiting": [], "pending_count": 0, "pending_resources": {}},
        True,
    ),
    "put_ceilings": (lambda c: c.put_ceilings(Ceilings(pools=[])), "PUT", "/v1/capacity/ceilings", {}, True),
    "audit": (
        lambda c: c.audit(AuditQuery(limit=1)),
        "GET",
        "/v1/audit",
        {"entries": [], "next_cursor": "2026-01-31.0001.jsonl:0", "more": False},
        True,
    ),
    "policy": (lambda c: c.policy("acme"), "GET", "/v1/policy", {"tenant": "acme"}, True),
    "usage": (lambda c: c.usage(by="hour"), "GET", "/v1/usage", {"items": [], "next_cursor": None}, True),
    "bundle": (
        lambda c: c.bundle(),
        "GET",
        "/v1/bundle/manifest",
        {"version": "1", "sha256": "0" * 64, "files": []},
        True,
    ),
    "tokens": (lambda c: c.tokens(), "GET", "/v1/tokens", {"tokens": []}, True),
    "create_token": (
        lambda c: c.create_token(TokenRequest(name="n", scope=TokenScope.CLIENT)),
        "POST",
        "/v1/tokens",
        TokenCreated(token="s", record=TOKEN_RECORD).model_dump(mode="json"),
        False,
    ),
    "revoke_token": (
        lambda c: c.revoke_token("a/b"),
        "DELETE",
        "/v1/tokens/a%2Fb",
        TOKEN_RECORD.model_dump(mode="json"),
        True,
    ),
    "sandboxes": (
        lambda c: list(c.sandboxes()),
        "GET",
        "/v1/sandboxes",
        SandboxList(sandboxes=[]).model_dump(mode="json"),
        True,
    ),
    "sandbox": (lambda c: c.sandbox("box"), "GET", "/v1/sandboxes/box", {"sandbox": BOX}, True),
    "delete_sandbox": (lambda c: c.delete_sandbox("box"), "DELETE", "/v1/sandboxes/box", {"deleted": False}, True),
    "health": (lambda c: c.health(), "GET", "/healthz", {"ok": True, "version": "1"}, False),
    "readiness": (lambda c: c.readiness(), "GET", "/readyz", {"ok": True}, False),
}


def test_every_public_method_is_tested() -> None:
    assert {name for name in vars(GatewayClient) if not name.startswith("_")} == set(CALLS)


@pytest.mark.parametrize("name", list(CALLS))
def test_each_method_sends_its_request(server: Server, url: str, name: str) -> None:
    call, method, path, answer, _ = CALLS[name]
    server.replies = [json_reply({**answer, "from_the_future": 1})]
    call(GatewayClient(url + "/", " secret\n"))
    (seen,) = server.seen
    assert (seen.method, seen.path) == (method, path)
    assert seen.headers["authorization"] == "Bearer secret"
    assert ("content-type" in seen.headers) == bool(seen.body)
    assert not seen.body or seen.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("known", "query"), [(False, {}), (True, {"machine_gone": "true"})])
def test_a_gone_machine_is_reported_only_when_it_is_known(
    server: Server, url: str, known: bool, query: dict[str, str]
) -> None:
    server.replies = [json_reply(NODE)]
    GatewayClient(url, "t").remove_node("n", machine_gone=known)
    assert [seen.query for seen in server.seen] == [query]


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("first", [Drop(), error(ErrorCode.BUSY)], ids=["broken", "busy"])
def test_only_idempotent_calls_are_retried(server: Server, url: str, name: str, first: Reply) -> None:
    call, _, _, answer, again = CALLS[name]
    server.replies = [first, json_reply(answer)]
    client = GatewayClient(url, "t", sleep=Sleeps())
    if again:
        call(client)
    else:
        with pytest.raises((GatewayError, GatewayUnreachableError)):
            call(client)
    assert len(server.seen) == 1 + int(again)


def test_attempts_are_bounded_and_pauses_grow(server: Server, url: str) -> None:
    server.replies = [Drop()]
    sleeps = Sleeps()
    with pytest.raises(GatewayUnreachableError):
        GatewayClient(url, "t", attempts=6, sleep=sleeps).nodes()
    assert len(server.seen) == 6
    assert [0.125 * 2**n <= pause <= 0.25 * 2**n for n, pause in enumerate(sleeps)] == [True] * 5


@pytest.mark.parametrize(("header", "pause"), [("2", 2.0), ("0", 0.125), ("nonsense", 0.125)])
def test_retry_after_is_honoured(server: Server, url: str, header: str, pause: float) -> None:
    server.replies = [error(ErrorCode.BUSY, headers={"Retry-After": header}), json_reply({"nodes": []})]
    sleeps = Sleeps()
    GatewayClient(url, "t", sleep=sleeps).nodes()
    assert sleeps[0] >= pause


def test_a_long_retry_after_is_left_to_the_caller(server: Server, url: str) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60))
    server.replies = [error(ErrorCode.BUSY, headers={"Retry-After": later})]
    with pytest.raises(GatewayError) as refused:
        GatewayClient(url, "t", sleep=Sleeps()).nodes()
    assert refused.value.retry_after is not None
    assert 50 < refused.value.retry_after <= 60
    assert len(server.seen) == 1


def test_an_error_carries_the_whole_body(server: Server, url: str) -> None:
    server.replies = [error(ErrorCode.NEVER_FITS, "too large", requested_resources=Shape(cpus=9))]
    with pytest.raises(GatewayError) as refused:
        GatewayClient(url, "t").nodes()
    refusal = refused.value
    assert (refusal.status, refusal.code, refusal.retryable, refusal.retry_after) == (
        422,
        ErrorCode.NEVER_FITS,
        False,
        None,
    )
    assert refusal.body is not None
    assert refusal.body.requested_resources == Shape(cpus=9)


@pytest.mark.parametrize(
    ("reply", "retryable"),
    [
        (Reply(502, b"<html>"), True),
        (Reply(404, b"<html>"), False),
        (Reply(302, b"", {"Location": "/elsewhere"}), False),
        (json_reply({"error": "x", "code": "of_the_future"}, 503), True),
    ],
)
def test_an_answer_of_a_proxy_is_an_error_without_a_code(
    server: Server, url: str, reply: Reply, retryable: bool
) -> None:
    server.replies = [reply]
    with pytest.raises(GatewayError) as refused:
        GatewayClient(url, "t", attempts=1).nodes()
    assert (refused.value.code, refused.value.status) == (None, reply.status)
    assert refused.value.retryable is retryable
    assert len(server.seen) == 1


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"\xff", b"<html>"])
def test_a_success_outside_the_protocol_is_an_error(server: Server, url: str, body: bytes) -> None:
    server.replies = [Reply(200, body)]
    with pytest.raises(GatewayUnreachableError):
        GatewayClient(url, "t").nodes()


def test_an_endless_answer_is_given_up(server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 3 * limits.MIB)
    server.replies = [Reply(200, chunks=(bytes(limits.MIB) for _ in range(1000)))]
    with pytest.raises(GatewayUnreachableError):
        GatewayClient(url, "t", attempts=1).nodes()


def test_all_pages_are_read(server: Server, url: str) -> None:
    server.replies = [
        json_reply({"sandboxes": [BOX], "next_cursor": "c/1"}),
        json_reply({"sandboxes": [BOX, BOX]}),
    ]
    found = list(GatewayClient(url, "t").sandboxes(labels={"a": "b=c"}, state=SandboxState.RUNNING))
    assert len(found) == 3
    assert [seen.query for seen in server.seen] == [
        {"label": "a=b=c", "state": "running"},
        {"label": "a=b=c", "state": "running", "cursor": "c/1"},
    ]


def test_a_netrc_does_not_replace_the_token(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server.replies = [json_reply({"nodes": []})]
    GatewayClient(url, "t").nodes()
    assert server.seen[0].headers["authorization"] == "Bearer t"


def test_an_empty_token_is_not_sent(server: Server, url: str) -> None:
    server.replies = [json_reply({"ok": True, "version": "1"})]
    GatewayClient(url, "").health()
    assert "authorization" not in server.seen[0].headers


def test_a_gateway_that_is_not_ready_says_why(server: Server, url: str) -> None:
    server.replies = [json_reply({"ok": False, "problems": ["the disk is full"]}, 503)]
    assert GatewayClient(url, "t").readiness().problems == ["the disk is full"]


def test_a_refused_connection_is_unreachable() -> None:
    with pytest.raises(GatewayUnreachableError):
        GatewayClient("http://127.0.0.1:9", "t", attempts=1).nodes()


def test_a_missing_answer_times_out(server: Server, url: str) -> None:
    hang = threading.Event()
    server.replies = [Reply(hang=hang)]
    try:
        with pytest.raises(GatewayUnreachableError):
            GatewayClient(url, "t", timeout=(1.0, 0.1), attempts=1).nodes()
    finally:
        hang.set()


def test_many_threads_share_a_client(server: Server, url: str) -> None:
    server.replies = [json_reply({"nodes": []})]
    client = GatewayClient(url, "t")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: client.nodes(), range(64))) == [[]] * 64
