"""A gateway process and a node agent over the fake runtime, used as clients use them."""

import base64
import hashlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests

from gateway.client import GatewayClient, GatewayError
from gateway.wire import limits
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.states import SandboxState
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.gateway_process import gateway_process, new_token
from tests.integration.small_fleet import SmallFleet, small_fleet
from tests.waiting import wait_until
from ucloud_sandboxes_sdk import Image, NoRoomError, SandboxClient, SandboxSpec


def poll_exec(
    fleet: SmallFleet, sandbox_id: str, command: list[str], text: str | None = None
) -> tuple[int | None, str, list[Any]]:
    """Run a command as the SDK in the field does: start, feed, poll until the end and then once more."""
    body = {"command": command, "env": {}, "working_dir": None, "stdin": text is not None, "tty": False}
    session = fleet.call("POST", f"/v1/sandboxes/{sandbox_id}/exec", json=body).json()["session"]
    path = f"/v1/exec/{session['id']}"
    if text is not None:
        assert fleet.call("POST", f"{path}/stdin", json={"data": text, "eof": True}).ok
    events: list[Any] = []
    final = False
    while True:
        query = {"after": len(events), "limit": 100, "wait_seconds": 0.2 if final else 1.0}
        answer = fleet.call("GET", f"{path}/events", params=query).json()
        events += answer["events"]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        if final and not answer["events"]:
            break
        final = answer["session"]["status"] in {"exited", "failed"}
    stdout = "".join(event["data"] for event in events if event["stream"] == "stdout")
    return answer["session"]["exit_code"], stdout, events


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(scope="module")
def box(fleet: SmallFleet) -> str:
    answer = fleet.create("box")
    assert answer.status_code == 201, answer.text
    return "box"


def test_the_node_is_listed(fleet: SmallFleet, box: str) -> None:
    nodes = fleet.operator.nodes()
    assert [node.instance for node in nodes] == ["test"]
    record = fleet.operator.sandbox(box)
    assert (record.state, record.node_id) == (SandboxState.RUNNING, nodes[0].id)
    assert [sandbox.id for sandbox in fleet.operator.sandboxes()] == [box]


def test_sixteen_creates_with_one_id_make_one_sandbox(fleet: SmallFleet) -> None:
    name = f"s-{uuid4().hex[:8]}"
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: fleet.create(name), range(16)))
    assert {answer.status_code for answer in answers} == {200, 201}
    assert len({answer.json()["sandbox"]["operation_id"] for answer in answers}) == 1
    other = fleet.create(name, labels={"a": "b"})
    assert (other.status_code, other.json()["code"]) == (409, "spec_conflict")
    assert fleet.call("DELETE", f"/v1/sandboxes/{name}").json()["ok"] is True
    again = fleet.call("DELETE", f"/v1/sandboxes/{name}")
    assert again.status_code == 200


def test_an_exec_polled_as_the_sdk_in_the_field_does(fleet: SmallFleet, box: str) -> None:
    code, stdout, events = poll_exec(fleet, box, ["sh", "-c", "echo one; echo two >&2; exit 3"])
    assert (code, stdout) == (3, "one\n")
    assert events[-1]["stream"] == "exit"
    code, stdout, _ = poll_exec(fleet, box, ["cat"], text="fed through stdin")
    assert (code, stdout) == (0, "fed through stdin")


def test_a_quick_exec_takes_one_round_trip(fleet: SmallFleet, box: str) -> None:
    answer = fleet.call("POST", f"/v1/sandboxes/{box}/exec?wait_seconds=10", json={"command": ["echo", "hi"]})
    body = answer.json()
    assert (answer.status_code, body["session"]["exit_code"]) == (201, 0)
    assert "".join(event["data"] for event in body["events"] if event["stream"] == "stdout") == "hi\n"


def test_input_after_the_end_is_no_error(fleet: SmallFleet, box: str) -> None:
    body = {"command": ["true"], "stdin": True}
    session = fleet.call("POST", f"/v1/sandboxes/{box}/exec?wait_seconds=10", json=body).json()["session"]
    for what, content in (("stdin", {"data": "late"}), ("close-stdin", None), ("signal", {"signal": 15})):
        assert fleet.call("POST", f"/v1/exec/{session['id']}/{what}", json=content).status_code == 200


def test_stream_and_signal(fleet: SmallFleet, box: str) -> None:
    body = {"command": ["sh", "-c", "echo begun; sleep 60"]}
    session = fleet.call("POST", f"/v1/sandboxes/{box}/exec", json=body).json()["session"]["id"]
    with fleet.call("GET", f"/v1/exec/{session}/stream", stream=True) as answer:
        lines = answer.iter_lines(chunk_size=1)
        for line in lines:
            if b"begun" in line:
                break
        assert fleet.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9}).ok
        rest = list(lines)
    assert b'"exit_code":137' in rest[-1]


