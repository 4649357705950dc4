"""Starts processes inside running containers."""

import contextlib
from dataclasses import dataclass
from typing import Any, Final

import requests

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.host.programs import BUSYBOX_INSIDE as BUSYBOX
from node_agent.runtime.base import EngineState, ExecCommand, ExecProcess
from node_agent.runtime.docker_engine import containers, scripts
from node_agent.runtime.docker_engine import scripts as marks
from node_agent.runtime.docker_engine.client import Api, APIError, Hijacked, Refused, calling
from node_agent.runtime.docker_engine.container_config import resolve_directory
from node_agent.runtime.docker_engine.containers import Containers
from node_agent.runtime.docker_engine.exit_watch import Deaths
from node_agent.runtime.docker_engine.process import DockerExec, FromHost, FromInside, Lost, Signaller, exit_of
from node_agent.runtime.docker_engine.records import Record

_NOT_THERE: Final = (404, 409)  # no such container; it is paused or does not run
_DEATH_WAIT: Final = 1  # seconds in which a container follows its last exec into death


@dataclass(frozen=True)
class Execs:
    """Execs on one engine."""

    api: Api
    containers: Containers
    deaths: Deaths

    def start(self, record: Record, command: ExecCommand) -> ExecProcess:
        """See `SandboxRuntime.exec`."""
        inspected = self._running(record)
        prefix = marks.new_prefix()
        directory = resolve_directory(record.working_dir, command.working_dir)
        options = {
            "user": command.user or "",
            "environment": dict(command.env),
            "stdin": command.stdin,
        }
        argv = [BUSYBOX, "sh", "-c", scripts.EXEC, "sh", BUSYBOX, prefix, directory, *command.argv]
        # Watched before it exists, so that a death right after its start is not missed.
        watch = _Watch(self, inspected["Id"])
        try:
            exec_id, stream = self._open(inspected, argv, options)
        except BaseException:
            watch.stop()
            raise
        watch.found(exec_id, stream)
        return DockerExec(stream, prefix, command.argv[0], directory, self._signaller(inspected, record), watch)

    def _running(self, record: Record) -> dict[str, Any]:
        inspected = self.containers.inspect(record.sandbox_id, record.generation)
        if inspected is None or not record.up or containers.state(inspected) is not EngineState.RUNNING:
            raise not_running(record.sandbox_id)
        return inspected

    def _open(self, inspected: dict[str, Any], argv: list[str], options: dict[str, Any]) -> tuple[str, Hijacked]:
        container: str = inspected["Id"]
        try:
            with calling(f"exec in container {container[:12]}", ErrorCode.START_ERROR):
                try:
                    exec_id = self.api.client.exec_create(container, argv, **options)["Id"]
                except APIError as error:
                    if error.status_code in _NOT_THERE:
                        raise not_running(container[:12]) from error
                    raise
            return exec_id, Hijacked(
                self.api.base_url, f"/v{self.api.version}/exec/{exec_id}/start", {"Detach": False, "Tty": False}
            )
        except Refused as error:
            if error.status in _NOT_THERE:
                raise not_running(container[:12]) from error
            raise RuntimeFailure(
                ErrorCode.START_ERROR,
                f"{argv[-1]} could not be started: {error.message}",
                start_fault=StartFault.NOT_EXECUTABLE,
            ) from error

    def _signaller(self, inspected: dict[str, Any], record: Record) -> Signaller:
        if record.spec.isolation == "runc":
            return FromHost(inspected["State"]["Pid"])
        return FromInside(lambda script, arguments: self._inside(inspected, script, arguments))

    def _inside(self, inspected: dict[str, Any], script: str, arguments: tuple[str, ...]) -> None:
        """Runs a script to its end, as root with all capabilities: it may signal every process of the sandbox."""
        options = {"user": "0", "privileged": True}
        _, stream = self._open(inspected, [BUSYBOX, "sh", "-c", script, "sh", *arguments], options)
        try:
            while stream.read() is not None:
                pass
        finally:
            stream.close()

    def without_mark(self, container: str, exec_id: str) -> Lost:
        """What became of an exec whose stream broke off: its sandbox died, or the shell around it did."""
        client = self.api.new_client()
        try:
            client.wait(container, timeout=_DEATH_WAIT, condition="not-running")
        except requests.RequestException:  # it went on running, or the engine went away: then this fails too
            with contextlib.suppress(requests.RequestException, APIError):
                code = client.exec_inspect(exec_id)["ExitCode"]
                return Lost(True, None if code is None else exit_of(code))
        except APIError:  # it is gone altogether
            return Lost(False)
        finally:
            client.close()
        return Lost(False)


class _Watch:
    """Hangs an exec's stream up when its container ends."""

    def __init__(self, execs: Execs, container: str) -> None:
        self._execs = execs
        self._container = container
        self._exec_id = ""
        self._stream: Hijacked | None = None
        self._dead = False
        with calling(f"events of container {container[:12]}"):
            self.stop = execs.deaths.register(container, self._died)

    def found(self, exec_id: str, stream: Hijacked) -> None:
        """The exec has begun."""
        self._exec_id = exec_id
        self._stream = stream
        if self._dead:
            stream.hang_up()

    def lost(self) -> Lost:
        """What became of the exec."""
        return self._execs.without_mark(self._container, self._exec_id)

    def _died(self) -> None:
        self._dead = True
        if self._stream is not None:
            self._stream.hang_up()


def not_running(sandbox_id: str) -> RuntimeFailure:
    """The sandbox is paused, dead or was never there."""
    return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id} does not run on this node")
