"""Starts processes inside running containers."""

import contextlib
from dataclasses import dataclass
from typing import Any, Final

import requests
from docker.errors import APIError, DockerException, NotFound

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.programs import BUSYBOX_INSIDE as BUSYBOX
from node_agent.runtime.base import EngineState, ExecCommand, ExecProcess, not_running
from node_agent.runtime.docker_engine import containers, scripts
from node_agent.runtime.docker_engine.client import Api, StreamRefusedError, UpgradedStream, calling
from node_agent.runtime.docker_engine.container_config import LABEL_ID, resolve_directory
from node_agent.runtime.docker_engine.containers import Containers
from node_agent.runtime.docker_engine.exit_watch import ContainerExits
from node_agent.runtime.docker_engine.process import (
    DockerExec,
    HostSignaller,
    InsideSignaller,
    LostExec,
    Remains,
    Signaller,
    exit_of,
    hung_up_after,
    not_begun,
)
from node_agent.runtime.record import DockerRecord

_NOT_THERE: Final = (404, 409)  # no such container; it is paused or does not run
SCRIPT_WAIT: Final = 20.0  # seconds; root inside a sandbox can stop the script that sends its signals
_DEATH_WAIT: Final = 1  # seconds in which a container follows its last exec into death


@dataclass(frozen=True)
class DockerExecs:
    """Starts processes on one engine."""

    api: Api
    containers: Containers
    exits: ContainerExits

    def start(self, record: DockerRecord, command: ExecCommand) -> ExecProcess:
        """Start a process; see `SandboxRuntime.exec`."""
        inspected = self._running(record)
        prefix = scripts.new_prefix()
        directory = resolve_directory(record.working_dir, command.working_dir)
        options = {
            "user": command.user or "",
            "environment": dict(command.env),
            "stdin": command.stdin,
        }
        argv = [BUSYBOX, "sh", "-c", scripts.EXEC, "sh", BUSYBOX, prefix, directory, *command.argv]
        # Watched before it exists, so that a death right after its start is not missed.
        watch = _StreamWatch(self, inspected["Id"])
        try:
            exec_id, stream = self._open(inspected, argv, options)
        except BaseException:
            watch.stop()
            raise
        watch.begun(exec_id, stream)
        return DockerExec(stream, prefix, command.argv[0], directory, self._signaller(inspected, record), watch)

    def _running(self, record: DockerRecord) -> dict[str, Any]:
        """Return the container of a sandbox that runs.

        Raises:
            RuntimeFailure: ``SANDBOX_NOT_RUNNING``.
        """
        if record.state is not EngineState.RUNNING:
            raise not_running(record.sandbox_id, record.state, record.death)
        inspected = self.containers.inspect(record.sandbox_id, record.generation)
        state = EngineState.DEAD if inspected is None else containers.state(inspected)
        if inspected is None or state is not EngineState.RUNNING:
            raise not_running(record.sandbox_id, state)
        return inspected

    def _open(self, inspected: dict[str, Any], argv: list[str], options: dict[str, Any]) -> tuple[str, UpgradedStream]:
        container: str = inspected["Id"]
        try:
            with calling(f"exec in container {container[:12]}", ErrorCode.START_ERROR):
                try:
                    exec_id = self.api.client.exec_create(container, argv, **options)["Id"]
                except APIError as error:
                    if error.status_code in _NOT_THERE:
                        raise _no_longer_running(inspected) from error
                    raise
            return exec_id, UpgradedStream(
                self.api.base_url, f"/v{self.api.version}/exec/{exec_id}/start", {"Detach": False, "Tty": False}
            )
        except StreamRefusedError as error:
            if error.status in _NOT_THERE:
                raise _no_longer_running(inspected) from error
            raise not_begun(argv[-1], error.message) from error

    def _signaller(self, inspected: dict[str, Any], record: DockerRecord) -> Signaller:
        if record.spec.isolation == "runc":
            return HostSignaller(inspected["State"]["Pid"])
        return InsideSignaller(lambda script, arguments: self._inside(inspected, script, arguments))

    def _inside(self, inspected: dict[str, Any], script: str, arguments: tuple[str, ...]) -> None:
        """Run a script to its end, as root with all capabilities: it may signal every process of the sandbox."""
        options = {"user": "0", "privileged": True}
        _, stream = self._open(inspected, [BUSYBOX, "sh", "-c", script, "sh", *arguments], options)
        try:
            with hung_up_after(SCRIPT_WAIT, stream) as overdue:
                while stream.read() is not None:
                    pass
        finally:
            stream.close()
        if overdue.is_set():
            sandbox_id = inspected["Config"]["Labels"][LABEL_ID]
            raise RuntimeFailure(
                ErrorCode.TIMEOUT, f"sandbox {sandbox_id} let no signal through for {SCRIPT_WAIT:g} s; is it paused?"
            )

    def without_mark(self, container: str, exec_id: str) -> LostExec:
        """Return what became of an exec whose stream broke off: its sandbox died, or the shell around it did."""
        try:
            client = self.api.new_client()
        except (DockerException, requests.RequestException):
            return LostExec(Remains.UNKNOWN)
        with contextlib.closing(client):
            try:
                client.wait(container, timeout=_DEATH_WAIT, condition="not-running")
                return LostExec(Remains.SANDBOX_GONE)
            except APIError as error:
                return LostExec(Remains.SANDBOX_GONE if isinstance(error, NotFound) else Remains.UNKNOWN)
            except requests.RequestException:  # it went on running, or the engine went away: then this fails too
                try:
                    code = client.exec_inspect(exec_id)["ExitCode"]
                except (APIError, requests.RequestException):
                    return LostExec(Remains.UNKNOWN)
                return LostExec(Remains.SANDBOX_RUNS, None if code is None else exit_of(code))


class _StreamWatch:
    """Hangs an exec's stream up when its container ends."""

    def __init__(self, execs: DockerExecs, container: str) -> None:
        self._execs = execs
        self._container = container
        self._exec_id = ""
        self._stream: UpgradedStream | None = None
        self._dead = False
        with calling(f"events of container {container[:12]}"):
            self.stop = execs.exits.register(container, self._died)

    def begun(self, exec_id: str, stream: UpgradedStream) -> None:
        """Note that the exec has begun."""
        self._exec_id = exec_id
        self._stream = stream
        if self._dead:
            stream.hang_up()

    def lost(self) -> LostExec:
        """Return what became of the exec."""
        return self._execs.without_mark(self._container, self._exec_id)

    def _died(self) -> None:
        self._dead = True
        if self._stream is not None:
            self._stream.hang_up()


def _no_longer_running(inspected: dict[str, Any]) -> RuntimeFailure:
    sandbox_id = inspected["Config"]["Labels"][LABEL_ID]
    return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id} stopped running before the exec began")
