"""The node agent over the real engines: every layer from HTTP to the sandbox's processes."""

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.wire import limits
from gateway.wire.nodes import HeartbeatAnswer
from gateway.wire.states import DeathReason
from node_agent.install.uninstall import record_engines, recorded_settings, remove_node
from node_agent.startup import FACTORIES
from tests.engines import leftovers
from tests.engines.dockerd import Daemon
from tests.engines.images import TestImages
from tests.fakes.node import NodeUnderTest, node_settings, served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CASES = [("runsc", "gvisor"), ("docker", "gvisor"), ("docker", "runc")]


@dataclass
class Place:
    """Where a node of these tests lives."""

    root: Path
    given: dict[str, object]
    image: str
    node: NodeUnderTest | None = None


@pytest.fixture(scope="module")
def place(docker_daemon: Daemon, test_images: TestImages) -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="sfa-", dir="/tmp"))  # short: sockets lie below it
    given: dict[str, object] = {"docker_url": docker_daemon.url, "runtimes": ("runsc", "docker")}
    given["allow_runc_without_user_namespaces"] = True  # the tests' own engine has none
    yield Place(root, given, test_images.busybox)
    settings = node_settings(root, **given)
    record_engines(settings)
    remove_node(recorded_settings(root), FACTORIES)
    assert not root.exists()
    assert leftovers.of_node(root, settings.tag) == []


@pytest.fixture(scope="module")
def node(place: Place) -> Iterator[NodeUnderTest]:
    with served(place.root, factories=FACTORIES, given=place.given) as under_test:
        yield under_test


@pytest.fixture(params=CASES, ids=["-".join(case) for case in CASES])
def box(request: pytest.FixtureRequest, node: NodeUnderTest, place: Place) -> Iterator[str]:
    runtime, isolation = request.param
    sandbox_id = f"{runtime}-{isolation}-{os.urandom(3).hex()}"
    answer = node.create(sandbox_id, runtime=runtime, isolation=isolation, image=place.image, command=["sleep", "600"])
    assert answer.status_code == 200, answer.text
    yield sandbox_id
    assert node.delete(sandbox_id).status_code == 200


def test_exec_files_pause_and_usage(node: NodeUnderTest, box: str) -> None:
    body: Any = node.exec(box, ["sh", "-c", "id -u; echo err >&2; exit 3"]).json()
    assert [(e["stream"], e["data"]) for e in body["events"] if e["stream"] in {"stdout", "stderr"}] in (
        [("stdout", "1000\n"), ("stderr", "err\n")],
        [("stderr", "err\n"), ("stdout", "1000\n")],
    )
    assert body["session"]["exit_code"] == 3
    data = os.urandom(20_000_000)
    files = f"/v1/sandboxes/{box}/files"
    put = node.call("PUT", files, params={"path": "/workspace/a b/new\nline"}, data=data)
    assert put.status_code == 200, put.text
    got = node.call("GET", files, params={"path": "a b/new\nline"})
    assert hashlib.sha256(got.content).digest() == hashlib.sha256(data).digest()
    for path, code in (("/workspace/a b", "is_directory"), ("missing", "file_not_found")):
        assert node.call("GET", files, params={"path": path}).json()["code"] == code
    assert node.call("PUT", files, params={"path": "/etc/passwd"}, data=b"x").json()["code"] == "file_permission"
    assert node.call("POST", f"/v1/sandboxes/{box}/pause").json()["sandbox"]["state"] == "paused"
    assert node.call("POST", f"/v1/sandboxes/{box}/resume").json()["sandbox"]["state"] == "running"
    assert node.call("GET", f"/v1/sandboxes/{box}/usage").json()["pids"] >= 1


def test_files_of_the_kernel_are_read_to_their_end(node: NodeUnderTest, box: str) -> None:
    for path in ("/proc/cpuinfo", "/proc/version", "/proc/1/cmdline", "/sys/devices/system/cpu/online"):
        got = node.call("GET", f"/v1/sandboxes/{box}/files", params={"path": path})
        assert (got.status_code, got.headers["content-length"]) == (200, str(len(got.content))), path
        assert len(got.content) > 0, path
    cat: Any = node.exec(box, ["cat", path]).json()
    assert got.content.decode() == "".join(e["data"] for e in cat["events"] if e["stream"] == "stdout")
    # Linux has no more to show of a process that became another program; gVisor refuses.
    for path in ("/dev/zero", "/dev/null", *(["/proc/self/mem"] if "gvisor" in box else [])):
        got = node.call("GET", f"/v1/sandboxes/{box}/files", params={"path": path})
        assert got.json()["code"] == "unsupported", (path, got.content)


@pytest.mark.parametrize(("runtime", "isolation"), CASES)
def test_the_least_bound_on_processes_is_enough_and_named_where_it_is_reached(
    node: NodeUnderTest, place: Place, runtime: str, isolation: str
) -> None:
    sandbox_id = f"bound-{runtime}-{isolation}"
    spec = {"runtime": runtime, "isolation": isolation, "image": place.image, "command": ["sleep", "600"]}
    assert node.create(sandbox_id, **spec, security={"pids_limit": limits.MIN_PIDS}).status_code == 200
    assert node.exec(sandbox_id, ["sh", "-c", "exit $(echo 3)"]).json()["session"]["exit_code"] == 3

    puts, refused = [], ""
    for number in range(limits.MIN_PIDS + 1):
        put = node.call("PUT", f"/v1/sandboxes/{sandbox_id}/files", params={"path": f"new/{number}"}, data=b"x")
        puts.append((put.status_code, put.text))
        session = node.exec(sandbox_id, ["sleep", "600"], wait=0).json()["session"]["id"]
        events: Any = node.events(session)["events"]
        if events[0]["stream"] != "status":
            refused = "".join(event["data"] for event in events)
            break
    assert "pids_limit" in refused, refused
    assert puts[0][0] == 200, puts[0]
    assert puts[-1][0] == 422, puts[-1]
    for status, text in puts:
        assert status == 200 or (status == 422 and '"start_error"' in text and "pids_limit" in text), text
    assert node.delete(sandbox_id).status_code == 200


