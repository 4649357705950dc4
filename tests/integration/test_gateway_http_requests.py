"""What the gateway makes of requests, good and bad: strictness, one shape of errors, limits, ids."""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.client import GatewayClient
from gateway.errors import ApiError
from gateway.wire import limits
from gateway.wire.capacity import Ceilings
from gateway.wire.errors import ErrorCode
from gateway.wire.tokens import TokenScope
from tests.integration.gateway_http import SESSION, SPEC, HttpGateway, LogLines, body_of, running_gateway
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        # Without any pool to wait for, a shape beyond the node's is refused at once.
        GatewayClient(running.url, running.secrets[TokenScope.OPERATOR]).put_ceilings(Ceilings(pools=[]))
        yield running


@pytest.fixture
def gateway(shared: HttpGateway) -> HttpGateway:
    shared.new_script()
    return shared


def post_json(gateway: HttpGateway, path: str, content: bytes, **headers: str) -> requests.Response:
    """Post ``content`` as it is, declared as JSON."""
    all_headers = {"Content-Type": "application/json", **gateway.client, **headers}
    return gateway.call("POST", path, data=content, headers=all_headers)


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
def test_a_wrong_field_is_named(gateway: HttpGateway, change: dict[str, Any], field: str) -> None:
    answer = post_json(gateway, "/v1/sandboxes", json.dumps({**SPEC, "id": "new", **change}).encode())
    assert answer.status_code == 422, answer.text
    body = body_of(answer)
    assert body.code is ErrorCode.INVALID_REQUEST
    assert body.fields
    assert field in [item.field for item in body.fields]
    assert gateway.script.orders == []


def test_a_missing_field_is_named(gateway: HttpGateway) -> None:
    body = body_of(gateway.call("POST", "/v1/sandboxes", json={"id": "box"}))
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
def test_a_body_that_is_not_a_json_object_is_refused(gateway: HttpGateway, path: str, content: bytes) -> None:
    answer = post_json(gateway, path, content)
    assert answer.status_code == 422
    assert body_of(answer).code is ErrorCode.INVALID_REQUEST
    assert gateway.script.calls + gateway.script.orders == []


def test_json_needs_its_content_type(gateway: HttpGateway) -> None:
    answer = gateway.call("POST", "/v1/sandboxes", data=json.dumps(SPEC).encode())
    assert answer.status_code == 422
    assert "Content-Type: application/json" in body_of(answer).error


def test_errors_never_repeat_the_input(gateway: HttpGateway) -> None:
    spec = {**SPEC, "memory_mb": "hunter2", "env": {"KEY": ["hunter2"]}}
    answer = gateway.call("POST", "/v1/sandboxes", json=spec)
    assert answer.status_code == 422
    assert "hunter2" not in answer.text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON_VALUES, key=st.sampled_from(["id", "image", "command", "env", "gpus", "security", "labels", "other"]))
def test_any_json_value_gets_a_typed_answer(gateway: HttpGateway, key: str, value: Any) -> None:
    answer = post_json(gateway, "/v1/sandboxes", json.dumps({**SPEC, key: value}).encode())
    assert answer.status_code in {200, 201, 409, 422}
    if answer.status_code >= 400:
        body = body_of(answer)
        assert body.code in {ErrorCode.INVALID_REQUEST, ErrorCode.SPEC_CONFLICT, ErrorCode.NEVER_FITS}
        assert (body.code is ErrorCode.INVALID_REQUEST) == bool(body.fields)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_any_bytes_get_a_typed_answer(gateway: HttpGateway, content: bytes) -> None:
    answer = post_json(gateway, "/v1/sandboxes/box/exec", content)
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
def test_queries_are_strict(gateway: HttpGateway, query: str, field: str) -> None:
    body = body_of(gateway.call("GET", f"/v1/sandboxes?{query}"))
    assert body.code is ErrorCode.INVALID_REQUEST
    assert body.fields
    assert field in body.fields[0].field


def test_a_list_is_filtered_by_labels_and_state(gateway: HttpGateway) -> None:
    gateway.create("both", labels={"a": "b=c", "d": ""})
    gateway.create("one", labels={"a": "b=c"})

    def found(query: str) -> list[str]:
        return [sandbox["id"] for sandbox in gateway.call("GET", f"/v1/sandboxes?{query}").json()["sandboxes"]]

    assert found("label=a=b=c&label=d=&state=running") == ["both"]
    assert found("label=a=b=c") == ["both", "one"]
    assert found("label=a=b=c&state=paused") == []


