"""The agent's process: what keeps it from starting, how it ends, and what survives it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.process import readable
from node_agent.startup import NodeStartError, probe_engines
from tests.fakes.node import NodeUnderTest, node_settings, served
from tests.fakes.runtime import FakeRuntime
from tests.waiting import wait_until


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "node"
    fake = FakeRuntime(tmp_path / "node" / "fake")
    for sandbox in fake.found():
        fake.delete(sandbox.order.sandbox_id)


def test_a_restart_adopts_what_runs_and_reports_what_died_meanwhile(root: Path) -> None:
    with served(root) as node:
        node.create("lives")
        node.create("dies")
        node.create("sleeps")
        node.call("POST", "/v1/sandboxes/sleeps/pause")
        session = node.exec("lives", ["sh", "-c", "echo before; sleep 60"], wait=0).json()["session"]["id"]
        ended = node.exec("lives", ["sh", "-c", "echo done; exit 3"]).json()
        body = node.events(session, 1)
        assert body["events"]
    node.runtime.die("dies", DeathReason.OOM, "too much")
    with served(root) as node:
        states = {i.sandbox_id: i.state.value for i in node.gateway.heartbeats[0].inventory}
        assert states == {"lives": "running", "dies": "failed", "sleeps": "paused"}
        assert node.exec("lives", ["true"]).json()["session"]["exit_code"] == 0
        assert node.create("lives").json()["sandbox"]["generation"] == 1
        again = node.events(session)
        assert [e["data"] for e in again["events"] if e["stream"] == "stdout"] == ["before\n"]  # type: ignore[attr-defined]
        final = node.call("GET", f"/v1/exec/{session}").json()["session"]
        assert (final["status"], final["exit_code"]) == ("failed", -1)
        assert again["events"][-1]["stream"] == "exit"  # type: ignore[index]
        replayed = node.events(ended["session"]["id"])
        assert replayed["events"] == ended["events"]
        node.runtime.die("lives", DeathReason.OOM, "later")
        node.gateway.wait_for("an adopted death", lambda: node.gateway.reported("lives") == "failed")


def test_a_create_cut_by_the_agents_end_goes_on_after_the_restart(root: Path) -> None:
    runtime = FakeRuntime(root / "fake")
    gate = runtime.controls.create_gate = threading.Event()
    with served(root, runtime=runtime) as node:
        threading.Thread(target=_quietly, args=(node, "half")).start()
        assert runtime.controls.creating.wait(10)
    with served(root) as node:
        node.gateway.wait_for("running", lambda: node.gateway.reported("half") == "running")
    runtime.controls.create_gate = None
    gate.set()


def _quietly(node: NodeUnderTest, sandbox_id: str) -> None:
    try:
        node.create(sandbox_id)
    except requests.RequestException:
        return


def test_cleanup_on_exit_leaves_nothing(root: Path) -> None:
    with served(root, given={"cleanup_on_exit": True}) as node:
        node.create("a")
        session = node.exec("a", ["sleep", "60"], wait=0).json()["session"]["id"]
        assert node.events(session)["events"]  # it has begun
    assert node.runtime.found() == []
    for pid in node.runtime._pids("a"):  # killed already, and perhaps not gone yet
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            assert readable(handle, 10)
            os.close(handle)
    assert node.runtime._pids("a") == []


# -- a process of its own ---------------------------------------------------------------------------------------------

PROGRAM = """
import logging, sys
from pathlib import Path
from node_agent import main
from node_agent.settings import NodeSettings
from gateway.wire.settings import ConfigurationError
from node_agent.startup import NodeStartError
from tests.fakes.runtime import FakeRuntime
from tests.waiting import wait_until
logging.basicConfig(level=logging.INFO)
try:
    settings = NodeSettings.load(Path(sys.argv[1]))
    main.run(settings, {"runsc": lambda s: FakeRuntime(s.root / "fake")})
except (ConfigurationError, NodeStartError) as error:
    print(error, file=sys.stderr)
    main.leave(1)