def test_calls_beside_pauses_are_neither_refused_nor_wrong(node: NodeUnderTest, box: str) -> None:
    files, data, stop = f"/v1/sandboxes/{box}/files", os.urandom(300_000), threading.Event()

    def pausing() -> list[str]:
        refused = []
        while not stop.is_set():
            for order in ("pause", "resume"):
                answer = node.call("POST", f"/v1/sandboxes/{box}/{order}")
                if answer.status_code != 200 and answer.json()["code"] != "busy":
                    refused.append(answer.text)
        return refused

    def calls(number: int) -> None:
        body: Any = node.exec(box, ["echo", str(number)]).json()
        assert body["session"]["exit_code"] == 0, body
        put = node.call("PUT", files, params={"path": f"file-{number}"}, data=data)
        assert put.status_code == 200, put.text
        assert node.call("GET", files, params={"path": f"file-{number}"}).content == data
        session = node.exec(box, ["sleep", "60"], wait=0).json()["session"]["id"]
        assert node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9}).status_code == 200
        while body["session"]["status"] == "running" or body["session"]["id"] != session:
            body = node.events(session, 1)
        assert body["session"]["exit_code"] == 137, body

    with ThreadPoolExecutor(4) as pool:
        pauser = pool.submit(pausing)
        try:
            for done in [pool.submit(calls, number) for number in range(3)]:
                done.result()
        finally:
            stop.set()
        assert pauser.result() == []


def test_a_timeout_keeps_the_output(node: NodeUnderTest, box: str) -> None:
    body = node.exec(box, ["sh", "-c", "echo before; sleep 60 & sleep 60"], timeout_seconds=1).json()
    assert (body["session"]["exit_code"], body["session"]["timed_out"]) == (124, True)
    assert "before\n" in [e["data"] for e in body["events"]]


def test_programs_that_do_not_start(node: NodeUnderTest, box: str) -> None:
    for program, code in (("no-such-program", 127), ("/etc/passwd", 126)):
        body = node.exec(box, [program]).json()
        assert (body["session"]["status"], body["session"]["exit_code"]) == ("failed", code), body


def test_stdin_goes_in(node: NodeUnderTest, box: str) -> None:
    session = node.exec(box, ["wc", "-c"], stdin=True, wait=0).json()["session"]["id"]
    node.call("POST", f"/v1/exec/{session}/stdin", json={"data": "x" * 1_000_000, "eof": True})
    body: Any = {"session": {"status": "running"}}
    events: list[Any] = []
    while body["session"]["status"] == "running" or body["events"]:
        body = node.events(session, len(events))
        events += body["events"]
    assert "1000000\n" in [e["data"] for e in events]


def test_delete_while_an_exec_runs(node: NodeUnderTest, box: str) -> None:
    session = node.exec(box, ["sleep", "60"], wait=0).json()["session"]["id"]
    body: Any = node.events(session)
    assert body["events"], body
    reader: list[Any] = []
    thread = threading.Thread(target=lambda: reader.append(node.events(session, 1)))
    thread.start()
    assert node.delete(box).status_code == 200
    thread.join(30)
    assert reader[0]["session"]["status"] == "failed"


@pytest.mark.parametrize(("runtime", "isolation"), CASES)
def test_a_restart_of_the_agent_adopts_real_sandboxes(place: Place, runtime: str, isolation: str) -> None:
    root = place.root.with_name(f"{place.root.name}-{runtime}{isolation}")
    sandbox_id = "adopted"
    try:
        with served(root, factories=FACTORIES, given=place.given) as first:
            first_process = ["sh", "-c", "while [ ! -e /workspace/end ]; do sleep 0.1; done; exit 5"]
            wish = {"runtime": runtime, "isolation": isolation, "image": place.image, "command": first_process}
            answer = first.create(sandbox_id, **wish)  # type: ignore[arg-type]
            assert answer.status_code == 200, answer.text
        with served(root, factories=FACTORIES, given=place.given) as second:
            gateway = second.gateway
            gateway.wanted = HeartbeatAnswer(heartbeat_seconds=3600.0)
            assert gateway.reported(sandbox_id) == "running"
            assert second.exec(sandbox_id, ["echo", "hi"]).json()["session"]["exit_code"] == 0
            second.exec(sandbox_id, ["touch", "/workspace/end"])
            gateway.wait_for("the end is reported", lambda: gateway.reported(sandbox_id) == "exited", 30.0)
            item = gateway.heartbeats[-1].inventory[0]
            assert (item.reason, item.exit_code) == (DeathReason.EXITED, 5)
    finally:
        settings = node_settings(root, **place.given)
        record_engines(settings)
        remove_node(recorded_settings(root), FACTORIES)
        assert leftovers.of_node(root, settings.tag) == []
