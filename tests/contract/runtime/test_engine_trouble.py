"""A Docker engine that is killed: whoever calls meanwhile is asked to call again, and is not told that it did wrong."""

import contextlib
import gc
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from docker.errors import DockerException

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.process import pinned, readable, send
from node_agent.runtime.base import EngineState
from node_agent.runtime.docker_engine.dockerd import DockerDaemon
from node_agent.runtime.docker_engine.exec import DockerExecs
from node_agent.runtime.docker_engine.runtime import DockerRuntime
from tests.contract.runtime.lab import Lab, read_all, read_until
from tests.engines.images import import_images

pytestmark = [
    pytest.mark.engine,
    # docker-py leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_BACK_WITHIN = 60.0
_AFTER = {"pause": EngineState.PAUSED, "resume": EngineState.RUNNING, "delete": None}


@pytest.fixture(scope="module")
def engine() -> Iterator["Engine"]:
    directory = Path(tempfile.mkdtemp(prefix="sfd-", dir="/tmp"))
    made = Engine(directory)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        mounts.unmount_below(directory)
        shutil.rmtree(directory)


@pytest.fixture
def own(engine: "Engine", caplog: pytest.LogCaptureFixture) -> Iterator[Lab]:
    engine.be_there()
    root = Path(tempfile.mkdtemp(prefix="sfn-", dir="/tmp"))
    tag = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    with contextlib.closing(docker.APIClient(base_url=engine.url)) as client:
        images = import_images(client)
    runtime = DockerRuntime(root, tag=tag, base_url=engine.url)
    made = Lab(runtime, lambda: runtime, root, tag, images, {"runtime": "docker", "isolation": "gvisor"})
    try:
        yield made
    finally:
        engine.be_there()
        _answers(made.delete_all)
        runtime.sweep()
        runtime.close()
        shutil.rmtree(root)
        # What docker-py left goes while the filter above holds; records of the log hold on to it.
        for phase in ("setup", "call", "teardown"):
            caplog.get_records(phase).clear()
        gc.collect()


class Engine:
    """A Docker engine that can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._daemon = DockerDaemon(directory / "engine", directory / "docker.sock")
        self.url = self._daemon.url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._daemon.prepare(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _BACK_WITHIN
        with contextlib.closing(docker.APIClient(base_url=self.url, version="1.41")) as client:
            while True:
                try:
                    client.ping()
                    return
                except (DockerException, requests.RequestException):
                    assert time.monotonic() < deadline, "the engine does not come back"
                    time.sleep(0.1)

    def be_there(self) -> None:
        """Start it where a test has killed it."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        assert self._process is not None
        with pinned(self._containerd(), lambda: True) as handle:
            self._process.kill()
            self._process.wait()
            assert handle is None or readable(handle, 10)  # it dies with the engine
        # Until somebody reaps it the next engine would take it for one that runs.
        self._containerd_pid.unlink()

    def kill_containerd(self) -> None:
        """Kill what serves its containers; it starts another one."""
        with pinned(self._containerd(), lambda: True) as handle:
            assert handle is not None
            send(handle, signal.SIGKILL)
            assert readable(handle, 10)

    def stop(self) -> None:
        """End it, and the containerd that it may have taken over from its killed forerunner."""
        assert self._process is not None
        self.be_there()
        with pinned(self._containerd(), lambda: True) as handle:
            self._process.terminate()
            self._process.wait(60)
            if handle is not None and not readable(handle, 5):
                send(handle, signal.SIGKILL)
        self._end_shims()

    def _end_shims(self) -> None:
        """End the processes beside containers of which a killed engine never learned, or whose end it missed."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with pinned(int(entry.name), lambda: self._is_named_by(entry)) as handle:  # noqa: B023 - called here
                    if handle is not None:
                        send(handle, signal.SIGKILL)

    def _is_named_by(self, process: Path) -> bool:
        try:
            return os.fsencode(self._daemon.directory) in (process / "cmdline").read_bytes()
        except OSError:
            return False

    def _containerd(self) -> int:
        return int(self._containerd_pid.read_text())

    @property
    def _containerd_pid(self) -> Path:
        return self._daemon.directory / "exec" / "containerd" / "containerd.pid"


def _asked(call: Any) -> Any:
    """Make a call, which may be refused for now only."""
    try:
        return call()
    except RuntimeFailure as failure:
        assert failure.retryable, (failure.code, failure.message)
        raise


def _answers(call: Any) -> Any:
    """Repeat a call as a client does for as long as it is to."""
    deadline = time.monotonic() + _BACK_WITHIN
    while True:
        try:
            return _asked(call)
        except RuntimeFailure as failure:
            assert time.monotonic() < deadline, failure.message
            time.sleep(0.2)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_calls_while_containerd_is_killed_are_to_be_repeated(own: Lab, engine: Engine) -> None:
    box, order = own.create(), own.order()

    engine.kill_containerd()

    for call in (lambda: own.runtime.create(order), lambda: box.run("echo", "up")):
        with contextlib.suppress(RuntimeFailure):
            _asked(call)
    assert _answers(lambda: own.runtime.create(order)).order == order
    assert _answers(lambda: box.run("echo", "up")).stdout == b"up\n"


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["pause", "resume", "delete"])
def test_every_call_works_in_the_end_although_containerd_was_killed(own: Lab, engine: Engine, action: str) -> None:
    box = own.create()
    if action == "resume":
        own.runtime.pause(box.id)

    engine.kill_containerd()

    _answers(lambda: getattr(own.runtime, action)(box.id))
    found = own.found(box.id)
    assert (None if found is None else found.state) == _AFTER[action]


def test_engine_that_dies_while_an_exec_begins_leaves_its_end_unknown(
    own: Lab, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have begun, so it is not to be repeated; and its sandbox did not end."""
    box = own.create()
    opened = DockerExecs._open

    def killed(*arguments: Any) -> Any:
        answer = opened(*arguments)
        engine.kill()
        return answer

    monkeypatch.setattr(DockerExecs, "_open", killed)
    with pytest.raises(RuntimeFailure) as failure:
        box.run("sleep", "1000")
    monkeypatch.undo()

    assert failure.value.code is ErrorCode.EXEC_LOST
    engine.start()
    assert box.text("echo up") == "up"


def test_engine_that_dies_leaves_its_sandboxes_and_is_busy_meanwhile(own: Lab, engine: Engine) -> None:
    box = own.create()
    process = box.exec("sh", "-c", "echo ready; sleep 1000")
    read_until(process, b"ready\n")
    order = own.order()

    engine.kill()

    read_all(process)
    with pytest.raises(RuntimeFailure) as lost:
        process.wait()
    process.close()
    assert lost.value.code is ErrorCode.EXEC_LOST
    calls = (
        lambda: own.runtime.create(order),
        lambda: box.run("true"),
        lambda: own.runtime.pause(box.id),
        lambda: own.runtime.usage(box.id),
        lambda: own.runtime.delete(order.sandbox_id),
    )
    for call in calls:
        with pytest.raises(RuntimeFailure) as busy:
            call()
        assert busy.value.code is ErrorCode.BUSY
    engine.start()
    assert box.text("echo up") == "up"
    assert own.runtime.create(order).order == order


def test_engine_that_dies_while_a_sandbox_starts_is_not_the_callers_fault(own: Lab, engine: Engine) -> None:
    for delay in (0.1, 0.2, 0.3, 0.45):
        order = own.order()
        timer = threading.Timer(delay, engine.kill)
        timer.start()
        with contextlib.suppress(RuntimeFailure):
            try:
                own.runtime.create(order)
            except RuntimeFailure as failure:
                assert failure.code is ErrorCode.BUSY, failure.message
                raise
        timer.join()
        engine.start()
        assert _answers(lambda: own.runtime.create(order)).order == order  # noqa: B023