def test_pages_follow_one_another(gateway: HttpGateway) -> None:
    names = [f"page-{n}" for n in range(3)]
    for name in names:
        gateway.create(name, labels={"of": "pages"})
    first = gateway.call("GET", "/v1/sandboxes?label=of=pages&limit=2").json()
    second = gateway.call("GET", f"/v1/sandboxes?label=of=pages&limit=2&cursor={first['next_cursor']}").json()
    assert [sandbox["id"] for page in (first, second) for sandbox in page["sandboxes"]] == names
    assert second["next_cursor"] is None


def test_a_page_of_large_specs_is_cut_to_what_clients_read(gateway: HttpGateway) -> None:
    for n in range(10):
        gateway.create(f"large-{n}", command=["x" * 100_000] * 10, labels={"size": "large"})
    read: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = f"label=size=large&limit=64{f'&cursor={cursor}' if cursor else ''}"
        answer = gateway.call("GET", f"/v1/sandboxes?{query}")
        assert len(answer.content) <= 8 * limits.MIB
        assert answer.json()["sandboxes"]
        read += [sandbox["id"] for sandbox in answer.json()["sandboxes"]]
        cursor = answer.json()["next_cursor"]
    assert read == [f"large-{n}" for n in range(10)]


@pytest.mark.parametrize(
    "query", ["", "path=", "path=/a%00b", "path=%ff", "path=/a&path=/b", "path=/a&mode=7", "path=" + "x" * 4096]
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_file_queries_are_strict(gateway: HttpGateway, method: str, query: str) -> None:
    answer = gateway.call(method, f"/v1/sandboxes/box/files?{query}")
    assert body_of(answer).code is ErrorCode.INVALID_REQUEST
    assert gateway.script.calls == []


# -- ids in paths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment", ["a%2Fb", "a%252Fb", "..%2F..%2Fetc", "%00", "a%0Ab", "%ff", "x" * 65, "-x"])
def test_an_impossible_sandbox_id_is_not_found(gateway: HttpGateway, segment: str) -> None:
    answer = gateway.call("GET", f"/v1/sandboxes/{segment}")
    assert body_of(answer).code is ErrorCode.SANDBOX_NOT_FOUND


def test_percent_encoding_of_a_segment_makes_no_difference(gateway: HttpGateway) -> None:
    assert gateway.call("GET", "/v1/sandboxes/%62%6Fx").json()["sandbox"]["id"] == "box"


@pytest.mark.parametrize(
    "session", ["exec-1", "exec-" + "0" * 32, f"exec-{'0' * 32}.0.box", f"exec-{'0' * 32}.1.a%2Fb"]
)
def test_an_impossible_session_id_is_not_found(gateway: HttpGateway, session: str) -> None:
    answer = gateway.call("GET", f"/v1/exec/{session}")
    assert body_of(answer).code is ErrorCode.EXEC_NOT_FOUND


# -- one shape of errors ----------------------------------------------------------------------------------------------


def test_a_bug_is_reported_without_details(gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(sandbox_id: str) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(gateway.services.sandboxes, "get", fails)
    with LogLines("gateway.http") as lines:
        answer = gateway.call("GET", "/v1/sandboxes/box", headers={**gateway.client, "X-Request-Id": "mine-1"})
        logged = lines.next("mine-1")
    assert answer.status_code == 500
    body = body_of(answer)
    assert (body.code, body.retryable, body.request_id) == (ErrorCode.INTERNAL, False, "mine-1")
    assert "hunter2" not in answer.text
    assert logged.exc_info


@pytest.mark.parametrize(
    "head", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /x HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n"]
)
def test_malformed_http_gets_a_typed_400(gateway: HttpGateway, head: bytes) -> None:
    with socket.create_connection(gateway.address, timeout=10) as raw:
        raw.sendall(head)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    headers, _, content = answer.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 400 ")
    assert json.loads(content)["code"] == "invalid_request"


# -- request ids ------------------------------------------------------------------------------------------------------


def test_a_request_id_is_generated_or_adopted(gateway: HttpGateway) -> None:
    made = requests.get(f"{gateway.url}/healthz", timeout=10).headers["x-request-id"]
    assert len(made) == 32
    given = {"X-Request-Id": "abc.DEF:1-2_3"}
    assert requests.get(f"{gateway.url}/healthz", headers=given, timeout=10).headers["x-request-id"] == "abc.DEF:1-2_3"
    for bad in ["a b", "x" * 129, "é".encode()]:
        answer = requests.get(f"{gateway.url}/healthz", headers={"X-Request-Id": bad}, timeout=10)
        assert len(answer.headers["x-request-id"]) == 32


def test_the_request_id_goes_to_the_node(gateway: HttpGateway) -> None:
    gateway.call("GET", "/v1/sandboxes/box/usage", headers={**gateway.client, "X-Request-Id": "trace-7"})
    (call,) = gateway.script.calls
    assert call.headers["x-request-id"] == "trace-7"
    assert call.headers["authorization"] == f"Bearer {gateway.login.control_token}"
    assert gateway.secrets[TokenScope.CLIENT] not in str(call)


def test_the_access_log_is_honest(gateway: HttpGateway) -> None:
    with LogLines("gateway.access") as lines:
        gateway.call("GET", "/v1/sandboxes/a%0Ab?secret=1", headers={**gateway.client, "X-Request-Id": "r1"})
        line = lines.next("[r1]").getMessage()
    assert line.startswith("GET /v1/sandboxes/a%0Ab [r1] 404 ")
    assert " client " in line
    assert "secret" not in line


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_large_body_gets_a_413_and_not_a_broken_pipe(gateway: HttpGateway) -> None:
    answer = post_json(gateway, "/v1/sandboxes", bytes(limits.MAX_JSON_BODY + 1))
    assert answer.status_code == 413
    assert body_of(answer).code is ErrorCode.PAYLOAD_TOO_LARGE


def test_a_large_body_without_a_length_gets_a_413(gateway: HttpGateway) -> None:
    chunks = (bytes(limits.MIB) for _ in range(18))
    answer = gateway.call("POST", "/v1/sandboxes", data=chunks)
    assert answer.status_code == 413
    assert body_of(answer).code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(("known", "status"), [(False, 401), (True, 404)])
def test_an_early_refusal_reads_the_body_first(gateway: HttpGateway, known: bool, status: int) -> None:
    headers = gateway.operator if known else {}
    with requests.Session() as session:
        for _ in range(2):
            answer = session.put(f"{gateway.url}/v1/none", data=bytes(15 * limits.MIB), headers=headers, timeout=30)
            assert answer.status_code == status
            body_of(answer)


def test_a_client_that_waits_for_continue_is_refused_at_once(gateway: HttpGateway) -> None:
    with socket.create_connection(gateway.address, timeout=10) as raw:
        raw.sendall(
            b"PUT /v1/sandboxes/box/files?path=/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert raw.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_a_stalled_request_head_is_cut_off(gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.server.HEAD_SECONDS", 0.1)
    for head in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"):
        with socket.create_connection(gateway.address, timeout=10) as raw:
            raw.sendall(head)
            assert raw.recv(1) == b""


def test_a_stalled_body_times_out(gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.middleware.BODY_IDLE", 0.1)
    monkeypatch.setattr("gateway.http.middleware.DRAIN_SECONDS", 0.1)
    for line in ("POST /v1/sandboxes", "PUT /v1/sandboxes/box/files?path=/x"):
        with socket.create_connection(gateway.address, timeout=10) as raw:
            head = f"{line} HTTP/1.1\r\nHost: x\r\nX-UCloud-Sandbox-Token: {gateway.secrets[TokenScope.CLIENT]}\r\n"
            raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 10\r\n\r\n".encode())
            assert raw.recv(65536).startswith(b"HTTP/1.1 504 ")


# -- answers ----------------------------------------------------------------------------------------------------------


def test_a_create_says_whether_the_sandbox_is_new(gateway: HttpGateway) -> None:
    new = gateway.call("POST", "/v1/sandboxes", json={**SPEC, "id": "new"})
    assert (new.status_code, new.json()["recovered"], new.json()["sandbox"]["spec"]["id"]) == (201, False, "new")
    again = gateway.call("POST", "/v1/sandboxes", json={**SPEC, "id": "new"})
    assert (again.status_code, again.json()["recovered"]) == (200, True)


def test_a_delete_says_what_was_deleted(gateway: HttpGateway) -> None:
    gateway.create("leaving")
    deleted = gateway.call("DELETE", "/v1/sandboxes/leaving")
    assert (deleted.status_code, deleted.json()["deleted"]["state"]) == (200, "deleted")
    unknown = gateway.call("DELETE", "/v1/sandboxes/never")
    assert (unknown.status_code, unknown.json()["deleted"]) == (200, False)


def test_a_delete_that_the_node_has_yet_to_confirm_is_accepted(tmp_path: Path) -> None:
    with running_gateway(tmp_path, settings={"delete_wait": 0.01}) as gateway:
        gateway.script.hold_orders = True
        answer = gateway.call("DELETE", "/v1/sandboxes/box")
        assert (answer.status_code, answer.json()["deleted"]["state"]) == (202, "deleting")
        gateway.loop.soon(gateway.script.release.set)


def test_health_and_readiness(gateway: HttpGateway) -> None:
    assert requests.get(f"{gateway.url}/healthz", timeout=10).json()["ok"] is True
    assert requests.get(f"{gateway.url}/readyz", timeout=10).json() == {"ok": True, "problems": []}


def test_a_gateway_whose_store_takes_no_write_is_not_ready(
    gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise ApiError(ErrorCode.DISK_FULL, "the disk is full")

    monkeypatch.setattr(gateway.services.internals.db, "probe", fails)
    # What the probe before said holds for a moment more.
    wait_until(lambda: requests.get(f"{gateway.url}/readyz", timeout=10).status_code == 503)
    answer = requests.get(f"{gateway.url}/readyz", timeout=10)
    assert answer.json() == {"ok": False, "problems": ["the disk is full"]}
    assert "Retry-After" in answer.headers


def test_a_caller_that_leaves_before_its_body_has_come_made_no_mistake(gateway: HttpGateway) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    (secret,) = gateway.client.values()
    head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Length: 100\r\n\r\n"
    with LogLines("gateway.access") as lines:
        with socket.create_connection((host, int(port)), timeout=10) as caller:
            caller.sendall(head.encode() + b'{"id": ')
        assert "] 499 " in lines.next("POST /v1/sandboxes").getMessage()


def test_no_answer_is_compressed_or_redirected(gateway: HttpGateway) -> None:
    headers = {**gateway.client, "Accept-Encoding": "gzip, deflate"}
    answer = gateway.call("GET", "/v1/sandboxes", headers=headers, allow_redirects=False)
    assert "content-encoding" not in answer.headers
    assert gateway.call("GET", "/v1/sandboxes/", headers=headers, allow_redirects=False).status_code == 404


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v1/capacity/prepare", {"count": 1, "cpus": 5e-324}, "cpus"),
        ("POST", "/v1/tokens", {"name": "x", "scope": "client", "expires_seconds": 252000000000}, "expires_seconds"),
        ("POST", "/v1/tokens", {"name": "x", "scope": "node"}, "scope"),
        ("GET", f"/v1/sandboxes/box/logs?offset={2**60}", None, "offset"),
        ("GET", f"/v1/exec/{SESSION}/events?after={2**60}", None, "after"),
        ("GET", f"/v1/exec/{SESSION}/stream?after={2**60}", None, "after"),
        ("GET", f"/v1/exec/{SESSION}/events?wait_seconds=1e300", None, "wait_seconds"),
    ],
)
def test_a_number_out_of_bounds_is_named(
    gateway: HttpGateway, method: str, path: str, body: dict[str, Any] | None, field: str
) -> None:
    answer = gateway.call(method, path, json=body, headers=gateway.operator)
    assert answer.status_code == 422, answer.text
    assert [item.field for item in body_of(answer).fields or ()] == [field]


@pytest.mark.parametrize("offset", [2**44 - 1, limits.MAX_LOG_OFFSET])
def test_logs_are_asked_for_at_any_offset_that_a_log_can_have(gateway: HttpGateway, offset: int) -> None:
    answer = gateway.call("GET", f"/v1/sandboxes/box/logs?offset={offset}")
    assert answer.status_code == 200, answer.text
    assert gateway.script.calls[-1].query["offset"] == str(offset)


def test_an_integral_float_is_a_whole_number_in_every_body(gateway: HttpGateway) -> None:
    answer = post_json(gateway, "/v1/capacity/prepare", b'{"count": 2.0, "memory_mb": 53.0}')
    assert answer.status_code == 201, answer.text
    assert answer.json()["prepare"]["count"] == 2
    assert answer.json()["prepare"]["resources"]["memory_mb"] == 53


def test_an_empty_cursor_is_the_first_page(gateway: HttpGateway) -> None:
    whole = gateway.call("GET", "/v1/sandboxes")
    answer = gateway.call("GET", "/v1/sandboxes?cursor=&refresh=")
    assert answer.status_code == 200, answer.text
    assert answer.json() == whole.json()


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01", "x" * 99])
def test_a_cursor_of_no_page_is_named(gateway: HttpGateway, moment: str) -> None:
    refuse_cursor(gateway, [moment, "box"])


@pytest.mark.parametrize("sandbox_id", ["\ud800", "a\0b", "", 5, None, ["box"]])
def test_a_cursor_after_no_sandbox_is_named(gateway: HttpGateway, sandbox_id: object) -> None:
    refuse_cursor(gateway, ["2026-01-01T00:00:00+00:00", sandbox_id])


def refuse_cursor(gateway: HttpGateway, content: object) -> None:
    """Check that a cursor with this content is refused."""
    cursor = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
    answer = gateway.call("GET", "/v1/sandboxes", params={"cursor": cursor})
    assert answer.status_code == 422, answer.text
    assert body_of(answer).code is ErrorCode.INVALID_REQUEST