def test_files_are_byte_exact_in_both_directions(fleet: SmallFleet, box: str) -> None:
    for size in (0, 1, limits.MIB, 40 * limits.MIB + 1):
        content = hashlib.shake_128(str(size).encode()).digest(size)
        params = {"path": f"/workspace/a b/é'\"{size}"}
        put = fleet.call("PUT", f"/v1/sandboxes/{box}/files", params=params, data=content)
        assert (put.status_code, put.json()["size"]) == (200, size), put.text
        assert fleet.call("GET", f"/v1/sandboxes/{box}/files", params=params).content == content
    unmeasured = fleet.call("PUT", f"/v1/sandboxes/{box}/files", params=params, data=iter([b"x"]))
    assert (unmeasured.status_code, unmeasured.json()["fields"][0]["field"]) == (422, "Content-Length")
    absent = fleet.call("GET", f"/v1/sandboxes/{box}/files", params={"path": "/workspace/none"})
    assert ErrorBody.model_validate_json(absent.content).code is ErrorCode.FILE_NOT_FOUND


def test_large_files_stream_in_constant_memory(fleet: SmallFleet, box: str, tmp_path: Path) -> None:
    size = 256 * limits.MIB
    params = {"path": "/workspace/large"}
    with (tmp_path / "zeros").open("w+b") as zeros:
        zeros.truncate(size)
        before = fleet.gateway.peak_memory()
        assert fleet.call("PUT", f"/v1/sandboxes/{box}/files", params=params, data=zeros).status_code == 200
    with fleet.call("GET", f"/v1/sandboxes/{box}/files", params=params, stream=True) as answer:
        assert sum(map(len, answer.iter_content(limits.MIB))) == size
    assert fleet.gateway.peak_memory() - before < 32 * limits.MIB


def test_an_exec_resumes_a_paused_sandbox(fleet: SmallFleet, box: str) -> None:
    assert fleet.call("POST", f"/v1/sandboxes/{box}/pause").json()["sandbox"]["state"] == "paused"
    code, stdout, _ = poll_exec(fleet, box, ["echo", "awake"])
    assert (code, stdout) == (0, "awake\n")
    assert fleet.operator.sandbox(box).state is SandboxState.RUNNING


def over_half(fleet: SmallFleet) -> int:
    """Return an amount of memory of which the node has room for one and not for two."""
    wait_until(lambda: len(fleet.operator.nodes()) == 1)
    return fleet.operator.nodes()[0].total.memory_mb // 2 + 64


def sdk(fleet: SmallFleet) -> SandboxClient:
    return SandboxClient(fleet.gateway.url, api_token=fleet.client_token)


def test_a_client_with_little_time_learns_why_it_waits(fleet: SmallFleet) -> None:
    half = {"image": Image.from_registry("fake"), "memory_mb": over_half(fleet), "disk_mb": 64}
    with sdk(fleet) as client, client.create_sandbox(**half):
        with pytest.raises(NoRoomError):
            client.create_sandbox(**half, request_timeout_seconds=1)
        assert client.list_sandboxes(state="pending") == []


def test_a_client_that_leaves_before_it_knows_its_sandbox_leaves_nothing(fleet: SmallFleet) -> None:
    memory = over_half(fleet)
    body = {"image": "fake", "memory_mb": memory, "disk_mb": 64}
    with (
        sdk(fleet) as client,
        client.create_sandbox(image=Image.from_registry("fake"), memory_mb=memory, disk_mb=64),
    ):
        with pytest.raises(requests.Timeout):
            fleet.session.post(f"{fleet.gateway.url}/v1/sandboxes", json=body, timeout=0.5)
        wait_until(lambda: client.list_sandboxes(state="pending") == [])


def test_an_interrupted_exec_of_any_tenant_is_killed(fleet: SmallFleet) -> None:
    token = fleet.operator.create_token(TokenRequest(name="x", scope=TokenScope.CLIENT, tenant="acme")).token

    def interrupted(session: dict[str, Any], *_: object) -> Any:
        found.append(session["id"])
        raise KeyboardInterrupt

    found: list[str] = []
    with (
        SandboxClient(fleet.gateway.url, api_token=token) as client,
        client.create_sandbox(image=Image.from_registry("fake"), memory_mb=64, disk_mb=64) as sandbox,
    ):
        client._collect = interrupted  # type: ignore[assignment,method-assign]
        with pytest.raises(KeyboardInterrupt) as caught:
            sandbox.exec(["sleep", "99"])
        assert not hasattr(caught.value, "__notes__"), caught.value.__notes__
        wait_until(lambda: client.get_exec_session(found[0])["session"]["status"] != "running")


def test_a_client_names_the_session_that_it_starts(fleet: SmallFleet, box: str) -> None:
    name = uuid4().hex
    path = f"/v1/sandboxes/{box}/exec?wait_seconds=5&session={name}"
    first, again = (fleet.call("POST", path, json={"command": ["echo", "once"]}).json() for _ in range(2))
    assert first["session"]["id"].startswith(f"exec-{name}.")
    assert again["session"]["id"] == first["session"]["id"]
    assert fleet.call("POST", path + "X", json={"command": ["true"]}).status_code == 422