main.leave(0)
"""


def spawn(home: Path, /, **settings: object) -> "subprocess.Popen[str]":
    home.mkdir(parents=True, exist_ok=True)
    values = {"gateway_url": "http://127.0.0.1:1", "root": str(home), "runtimes": ["runsc"]} | settings
    config = home / "node.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(config)], stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def healthy(port: int, process: "subprocess.Popen[str]") -> None:
    def answers() -> bool:
        assert process.poll() is None
        try:
            requests.get(f"http://127.0.0.1:{port}/healthz", timeout=5)
        except requests.ConnectionError:
            return False
        return True

    wait_until(answers, 20.0)


def identity(root: Path) -> None:
    root.mkdir(parents=True)
    kept = {
        "node_id": "node-1",
        "credential": "c",
        "control_token": "control",
        "gateway_url": "http://127.0.0.1:1",
        "join_token_sha256": "",
    }
    (root / "identity.json").write_text(json.dumps(kept))


def call(port: int, method: str, path: str, **options: object) -> requests.Response:
    return requests.request(
        method,
        f"http://127.0.0.1:{port}{path}",
        headers={"Authorization": "Bearer control"},
        timeout=20,
        **options,  # type: ignore[arg-type]
    )


def test_sandboxes_and_histories_survive_a_sigkill_of_the_agent(root: Path) -> None:
    identity(root)
    port = free_port()
    order = {"generation": 1, "operation_id": "o", "runtime": "runsc", "spec": {"id": "a", "image": "fake"}}
    session = f"exec-{'b' * 32}.1.a"
    wish = {"session_id": session, "generation": 1, "exec": {"command": ["sh", "-c", "echo kept; sleep 60"]}}
    first = spawn(root, port=port)
    try:
        healthy(port, first)
        assert call(port, "PUT", "/v1/sandboxes/a", json=order).status_code == 200
        call(port, "POST", "/v1/sandboxes/a/exec", json=wish)
        events = call(port, "GET", f"/v1/exec/{session}/events?after=1&wait_seconds=10").json()
        assert events["events"][0]["data"] == "kept\n"
    finally:
        first.kill()
        first.communicate(timeout=10)
    second = spawn(root, port=port)
    try:
        healthy(port, second)
        assert call(port, "PUT", "/v1/sandboxes/a", json=order).json()["sandbox"]["state"] == "running"
        body = call(port, "GET", f"/v1/exec/{session}/events").json()
        assert [e["stream"] for e in body["events"]] == ["status", "stdout", "error", "exit"]
        assert (body["session"]["exit_code"], body["session"]["lost"]) == (-1, True)
    finally:
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=20)
    assert second.returncode == 0
    assert len(FakeRuntime(root / "fake").found()) == 1


def test_sigterm_ends_waiting_calls_and_the_process(root: Path) -> None:
    identity(root)
    port = free_port()
    process = spawn(root, port=port)
    healthy(port, process)
    order = {"generation": 1, "operation_id": "o", "runtime": "runsc", "spec": {"id": "a", "image": "fake"}}
    session = f"exec-{'b' * 32}.1.a"
    wish = {"session_id": session, "generation": 1, "exec": {"command": ["sleep", "60"]}}
    assert call(port, "PUT", "/v1/sandboxes/a", json=order).status_code == 200
    call(port, "POST", "/v1/sandboxes/a/exec", json=wish)
    statuses: list[int] = []

    def poll() -> None:
        statuses.append(call(port, "GET", f"/v1/exec/{session}/events?after=1&wait_seconds=20").status_code)

    thread = threading.Thread(target=poll)
    thread.start()
    wait_until(lambda: _waiting(port))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=15)
    thread.join(10)
    assert (process.returncode, statuses) == (0, [200])


def _waiting(port: int) -> bool:
    """Return whether a connection to the port is established: the poll."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return any(f":{port:04X} " in line.split()[1] + " " and line.split()[3] == "01" for line in lines[1:])


def test_what_keeps_the_agent_from_starting_is_one_sentence(root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = spawn(root, port=taken.getsockname()[1])
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "cannot listen on 127.0.0.1 port" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"surprise": 1}, "surprise"),
        ({"port": "many"}, "port"),
        ({"root": "/proc/nowhere"}, "/proc/nowhere"),
        ({"root": "/dev/full/x"}, "/dev/full"),
    ],
)
def test_bad_settings_are_one_sentence(root: Path, settings: dict[str, object], words: str) -> None:
    process = spawn(root, **settings)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert words in said and "Traceback" not in said


def test_two_agents_cannot_share_a_root(root: Path) -> None:
    identity(root)
    port = free_port()
    first = spawn(root, port=port)
    try:
        healthy(port, first)
        second = spawn(root, port=0)
        _, said = second.communicate(timeout=20)
        assert second.returncode == 1
        assert "another node agent runs over" in said
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=20)


def test_without_any_engine_nothing_starts(root: Path) -> None:
    root.mkdir()
    runtime = FakeRuntime(root / "fake")
    runtime.controls.fail_probe = RuntimeFailure(ErrorCode.UNSUPPORTED, "runsc is not installed")
    with pytest.raises(NodeStartError, match="runsc is not installed"):
        probe_engines(node_settings(root), {"runsc": lambda _: runtime})
    assert list((root / "fake").iterdir()) == []
