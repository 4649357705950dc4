"""Orders about sandboxes over real HTTP and the fake runtime."""

import base64
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from tests.fakes.gateway import CONTROL_TOKEN
from tests.fakes.node import NodeUnderTest
from tests.fakes.node_fixtures import box, fresh, node
from tests.waiting import wait_until

__all__ = ["box", "fresh", "node"]


def code(answer: requests.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_create_answers_with_the_running_sandbox(node: NodeUnderTest, fresh: str) -> None:
    body = node.create(fresh).json()["sandbox"]
    assert (body["state"], body["generation"], body["runtime"]) == ("running", 1, "runsc")
    assert body["started_at"] is not None


def test_a_tenants_sandbox_goes_by_its_qualified_id_and_shows_its_clients(node: NodeUnderTest) -> None:
    longest = f"{'t' * 32}..{'B' * 64}"
    assert node.create(longest).json()["sandbox"]["sandbox_id"] == longest
    session = node.exec(longest, ["true"]).json()["session"]
    assert (session["status"], session["sandbox_id"]) == ("exited", "B" * 64)
    assert session["id"].endswith(f".1.{longest}")
    path = f"/v1/sandboxes/{longest}/files"
    written = node.call("PUT", path, params={"path": "/tmp/x"}, data=b"x")
    assert written.json()["sandbox_id"] == "B" * 64
    assert node.create("beta..box").status_code == 200
    node.gateway.wait_for("both are reported", lambda: node.gateway.reported("beta..box") == "running")
    for sandbox_id in (longest, "beta..box"):
        assert node.delete(sandbox_id).status_code == 200


@pytest.mark.parametrize("sandbox_id", ["acme..other", "Acme..box", f"{'t' * 33}..box", "a..b..box"])
def test_an_order_whose_path_does_not_name_its_spec_is_refused(node: NodeUnderTest, sandbox_id: str) -> None:
    order = {"generation": 1, "operation_id": "o", "runtime": "runsc", "spec": {"id": "box", "image": "fake"}}
    assert code(node.call("PUT", f"/v1/sandboxes/{sandbox_id}", json=order)) == (422, "invalid_request")


def test_the_same_order_sixteen_times_at_once_is_one_create(node: NodeUnderTest, fresh: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: node.create(fresh), range(16)))
    assert [answer.status_code for answer in answers] == [200] * 16
    assert node.runtime.controls.created.count((fresh, 1)) == 1


def test_the_same_generation_with_another_spec_is_a_conflict(node: NodeUnderTest, box: str) -> None:
    assert code(node.create(box, memory_mb=128)) == (409, "conflict")


def test_a_create_goes_on_when_its_caller_leaves(node: NodeUnderTest, fresh: str) -> None:
    gate = node.runtime.controls.create_gate = threading.Event()
    try:
        with pytest.raises(requests.Timeout):
            requests.put(
                f"{node.url}/v1/sandboxes/{fresh}",
                json={"generation": 1, "operation_id": "o", "runtime": "runsc", "spec": {"id": fresh, "image": "fake"}},
                headers=dict(node.session.headers),
                timeout=0.3,
            )
        pause = node.call("POST", f"/v1/sandboxes/{fresh}/pause")
        assert code(pause) == (503, "create_in_progress")
        assert code(node.exec(fresh, ["true"])) == (503, "create_in_progress")
    finally:
        gate.set()
        node.runtime.controls.create_gate = None
    node.gateway.wait_for("the sandbox runs", lambda: node.gateway.reported(fresh) == "running")


def test_delete_wins_over_a_create_in_flight(node: NodeUnderTest, fresh: str) -> None:
    controls = node.runtime.controls
    gate = controls.create_gate = threading.Event()
    controls.creating.clear()
    controls.deleting.clear()
    try:
        with ThreadPoolExecutor(2) as pool:
            created = pool.submit(node.create, fresh)
            assert controls.creating.wait(10)
            deleted = pool.submit(node.delete, fresh)
            assert controls.deleting.wait(10)
            gate.set()
            assert deleted.result().status_code == 200
            assert code(created.result()) == (409, "conflict")
    finally:
        gate.set()
        controls.create_gate = None
    assert fresh not in {found.order.sandbox_id for found in node.runtime.found()}