def test_restart_keeps_the_workspace_and_ends_sessions(fleet: SmallFleet) -> None:
    name = f"s-{uuid4().hex[:8]}"
    fleet.create(name)
    params = {"path": "/workspace/x"}
    fleet.call("PUT", f"/v1/sandboxes/{name}/files", params=params, data=b"kept")
    old = fleet.call("POST", f"/v1/sandboxes/{name}/exec?wait_seconds=5", json={"command": ["true"]}).json()["session"]
    assert fleet.call("POST", f"/v1/sandboxes/{name}/restart").json()["sandbox"]["generation"] == 2
    assert fleet.call("GET", f"/v1/sandboxes/{name}/files", params=params).content == b"kept"
    lost = fleet.call("GET", f"/v1/exec/{old['id']}/events")
    assert (lost.status_code, lost.json()["code"]) == (410, "exec_lost")
    fleet.call("DELETE", f"/v1/sandboxes/{name}")


def test_logs_and_usage(fleet: SmallFleet) -> None:
    name = f"s-{uuid4().hex[:8]}"
    fleet.create(name, command=["echo", "first"])
    read = b""
    while read != b"first\n":
        answer = fleet.call("GET", f"/v1/sandboxes/{name}/logs", params={"stream": "stdout", "offset": len(read)})
        assert answer.status_code == 200, answer.text
        read += base64.b64decode(answer.json()["data"])
    fleet.call("DELETE", f"/v1/sandboxes/{name}")
    assert fleet.call("GET", "/v1/sandboxes/box/usage").json()["pids"] >= 0


def test_unknown_things_are_not_found(fleet: SmallFleet, box: str) -> None:
    assert fleet.call("GET", "/v1/sandboxes/never").json()["code"] == "sandbox_not_found"
    assert fleet.call("POST", "/v1/sandboxes/never/exec", json={"command": ["x"]}).json()["code"] == "sandbox_not_found"
    assert fleet.call("GET", f"/v1/exec/exec-{'0' * 32}.1.never").json()["code"] == "sandbox_not_found"
    assert fleet.call("GET", f"/v1/exec/exec-{'0' * 32}.1.{box}").json()["code"] == "exec_not_found"
    assert fleet.call("DELETE", "/v1/sandboxes/never").json() == {"ok": True, "deleted": False}


def test_a_shape_that_never_fits(fleet: SmallFleet) -> None:
    answer = fleet.create(f"s-{uuid4().hex[:8]}", runtime="docker", gpus=60)
    assert answer.status_code in {422, 503}
    assert ErrorBody.model_validate_json(answer.content).requested_resources or answer.status_code == 503


def test_tokens_are_created_and_revoked_over_http(fleet: SmallFleet) -> None:
    made = fleet.operator.create_token(TokenRequest(name="short", scope=TokenScope.CLIENT))
    mine = GatewayClient(fleet.gateway.url, made.token)
    assert mine.sandbox("box").id == "box"
    fleet.operator.revoke_token(made.record.id)
    with pytest.raises(GatewayError) as refused:
        mine.sandbox("box")
    assert refused.value.code is ErrorCode.UNAUTHORIZED
    with pytest.raises(GatewayError) as unknown:
        fleet.operator.revoke_token("none")
    assert unknown.value.code is ErrorCode.NOT_FOUND


def test_a_join_token_works_once(fleet: SmallFleet) -> None:
    answer = requests.post(
        f"{fleet.gateway.url}/v1/nodes/register",
        headers={"Authorization": f"Bearer {(fleet.node.node._settings.root / 'join-token').read_text()}"},
        json={"node_url": "http://127.0.0.1:2", "instance": "test", "agent_version": "1", "total": {}, "runtimes": []},
        timeout=10,
    )
    assert answer.json()["code"] == "token_used"


def test_a_stop_is_prompt_and_clean(tmp_path: Path) -> None:
    token = new_token(tmp_path, "client")
    with gateway_process(tmp_path) as gateway:
        answers: list[requests.Response] = []

        def create() -> None:
            answers.append(
                requests.post(
                    f"{gateway.url}/v1/sandboxes",
                    json={"id": "box", "image": "x"},
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=30,
                )
            )

        # No node is there, so this create waits.
        caller = threading.Thread(target=create)
        caller.start()
        client = GatewayClient(gateway.url, token)
        while not list(client.sandboxes()):
            pass
        assert gateway.end(signal.SIGTERM) == 0
        caller.join(10)
        body = ErrorBody.model_validate_json(answers[0].content)
        assert (answers[0].status_code, body.code, body.retryable) == (503, ErrorCode.BUSY, True)
    assert not [line for line in gateway.log if "Traceback" in line], "".join(gateway.log)


def test_the_sdk_of_this_project(fleet: SmallFleet) -> None:
    with SandboxClient(fleet.gateway.url, api_token=fleet.client_token) as client:
        sandbox = client.create_sandbox(
            SandboxSpec(
                id=f"s-{uuid4().hex[:8]}", image=Image.from_registry("fake"), memory_mb=64, disk_mb=64, cpus=0.1
            )
        )
        result = sandbox.exec(["sh", "-c", "cat; echo oops >&2; exit 4"], input="hello", timeout_seconds=20)
        assert (result.stdout, result.stderr, result.exit_code) == ("hello", "oops\n", 4)
        sandbox.delete()
