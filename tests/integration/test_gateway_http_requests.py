"""What the gateway makes of requests, good and bad: strictness, one shape of errors, limits, ids."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.wire import limits
from gateway.wire.errors import CODE_RULES, ErrorCode
from gateway.wire.states import SandboxState
from tests.fakes.edge import CLIENT, OPERATOR, SESSION, Edge, Lines, body_of, running_edge

SPEC = {"id": "box", "image": "alpine"}
JSON = {"Content-Type": "application/json", **CLIENT}


@pytest.fixture(scope="module")
def shared() -> Iterator[Edge]:
    with running_edge() as running:
        yield running


@pytest.fixture
def edge(shared: Edge) -> Edge:
    shared.reset()
    return shared


def post(edge: Edge, path: str, body: Any, headers: dict[str, str] = CLIENT) -> requests.Response:
    return requests.post(edge.url + path, json=body, headers=headers, timeout=10)


# -- strictness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"memory_mb": "512"}, "memory_mb"),
        ({"memory_mb": True}, "memory_mb"),
        ({"memory_mb": 512.5}, "memory_mb"),
        ({"memory_mb": 10**30}, "memory_mb"),
        ({"cpus": "1"}, "cpus"),
        ({"cpus": 0}, "cpus"),
        ({"cpus": float("nan")}, "cpus"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": [1]}, "gpus"),
        ({"command": "echo hi"}, "command"),
        ({"command": ["a", 1]}, "command.1"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"1A": "x"}}, "env"),
        ({"network": "host"}, "network"),
        ({"profile": "linux_host"}, "profile"),
        ({"security": {"pids_limit": "5"}}, "security.pids_limit"),
        ({"security": {"sudo": True}}, "security.sudo"),
        ({"labels": {"a": "x\0y"}}, "labels"),
        ({"image": "a\0b"}, "image"),
        ({"id": "../etc"}, "id"),
        ({"id": "x" * 65}, "id"),
        ({"id": ""}, "id"),
        ({"image": "\ud800"}, "image"),
        ({"ssh": {"enabled": True}}, "ssh.enabled"),
        ({"command": ["x" * (limits.MAX_ARGUMENT_BYTES + 1)]}, "command[0]"),
    ],
)
def test_a_wrong_field_is_named(edge: Edge, change: dict[str, Any], field: str) -> None:
    answer = requests.post(
        f"{edge.url}/v1/sandboxes", data=json.dumps({**SPEC, **change}).encode(), headers=JSON, timeout=10
    )
    assert answer.status_code == 422, answer.text
    body = body_of(answer)
    assert body.code is ErrorCode.INVALID_REQUEST
    assert body.fields
    assert field in [item.field for item in body.fields]
    assert edge.services.calls == []


def test_a_missing_field_is_named(edge: Edge) -> None:
    body = body_of(post(edge, "/v1/sandboxes", {"id": "box"}))
    assert body.fields
    assert [item.field for item in body.fields] == ["image"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"nope",
        b"[]",
        b"null",
        b"1",
        b'"text"',
        b"\xff\xfe",
        b'{"id": "\xff"}',
        b"[" * 100_000,
        b"{}{}",
        b"\0",
    ],
)
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/sandboxes/box/exec", f"/v1/exec/{SESSION}/stdin"])
def test_what_is_no_json_object(edge: Edge, path: str, content: bytes) -> None:
    answer = requests.post(edge.url + path, data=content, headers=JSON, timeout=10)
    assert answer.status_code == 422
    assert body_of(answer).code is ErrorCode.INVALID_REQUEST
    assert edge.node.seen == []


def test_json_without_its_content_type(edge: Edge) -> None:
    answer = requests.post(f"{edge.url}/v1/sandboxes", data=json.dumps(SPEC).encode(), headers=CLIENT, timeout=10)
    assert answer.status_code == 422
    assert "Content-Type: application/json" in body_of(answer).error


def test_errors_repeat_nothing_of_what_was_sent(edge: Edge) -> None:
    answer = post(edge, "/v1/sandboxes", {**SPEC, "memory_mb": "hunter2", "env": {"KEY": ["hunter2"]}})
    assert answer.status_code == 422
    assert "hunter2" not in answer.text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON_VALUES, key=st.sampled_from(["id", "image", "command", "env", "gpus", "security", "labels", "other"]))
def test_any_json_gets_an_answer_of_ours(edge: Edge, key: str, value: Any) -> None:
    answer = requests.post(
        f"{edge.url}/v1/sandboxes", data=json.dumps({**SPEC, key: value}).encode(), headers=JSON, timeout=10
    )
    assert answer.status_code in {201, 422}
    if answer.status_code == 422:
        assert body_of(answer).fields


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_any_bytes_get_an_answer_of_ours(edge: Edge, content: bytes) -> None:
    answer = requests.post(f"{edge.url}/v1/sandboxes/box/exec", data=content, headers=JSON, timeout=10)
    assert answer.status_code == 422
    body_of(answer)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("lable=a=b", "lable"),
        ("label=nothing", "label"),
        ("label==x", "label"),
        ("state=gone", "state"),
        ("cursor=a%00b", "cursor"),
    ],
)
def test_queries_are_strict(edge: Edge, query: str, field: str) -> None:
    body = body_of(requests.get(f"{edge.url}/v1/sandboxes?{query}", headers=CLIENT, timeout=10))
    assert body.code is ErrorCode.INVALID_REQUEST
    assert body.fields
    assert field in body.fields[0].field


def test_list_query(edge: Edge) -> None:
    query = "label=a=b=c&label=d=&state=running&limit=5&cursor=x"
    assert requests.get(f"{edge.url}/v1/sandboxes?{query}", headers=CLIENT, timeout=10).status_code == 200
    asked = {"labels": {"a": "b=c", "d": ""}, "state": SandboxState.RUNNING, "limit": 5, "cursor": "x"}
    assert edge.services.calls == [("page", asked)]


def test_a_page_of_large_specs_is_cut_to_what_clients_read(edge: Edge) -> None:
    edge.services.command_of_listed = ["x" * 100_000] * 10
    answer = requests.get(f"{edge.url}/v1/sandboxes?limit=64", headers=CLIENT, timeout=30)
    assert len(answer.content) <= 8 * limits.MIB
    assert 0 < len(answer.json()["sandboxes"]) <= 8
    assert [query["limit"] for _, query in edge.services.calls] == [64, 32, 16, 8, 4][: len(edge.services.calls)]


@pytest.mark.parametrize(
    "query", ["", "path=", "path=/a%00b", "path=%ff", "path=/a&path=/b", "path=/a&mode=7", "path=" + "x" * 4096]
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_file_queries_are_strict(edge: Edge, method: str, query: str) -> None:
    answer = requests.request(method, f"{edge.url}/v1/sandboxes/box/files?{query}", headers=CLIENT, timeout=10)
    assert body_of(answer).code is ErrorCode.INVALID_REQUEST
    assert edge.node.seen == []


# -- ids in paths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment", ["a%2Fb", "a%252Fb", "..%2F..%2Fetc", "%00", "a%0Ab", "%ff", "x" * 65, "-x"])
def test_no_sandbox_has_such_an_id(edge: Edge, segment: str) -> None:
    answer = requests.get(f"{edge.url}/v1/sandboxes/{segment}", headers=CLIENT, timeout=10)
    assert body_of(answer).code is ErrorCode.SANDBOX_NOT_FOUND
    assert edge.services.calls == []


def test_percent_encoding_of_a_segment_does_not_matter(edge: Edge) -> None:
    assert requests.get(f"{edge.url}/v1/sandboxes/%62%6Fx", headers=CLIENT, timeout=10).status_code == 200
    assert edge.services.calls == [("get", "box")]


@pytest.mark.parametrize(
    "session", ["exec-1", "exec-" + "0" * 32, f"exec-{'0' * 32}.0.box", f"exec-{'0' * 32}.1.a%2Fb"]
)
def test_no_session_has_such_an_id(edge: Edge, session: str) -> None:
    answer = requests.get(f"{edge.url}/v1/exec/{session}", headers=CLIENT, timeout=10)
    assert body_of(answer).code is ErrorCode.EXEC_NOT_FOUND


# -- one shape of errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_its_status_and_shape(edge: Edge, code: ErrorCode) -> None:
    edge.services.refuse = ApiError(code, "because", sandbox_id="box", reasons=["a", "b"])
    answer = requests.get(f"{edge.url}/v1/sandboxes/box", headers=CLIENT, timeout=10)
    rule = CODE_RULES[code]
    assert answer.status_code == rule.status
    body = body_of(answer)
    assert (body.code, body.error, body.retryable) == (code, "because", rule.retryable)
    assert (body.sandbox_id, body.reasons) == ("box", ["a", "b"])
    assert ("retry-after" in answer.headers) == (rule.retryable and rule.status in {429, 503})


def test_retry_after_is_whole_seconds_rounded_up(edge: Edge) -> None:
    edge.services.refuse = ApiError(ErrorCode.NO_ROOM, "full", retry_after=1.2)
    answer = post(edge, "/v1/sandboxes", SPEC)
    assert answer.headers["retry-after"] == "2"


def test_a_bug_is_told_without_details(edge: Edge) -> None:
    edge.services.refuse = RuntimeError("password=hunter2")
    with Lines("gateway.http") as lines:
        answer = requests.get(f"{edge.url}/v1/sandboxes/box", headers={**CLIENT, "X-Request-Id": "mine-1"}, timeout=10)
        logged = lines.next()
    assert answer.status_code == 500
    body = body_of(answer)
    assert (body.code, body.retryable, body.request_id) == (ErrorCode.INTERNAL, False, "mine-1")
    assert "hunter2" not in answer.text
    assert "mine-1" in logged.getMessage()
    assert logged.exc_info


@pytest.mark.parametrize(
    "head", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /x HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n"]
)
def test_what_is_no_http(edge: Edge, head: bytes) -> None:
    host, port = edge.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(head)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    headers, _, content = answer.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 400 ")
    assert json.loads(content)["code"] == "invalid_request"


# -- request ids ------------------------------------------------------------------------------------------------------


def test_a_request_id_is_made_or_taken_over(edge: Edge) -> None:
    made = requests.get(f"{edge.url}/healthz", timeout=10).headers["x-request-id"]
    assert len(made) == 32
    given = {"X-Request-Id": "abc.DEF:1-2_3"}
    assert requests.get(f"{edge.url}/healthz", headers=given, timeout=10).headers["x-request-id"] == "abc.DEF:1-2_3"
    for bad in ["a b", "x" * 129, "é".encode()]:
        answer = requests.get(f"{edge.url}/healthz", headers={"X-Request-Id": bad}, timeout=10)
        assert len(answer.headers["x-request-id"]) == 32


def test_the_request_id_goes_to_the_node(edge: Edge) -> None:
    headers = {**CLIENT, "X-Request-Id": "trace-7"}
    requests.get(f"{edge.url}/v1/sandboxes/box/usage", headers=headers, timeout=10)
    assert edge.node.seen[0]["headers"]["x-request-id"] == "trace-7"
    assert edge.node.seen[0]["headers"]["authorization"] == "Bearer control-secret"
    assert "client-secret" not in str(edge.node.seen[0])


def test_the_access_log_is_honest(edge: Edge) -> None:
    headers = {**CLIENT, "X-Request-Id": "r1"}
    with Lines("gateway.access") as lines:
        requests.get(f"{edge.url}/v1/sandboxes/a%0Ab?secret=1", headers=headers, timeout=10)
        line = lines.next().getMessage()
    assert line.startswith("GET /v1/sandboxes/a%0Ab [r1] 404 ")
    assert line.endswith("client t1")
    assert "secret" not in line


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_large_body_gets_its_413_and_not_a_broken_pipe(edge: Edge) -> None:
    answer = requests.post(f"{edge.url}/v1/sandboxes", data=bytes(limits.MAX_JSON_BODY + 1), headers=JSON, timeout=30)
    assert answer.status_code == 413
    assert body_of(answer).code is ErrorCode.PAYLOAD_TOO_LARGE


def test_a_large_body_without_a_length_gets_its_413(edge: Edge) -> None:
    chunks = (bytes(limits.MIB) for _ in range(18))
    answer = requests.post(f"{edge.url}/v1/sandboxes", data=chunks, headers=JSON, timeout=30)
    assert answer.status_code == 413
    assert body_of(answer).code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(("headers", "status"), [({}, 401), (OPERATOR, 404)])
def test_an_early_refusal_reads_the_body_first(edge: Edge, headers: dict[str, str], status: int) -> None:
    with requests.Session() as session:
        for _ in range(2):
            answer = session.put(f"{edge.url}/v1/none", data=bytes(15 * limits.MIB), headers=headers, timeout=30)
            assert answer.status_code == status
            body_of(answer)


def test_who_waits_for_continue_gets_the_refusal_at_once(edge: Edge) -> None:
    host, port = edge.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(
            b"PUT /v1/sandboxes/box/files?path=/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert raw.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_a_head_that_does_not_come_is_not_waited_for(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.server.HEAD_SECONDS", 0.1)
    host, port = edge.url.removeprefix("http://").split(":")
    for head in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(head)
            assert raw.recv(1) == b""


def test_a_body_that_does_not_come_is_not_waited_for(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.middleware.BODY_IDLE", 0.1)
    monkeypatch.setattr("gateway.http.middleware.DRAIN_SECONDS", 0.1)
    host, port = edge.url.removeprefix("http://").split(":")
    for line in ("POST /v1/sandboxes", "PUT /v1/sandboxes/box/files?path=/x"):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            head = f"{line} HTTP/1.1\r\nHost: x\r\nX-UCloud-Sandbox-Token: client-secret\r\n"
            raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 10\r\n\r\n".encode())
            assert raw.recv(65536).startswith(b"HTTP/1.1 504 ")


# -- answers ----------------------------------------------------------------------------------------------------------


def test_create_tells_new_from_there(edge: Edge) -> None:
    new = post(edge, "/v1/sandboxes", SPEC)
    assert (new.status_code, new.json()["recovered"], new.json()["sandbox"]["spec"]["id"]) == (201, False, "box")
    there = post(edge, "/v1/sandboxes", {**SPEC, "labels": {"there": "yes"}})
    assert (there.status_code, there.json()["recovered"]) == (200, True)


@pytest.mark.parametrize(("state", "status"), [(None, 200), (SandboxState.DELETED, 200), (SandboxState.DELETING, 202)])
def test_delete_answers(edge: Edge, state: SandboxState | None, status: int) -> None:
    edge.services.deleted_state = state
    answer = requests.delete(f"{edge.url}/v1/sandboxes/box", headers=CLIENT, timeout=10)
    assert answer.status_code == status
    deleted = answer.json()["deleted"]
    assert deleted is False if state is None else deleted["state"] == state


def test_health_and_readiness(edge: Edge) -> None:
    assert requests.get(f"{edge.url}/healthz", timeout=10).json()["ok"] is True
    assert requests.get(f"{edge.url}/readyz", timeout=10).json() == {"ok": True, "problems": []}
    edge.services.refuse = ApiError(ErrorCode.DISK_FULL, "the disk is full")
    answer = requests.get(f"{edge.url}/readyz", timeout=10)
    assert (answer.status_code, answer.json()) == (503, {"ok": False, "problems": ["the disk is full"]})


def test_no_answer_is_compressed_or_redirected(edge: Edge) -> None:
    headers = {**CLIENT, "Accept-Encoding": "gzip, deflate"}
    answer = requests.get(f"{edge.url}/v1/sandboxes", headers=headers, timeout=10, allow_redirects=False)
    assert "content-encoding" not in answer.headers
    slash = requests.get(f"{edge.url}/v1/sandboxes/", headers=headers, timeout=10, allow_redirects=False)
    assert slash.status_code == 404
