"""A `SandboxRuntime` of host processes in temporary directories: fast, without root, and honest about everything that
does not need isolation.  Sandboxes survive the agent, as they do on a real engine.

A path below ``/workspace`` in a command means the sandbox's own directory.  `FakeControls` is the test's handle.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import RuntimeName, SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.host.volume import Volume
from node_agent.runtime.base import (
    Chunk,
    Death,
    EngineState,
    ExecCommand,
    ExecProcess,
    Exit,
    Found,
    LogPiece,
    Order,
    RuntimeFacts,
    SandboxRuntime,
    Stream,
    UsageNow,
)
from node_agent.runtime.counters import CounterFiles, Counters

BUSYBOX = "/bin/busybox"
MARK = "FAKE_SANDBOX"
FIRST = '"$@" >>log.stdout 2>>log.stderr; code=$?; echo $code >exit.new; mv exit.new exit'


@dataclass
class FakeControls:
    """What the engine does in a test."""

    create_gate: threading.Event | None = None
    """A create waits for this, as for a slow image."""
    creating: threading.Event = field(default_factory=threading.Event)
    """Set when a create has come as far as the gate."""
    delete_gate: threading.Event | None = None
    """A delete waits for this in the middle of its work."""
    deleting: threading.Event = field(default_factory=threading.Event)
    """Set once a delete has taken the order away."""
    exec_gate: threading.Event | None = None
    """An exec waits for this after its process has started."""
    fail_creates: list[RuntimeFailure] = field(default_factory=list)
    """Each create takes one of these and fails with it."""
    fail_deletes: list[RuntimeFailure] = field(default_factory=list)
    fail_probe: RuntimeFailure | None = None
    created: list[tuple[str, int]] = field(default_factory=list)
    """Every create that reached the engine."""


class FakeProcess(ExecProcess):
    """A host process in its own session."""

    def __init__(self, sandbox: str, popen: "subprocess.Popen[bytes]") -> None:
        self._sandbox = sandbox
        self._popen = popen
        assert popen.stdout and popen.stderr
        self._streams = {popen.stdout.fileno(): Stream.STDOUT, popen.stderr.fileno(): Stream.STDERR}
        self._pidfd = os.pidfd_open(popen.pid)
        _reap(popen)
        if popen.stdin is not None:
            os.set_blocking(popen.stdin.fileno(), False)  # a write takes what there is room for, and can be ended
        self._wake, self._closer = os.pipe()
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._closed = False

    def read(self) -> Chunk | None:
        with self._reading:
            while not self._closed:
                ended = self._popen.poll() is not None
                waited = [*self._streams, self._wake] + ([] if ended else [self._pidfd])
                ready = _readable(waited, wait=not ended)
                if self._wake in ready:
                    return None
                for descriptor in [d for d in ready if d in self._streams]:
                    if data := os.read(descriptor, limits.EXEC_CHUNK):
                        return Chunk(self._streams[descriptor], data)
                    del self._streams[descriptor]
                if ended and not any(d in self._streams for d in ready):
                    return None
        return None

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._writing:
            while (stdin := self._popen.stdin) is not None and view and not self._closed:
                ready = _readable([self._pidfd, self._wake], writable=stdin.fileno())
                if stdin.fileno() not in ready or len(ready) > 1:
                    return
                try:
                    view = view[os.write(stdin.fileno(), view) :]
                except BrokenPipeError:
                    return

    def close_stdin(self) -> None:
        with self._writing:
            if self._popen.stdin is not None:
                self._popen.stdin.close()
                self._popen.stdin = None

    def signal(self, number: int) -> None:
        if self._popen.poll() is None:
            with suppress(ProcessLookupError):  # it was reaped meanwhile
                os.killpg(self._popen.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def wait(self) -> Exit:
        code = self._popen.wait()
        if code == -signal.SIGKILL and not Path(self._sandbox, "pid").exists():
            raise RuntimeFailure(ErrorCode.EXEC_LOST, "the sandbox ended before its process did")
        return Exit(code) if code >= 0 else Exit(128 - code, -code)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        os.write(self._closer, b"x")
        self.close_stdin()
        with self._reading:
            for stream in (self._popen.stdout, self._popen.stderr):
                if stream is not None:
                    stream.close()
            for descriptor in (self._pidfd, self._wake, self._closer):
                os.close(descriptor)


class _FakeFiles(CounterFiles):
    """Every incarnation has used the same."""

    def read(self) -> Counters:
        return Counters(cpu_seconds=1.0, memory_mb=2.0)


class FakeRuntime(SandboxRuntime):
    """Sandboxes below ``root``, one directory each."""

    name: ClassVar[RuntimeName] = "runsc"

    def __init__(self, root: Path, controls: FakeControls | None = None) -> None:
        self._root = root
        self.controls = controls or FakeControls()
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True)

    def probe(self) -> RuntimeFacts:
        if self.controls.fail_probe:
            raise self.controls.fail_probe
        return RuntimeFacts(self.name, "fake", ("gvisor", "runc"), pause=True, checkpoint=False, gpus=False)

    def create(self, order: Order) -> Found:
        self.controls.created.append((order.sandbox_id, order.generation))
        home = self._home(order.sandbox_id)
        if self.controls.fail_creates:
            raise self.controls.fail_creates.pop(0)
        present = self._read(order.sandbox_id)
        if present and present.order.generation == order.generation and present.state is not EngineState.CREATING:
            return present
        self._kill_all(order.sandbox_id)
        for name in ("pid", "exit", "death.json", "log.stdout", "log.stderr", "paused"):
            (home / name).unlink(missing_ok=True)
        (home / "workspace").mkdir(parents=True, exist_ok=True)
        _write(home / "order.json", _order_text(order))
        self.controls.creating.set()
        if self.controls.create_gate is not None:
            self.controls.create_gate.wait(30)
        try:
            with self._lock:
                (home / "order.json").stat()
                self._start_first(order, home)
                found = self._read(order.sandbox_id)
        except FileNotFoundError:
            found = None
        if found is None:
            self._kill_all(order.sandbox_id)
            raise RuntimeFailure(ErrorCode.CONFLICT, f"sandbox {order.sandbox_id} was deleted while it was created")
        return found

    def delete(self, sandbox_id: str) -> None:
        if self.controls.fail_deletes:
            raise self.controls.fail_deletes.pop(0)
        with self._lock:
            (self._home(sandbox_id) / "order.json").unlink(missing_ok=True)
            (self._home(sandbox_id) / "pid").unlink(missing_ok=True)
        self.controls.deleting.set()
        if self.controls.delete_gate is not None:
            self.controls.delete_gate.wait(30)
        self._kill_all(sandbox_id)
        shutil.rmtree(self._home(sandbox_id), ignore_errors=True)

    def found(self) -> list[Found]:
        return [found for path in sorted(self._root.iterdir()) if (found := self._read(path.name)) is not None]

    def wait(self, sandbox_id: str) -> Death:
        home = self._home(sandbox_id)
        before = self._read(sandbox_id)
        try:
            descriptor = os.pidfd_open(int((home / "pid").read_text()))
        except (FileNotFoundError, ProcessLookupError):
            pass
        else:
            _readable([descriptor])
            os.close(descriptor)
        with self._lock:  # the next generation starts under it, and must not be killed with this one
            found = self._read(sandbox_id)
            same = found is not None and before is not None and found.order.generation == before.order.generation
            if found is None or found.death is None or not same:
                return Death(DeathReason.DELETED, None, "deleted", datetime.now(UTC))
            self._kill_all(sandbox_id)
        return found.death

    def sweep(self) -> list[str]:
        owned = {found.order.sandbox_id for found in self.found()}
        strays = [path for path in self._root.iterdir() if path.name not in owned]
        for path in strays:
            shutil.rmtree(path)
        return [f"removed {path.name}" for path in strays]

    def fail(self, sandbox_id: str, reason: DeathReason, detail: str) -> None:
        self.die(sandbox_id, reason, detail)

    def pause(self, sandbox_id: str) -> None:
        (self._home(sandbox_id) / "paused").touch()
        self._signal_all(sandbox_id, signal.SIGSTOP)

    def resume(self, sandbox_id: str) -> None:
        (self._home(sandbox_id) / "paused").unlink(missing_ok=True)
        self._signal_all(sandbox_id, signal.SIGCONT)

    def exec(self, sandbox_id: str, command: ExecCommand) -> ExecProcess:
        found, home = self._read(sandbox_id), self._home(sandbox_id)
        if found is None or found.state is not EngineState.RUNNING:
            raise RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id} does not run")
        workspace = home / "workspace"
        argv = [_inside(argument, workspace) for argument in command.argv]
        try:
            popen = subprocess.Popen(
                argv,
                cwd=_inside(command.working_dir or "/workspace", workspace),
                env=self._environment(found.order) | dict(command.env),
                stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            fault = StartFault.NOT_FOUND if isinstance(error, FileNotFoundError) else StartFault.NOT_EXECUTABLE
            message = f"{command.argv[0]}: {error.strerror}"
            raise RuntimeFailure(ErrorCode.START_ERROR, message, start_fault=fault) from error
        if self.controls.exec_gate is not None:
            assert self.controls.exec_gate.wait(30)
        return FakeProcess(str(home), popen)

    def busybox(self, sandbox_id: str) -> str:
        return BUSYBOX

    def logs(self, sandbox_id: str, stream: Stream, offset: int, limit: int) -> LogPiece:
        path = self._home(sandbox_id) / f"log.{stream.value}"
        if not path.exists():
            return LogPiece(b"", 0)
        with path.open("rb") as file:
            file.seek(offset)
            return LogPiece(file.read(limit), path.stat().st_size)

    def usage(self, sandbox_id: str) -> UsageNow:
        return UsageNow(memory_mb=1.0, cpu_seconds=0.1, disk_mb=0.5, pids=len(self._pids(sandbox_id)))

    def counter_files(self, sandbox_id: str) -> CounterFiles | None:
        found = self._read(sandbox_id)
        return None if found is None else _FakeFiles(found.order.generation, None, None, Volume(self._root))

    def images(self) -> list[str]:
        return ["sha256:fake"]

    def die(self, sandbox_id: str, reason: DeathReason, detail: str) -> None:
        """Kill the sandbox, as an engine does for want of memory."""
        home = self._home(sandbox_id)
        death = {"reason": reason, "exit_code": 137, "detail": detail, "ended_at": datetime.now(UTC).isoformat()}
        _write(home / "death.json", json.dumps(death))
        pid = int((home / "pid").read_text())
        (home / "pid").unlink()
        os.kill(pid, signal.SIGKILL)
        self._kill_all(sandbox_id)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _home(self, sandbox_id: str) -> Path:
        return self._root / sandbox_id

    def _environment(self, order: Order) -> dict[str, str]:
        mark = f"{self._root}/{order.sandbox_id}/"
        return {"PATH": "/usr/bin:/bin", "HOME": "/", MARK: mark} | dict(order.spec.env)

    def _start_first(self, order: Order, home: Path) -> None:
        command = order.spec.command or ["sleep", "infinity"]
        argv = ["/bin/sh", "-c", FIRST, "first", *[_inside(a, home / "workspace") for a in command]]
        popen = subprocess.Popen(
            argv,
            cwd=home,
            env=self._environment(order),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _write(home / "pid", str(popen.pid))
        _reap(popen)

    def _read(self, sandbox_id: str) -> Found | None:
        home = self._home(sandbox_id)
        try:
            with (home / "order.json").open() as file:  # another thread may delete it meanwhile
                order = _order_of(file.read())
                started = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
        except FileNotFoundError:
            return None
        death = self._death(home)
        state = EngineState.CREATING
        if death is not None:
            state = EngineState.DEAD
        elif (home / "pid").exists():
            state = EngineState.PAUSED if (home / "paused").exists() else EngineState.RUNNING
        return Found(order, state, order.spec.isolation, "sha256:fake", started, death)

    def _death(self, home: Path) -> Death | None:
        if (home / "death.json").exists():
            stored = json.loads((home / "death.json").read_text())
            ended = datetime.fromisoformat(stored["ended_at"])
            return Death(DeathReason(stored["reason"]), stored["exit_code"], stored["detail"], ended)
        if (home / "exit").exists():
            code = int((home / "exit").read_text())
            return Death(DeathReason.EXITED, code, f"its first process ended with {code}", datetime.now(UTC))
        if (home / "pid").exists() and not _alive(int((home / "pid").read_text())):
            return Death(DeathReason.EXITED, 137, "its first process was killed", datetime.now(UTC))
        return None

    def _pids(self, sandbox_id: str) -> list[int]:
        mark = f"{MARK}={self._root}/{sandbox_id}/".encode()
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    if mark in (path / "environ").read_bytes().split(b"\0"):
                        found.append(int(path.name))
                except OSError:
                    continue
        return found

    def _signal_all(self, sandbox_id: str, number: int) -> None:
        for pid in self._pids(sandbox_id):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _kill_all(self, sandbox_id: str) -> None:
        self._signal_all(sandbox_id, signal.SIGKILL)


class FakeGpuRuntime(FakeRuntime):
    """The same under the name of the engine that gives GPUs to sandboxes."""

    name: ClassVar[RuntimeName] = "docker"

    def probe(self) -> RuntimeFacts:
        return replace(super().probe(), gpus=True)


def _readable(descriptors: list[int], *, wait: bool = True, writable: int | None = None) -> list[int]:
    """Return those that can be read, or whose other end is gone; and ``writable`` if it can be written."""
    poll = select.poll()  # select() ends at descriptor 1023
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    if writable is not None:
        poll.register(writable, select.POLLOUT)
    return [descriptor for descriptor, _ in poll.poll(None if wait else 0)]


def _reap(popen: "subprocess.Popen[bytes]") -> None:
    """Wait for the process on a thread of its own, so that it leaves no zombie however its agent ends."""
    threading.Thread(target=popen.wait, daemon=True).start()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _inside(argument: str, workspace: Path) -> str:
    if argument == "/workspace" or argument.startswith("/workspace/"):
        return str(workspace) + argument.removeprefix("/workspace")
    return argument


def _write(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def _order_text(order: Order) -> str:
    return json.dumps(
        {
            "sandbox_id": order.sandbox_id,
            "generation": order.generation,
            "operation_id": order.operation_id,
            "spec_hash": order.spec_hash,
            "gpus": order.gpus,
            "spec": order.spec.model_dump(mode="json"),
        }
    )


def _order_of(text: str) -> Order:
    stored = json.loads(text)
    spec = SandboxSpec.model_validate_json(json.dumps(stored["spec"]))
    ids = (stored["sandbox_id"], stored["generation"], stored["operation_id"])
    return Order(*ids, spec, stored["spec_hash"], tuple(stored["gpus"]))