def test_a_new_generation_waits_for_the_delete_of_the_old_one(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    gate = node.runtime.controls.delete_gate = threading.Event()
    node.runtime.controls.deleting.clear()
    try:
        with ThreadPoolExecutor(2) as pool:
            deleted = pool.submit(node.delete, fresh)
            assert node.runtime.controls.deleting.wait(10)
            created = pool.submit(node.create, fresh, generation=2)
            wait_until(lambda: node.node.sandboxes.find(fresh, None).generation == 2)
            assert not created.done()
            gate.set()
            assert deleted.result().status_code == 200
            assert created.result().json()["sandbox"]["state"] == "running"
    finally:
        gate.set()
        node.runtime.controls.delete_gate = None
    assert node.exec(fresh, ["true"], generation=2).json()["session"]["exit_code"] == 0


def test_delete_is_idempotent_also_for_what_never_was(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    assert node.delete(fresh).status_code == 200
    assert node.delete(fresh).status_code == 200
    assert node.delete("never-was").status_code == 200


def test_a_delete_that_failed_is_tried_again_by_the_next_one(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    node.runtime.controls.fail_deletes.append(RuntimeFailure(ErrorCode.BUSY, "the engine is busy"))
    assert code(node.delete(fresh)) == (503, "busy")
    assert node.delete(fresh).status_code == 200


def test_a_restart_keeps_the_workspace_and_fences_the_old_generation(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    node.call("PUT", f"/v1/sandboxes/{fresh}/files", params={"path": "/workspace/kept"}, data=b"kept")
    assert node.create(fresh, generation=2).json()["sandbox"]["generation"] == 2
    got = node.call("GET", f"/v1/sandboxes/{fresh}/files", params={"path": "/workspace/kept", "generation": 2})
    assert got.content == b"kept"
    for old in (
        node.create(fresh, generation=1),
        node.delete(fresh, generation=1),
        node.exec(fresh, ["true"], generation=1),
        node.call("POST", f"/v1/sandboxes/{fresh}/pause?generation=1"),
        node.call("GET", f"/v1/sandboxes/{fresh}/files", params={"path": "kept", "generation": 1}),
    ):
        assert code(old) == (409, "conflict")
    assert code(node.exec(fresh, ["true"], generation=3)) == (404, "sandbox_not_found")


def test_pause_and_resume_are_idempotent_and_freeze_execs(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    session = node.exec(fresh, ["sh", "-c", "while :; do date; sleep 0.05; done"], wait=0).json()["session"]["id"]
    for order, state in (("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("resume", "running")):
        body = node.call("POST", f"/v1/sandboxes/{fresh}/{order}?generation=1").json()
        assert body["sandbox"]["state"] == state
    node.call("POST", f"/v1/sandboxes/{fresh}/pause")
    last = node.events(session, wait=0.5)["session"]["last_sequence"]  # type: ignore[index]
    assert node.events(session, last, wait=0.5)["events"] == []


def test_an_exec_a_signal_and_a_file_resume_a_paused_sandbox(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    session = node.exec(fresh, ["sleep", "60"], wait=0).json()["session"]["id"]
    files = f"/v1/sandboxes/{fresh}/files"
    for call in (
        lambda: node.exec(fresh, ["true"]),
        lambda: node.call("PUT", files, params={"path": "kept"}, data=b"kept"),
        lambda: node.call("GET", files, params={"path": "kept"}),
        lambda: node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9}),
    ):
        assert node.call("POST", f"/v1/sandboxes/{fresh}/pause").json()["sandbox"]["state"] == "paused"
        assert call().status_code == 200
        node.gateway.wait_for("running", lambda: node.gateway.reported(fresh) == "running")


def test_a_failed_create_is_repeated_and_reported_until_it_is_deleted(node: NodeUnderTest, fresh: str) -> None:
    node.runtime.controls.fail_creates.append(
        RuntimeFailure(ErrorCode.IMAGE_ERROR, "there is no such image", reason=DeathReason.IMAGE_ERROR)
    )
    first, second = node.create(fresh), node.create(fresh)
    assert code(first) == code(second) == (422, "image_error")
    assert first.json()["reason"] == "image_error"
    node.gateway.wait_for("failed", lambda: node.gateway.reported(fresh) == "failed")
    assert node.delete(fresh).status_code == 200
    assert node.create(fresh, generation=2).status_code == 200


def test_a_create_with_a_retryable_failure_leaves_nothing_in_the_inventory(node: NodeUnderTest, fresh: str) -> None:
    node.runtime.controls.fail_creates.append(RuntimeFailure(ErrorCode.BUSY, "the engine is busy"))
    assert code(node.create(fresh)) == (503, "busy")
    assert node.create(fresh).status_code == 200


def test_a_restart_with_a_retryable_failure_leaves_the_running_one_listed_counted_and_deletable(
    node: NodeUnderTest, fresh: str
) -> None:
    node.create(fresh)
    before = node.node.sandboxes.reserved()
    node.runtime.controls.fail_creates.append(RuntimeFailure(ErrorCode.BUSY, "the engine is busy"))
    assert code(node.create(fresh, generation=2)) == (503, "busy")
    assert node.node.sandboxes.find(fresh, None).generation == 1
    assert node.node.sandboxes.reserved() == before
    assert node.delete(fresh, generation=2).status_code == 200
    assert fresh not in {found.order.sandbox_id for found in node.runtime.found()}


def test_a_sandbox_that_ends_while_its_restart_fails_is_reported_as_ended(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    gate = node.runtime.controls.create_gate = threading.Event()
    node.runtime.controls.creating.clear()
    try:
        with ThreadPoolExecutor(1) as pool:
            restart = pool.submit(node.create, fresh, generation=2)
            assert node.runtime.controls.creating.wait(10)
            node.runtime.delete(fresh)  # so that the engine's create fails, as for a reason that may pass
            gate.set()
            assert code(restart.result()) == (409, "conflict")
    finally:
        gate.set()
        node.runtime.controls.create_gate = None
    node.gateway.wait_for("over", lambda: node.gateway.reported(fresh) == "failed")
    assert node.create(fresh, generation=2).json()["sandbox"]["state"] == "running"


def test_a_full_node_refuses_and_names_what_is_short(node: NodeUnderTest, fresh: str) -> None:
    answer = node.create(fresh, memory_mb=9_999_999)
    assert code(answer) == (503, "node_refused")
    assert "memory_mb" in answer.json()["error"]


def test_the_end_of_the_first_process_is_reported_with_its_code(node: NodeUnderTest, fresh: str) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    node.create(fresh, command=command)
    node.gateway.wait_for("exited", lambda: node.gateway.reported(fresh) == "exited")
    item = next(i for i in node.gateway.heartbeats[-1].inventory if i.sandbox_id == fresh)
    assert (item.reason, item.exit_code) == (DeathReason.EXITED, 3)
    logs = node.call("GET", f"/v1/sandboxes/{fresh}/logs", params={"stream": "stderr"}).json()
    assert (base64.b64decode(logs["data"]), logs["next_offset"], logs["eof"]) == (b"err\n", 4, True)
    answer = node.exec(fresh, ["true"])
    assert code(answer) == (409, "sandbox_not_running")
    assert answer.json()["state"] == "exited"
    assert node.create(fresh, command=command).json()["sandbox"]["state"] == "exited"


def test_logs_are_read_in_pieces(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh, command=["sh", "-c", "printf 0123456789; exec sleep 60"])
    pieces: list[bytes] = []
    offset = 0
    while len(b"".join(pieces)) < 10:
        piece = node.call("GET", f"/v1/sandboxes/{fresh}/logs", params={"offset": offset, "limit": 4}).json()
        pieces.append(base64.b64decode(piece["data"]))
        offset = piece["next_offset"]
    assert b"".join(pieces) == b"0123456789"


def test_usage_is_reported(node: NodeUnderTest, box: str) -> None:
    body = node.call("GET", f"/v1/sandboxes/{box}/usage").json()
    assert set(body) == {"memory_mb", "cpu_seconds", "disk_mb", "pids"}
    assert body["pids"] >= 1


def test_an_unknown_sandbox_is_not_found(node: NodeUnderTest) -> None:
    for method, path in (
        ("POST", "pause"),
        ("POST", "resume"),
        ("GET", "logs"),
        ("GET", "usage"),
        ("GET", "files?path=x"),
        ("PUT", "files?path=x"),
    ):
        answer = node.call(method, f"/v1/sandboxes/nobody/{path}", data=b"")
        assert code(answer) == (404, "sandbox_not_found")
        assert answer.json()["sandbox_id"] == "nobody"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"generation": 0}, "generation"),
        ({"runtime": "podman"}, "runtime"),
        ({"surprise": 1}, "surprise"),
        ({"spec": {"id": "box", "image": "fake", "cpus": -1}}, "spec.cpus"),
        ({"spec": {"id": "other", "image": "fake"}}, "spec.id"),
    ],
)
def test_a_bad_order_names_the_field(node: NodeUnderTest, change: dict[str, object], field: str) -> None:
    order = {"generation": 1, "operation_id": "o", "runtime": "runsc", "spec": {"id": "box", "image": "fake"}}
    answer = node.call("PUT", "/v1/sandboxes/box", json=order | change)
    assert code(answer) == (422, "invalid_request")
    assert field in [refused["field"] for refused in answer.json()["fields"]]


def test_a_body_that_is_not_json_is_refused(node: NodeUnderTest) -> None:
    assert code(node.call("PUT", "/v1/sandboxes/box", data=b"{")) == (422, "invalid_request")


@pytest.mark.parametrize("query", ["", "generation=0", "generation=x", f"generation={2**64}"])
def test_a_delete_needs_a_generation(node: NodeUnderTest, query: str) -> None:
    answer = node.call("DELETE", f"/v1/sandboxes/box?{query}")
    assert code(answer) == (422, "invalid_request")
    assert answer.json()["fields"][0]["field"] == "generation"


@pytest.mark.parametrize("sandbox_id", ["box", "files"])
def test_a_body_over_the_bound_is_refused_announced_or_not(node: NodeUnderTest, sandbox_id: str) -> None:
    too_much = 17 * 1024 * 1024
    answer = node.call("PUT", f"/v1/sandboxes/{sandbox_id}", data=b" " * too_much)
    assert code(answer) == (413, "payload_too_large")
    pieces = (b" " * 65536 for _ in range(too_much // 65536))
    assert code(node.call("PUT", f"/v1/sandboxes/{sandbox_id}", data=pieces)) == (413, "payload_too_large")


def test_every_route_but_the_health_check_wants_the_control_token(node: NodeUnderTest) -> None:
    walked = 0
    routes: list[object] = []
    for route in node.node.app.routes:
        included = getattr(route, "original_router", None)
        routes += included.routes if included else [route]
    for route in routes:
        path = getattr(route, "path", "").replace("{sandbox_id}", "box").replace("{session_id}", "exec-1")
        for method in (getattr(route, "methods", None) or set()) - {"HEAD"}:
            walked += 1
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic control"}):
                answer = requests.request(method, node.url + path, headers=headers, timeout=10)
                if path == "/healthz":
                    assert answer.status_code == 200
                else:
                    assert code(answer) == (401, "unauthorized")
    assert walked >= 15


def test_unknown_paths_and_methods_have_the_errors_shape(node: NodeUnderTest) -> None:
    assert code(node.call("GET", "/v1/nothing")) == (404, "not_found")
    assert code(node.call("PATCH", "/v1/sandboxes/box")) == (405, "method_not_allowed")


def test_the_health_check_names_the_node(node: NodeUnderTest) -> None:
    body = requests.get(f"{node.url}/healthz", timeout=10).json()
    assert body == {"ok": True, "node_id": "node-1", "state": "ready"}


def test_a_caller_that_leaves_within_its_body_is_not_a_failure_of_the_agent(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = node.url.removeprefix("http://").partition(":")
    head = f"PUT /v1/sandboxes/gone HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CONTROL_TOKEN}\r\n"
    with caplog.at_level(logging.ERROR):
        with socket.create_connection((host, int(port)), timeout=10) as caller:
            caller.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            caller.shutdown(socket.SHUT_WR)
            while caller.recv(4096):  # until the agent has closed its end
                pass
        assert node.call("GET", "/healthz").status_code == 200
    assert [record.message for record in caplog.records] == []
