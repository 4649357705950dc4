"""What a contract test works with: an engine, and sandboxes that it makes there."""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import docker

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from node_agent.errors import RuntimeFailure
from node_agent.host.cgroup import Cgroup
from node_agent.runtime.base import ExecCommand, ExecProcess, Found, Order, SandboxRuntime, Stream
from node_agent.runtime.docker_engine import container_config
from tests.engines.images import TestImages

PAUSE = ["sleep", "86400"]
UNTIL_GO = "while [ ! -e /workspace/go ]; do sleep 0.05; done"
"""For a first process that does its thing when the test makes ``/workspace/go``."""

_CGROUPS = Path("/sys/fs/cgroup")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Result:
    """How a process ended and all that it wrote."""

    code: int
    signal: int | None
    stdout: bytes
    stderr: bytes


@dataclass
class Lab:
    """An engine under test.

    Attributes:
        runtime: the instance under test; its root directory is ``root``.
        reopen: a second instance over the same root and engine, as a restarted agent makes it.
        tag: the node's tag, which everything host-wide has in its name.
    """

    runtime: SandboxRuntime
    reopen: Callable[[], SandboxRuntime]
    root: Path
    tag: str
    images: TestImages
    fields: dict[str, Any]
    made: list[str] = field(default_factory=list)

    def spec(self, **fields: Any) -> SandboxSpec:
        """Return a spec with small amounts; ``fields`` as a client would send them."""
        base = {"id": f"t-{uuid.uuid4().hex[:12]}", "image": self.images.busybox, "command": PAUSE, "memory_mb": 128}
        return SandboxSpec.model_validate(base | {"disk_mb": 64, "cpus": 2} | self.fields | fields)

    def order(self, generation: int = 1, **fields: Any) -> Order:
        """Return an order for a new sandbox, or for the id that ``fields`` hold."""
        spec = self.spec(**fields)
        self.made.append(spec.id)
        return Order(spec.id, generation, f"op-{uuid.uuid4().hex}", spec, spec.sha256())

    def create(self, generation: int = 1, **fields: Any) -> "Box":
        """Create a running sandbox, which is removed at the end of the test run at the latest."""
        order = self.order(generation, **fields)
        self.runtime.create(order)
        return Box(self, order)

    @contextlib.contextmanager
    def sandbox(self, **fields: Any) -> Iterator["Box"]:
        """Create a running sandbox for one test."""
        box = self.create(**fields)
        try:
            yield box
        finally:
            self.runtime.delete(box.id)

    def found(self, sandbox_id: str, runtime: SandboxRuntime | None = None) -> Found | None:
        """Return what the engine has of one sandbox."""
        everything = (runtime or self.runtime).found()
        return next((found for found in everything if found.order.sandbox_id == sandbox_id), None)

    def delete_all(self) -> None:
        """Remove every sandbox that a test made."""
        while self.made:
            self.runtime.delete(self.made.pop())


@dataclass(frozen=True)
class HostGroup:
    """The control group of one sandbox on the host, on hosts with version 1 and with version 2."""

    name: str

    @property
    def is_v2(self) -> bool:
        return (_CGROUPS / "cgroup.controllers").exists()

    def directory(self, controller: str) -> Path:
        """Return where that controller has the group."""
        return (_CGROUPS if self.is_v2 else _CGROUPS / controller) / self.name.removeprefix("/")

    def number(self, controller: str, file: str) -> int:
        """Return what one of its files says."""
        return int((self.directory(controller) / file).read_text())


@dataclass(frozen=True)
class Box:
    """One sandbox."""

    lab: Lab
    order: Order

    @property
    def id(self) -> str:
        return self.order.sandbox_id

    def container(self, client: docker.APIClient) -> str:
        """Return the id of the container that the Docker runtime made."""
        labels = [f"{container_config.LABEL}={self.lab.tag}", f"{container_config.LABEL_ID}={self.id}"]
        (entry,) = client.containers(all=True, filters={"label": labels})
        found: str = entry["Id"]
        return found

    def host_group(self, client: docker.APIClient) -> HostGroup:
        """Return where the host's kernel holds the sandbox's processes."""
        if self.lab.fields["runtime"] == "runsc":
            return HostGroup(Cgroup(self.lab.tag, self.id).path)
        tag = container_config.cgroup_tag(self.lab.tag)
        name = f"sandbox-{self.lab.tag}-{self.id}-1"
        return HostGroup(Cgroup(tag, f"{name}/{self.container(client)}").path)

    def exec(self, *argv: str, stdin: bool = False, **fields: Any) -> ExecProcess:
        """Start a process."""
        return self.lab.runtime.exec(self.id, ExecCommand(argv, stdin=stdin, **fields))

    def run(self, *argv: str, stdin: bytes | None = None, **fields: Any) -> Result:
        """Run a process to its end."""
        process = self.exec(*argv, stdin=stdin is not None, **fields)
        with contextlib.closing(process):
            if stdin is not None:
                feeder = threading.Thread(target=_feed, args=(process, stdin))
                feeder.start()
            stdout, stderr = read_all(process)
            if stdin is not None:
                feeder.join()
            ended = process.wait()
        return Result(ended.code, ended.signal, stdout, stderr)

    def sh(self, script: str, **fields: Any) -> Result:
        """Run a script with the image's shell."""
        return self.run("sh", "-c", script, **fields)

    def go(self) -> None:
        """Let a first process go on that waits `UNTIL_GO`.

        It may end the sandbox before this exec is seen to end; what counts is that the file is there.
        """
        try:
            self.run("touch", "/workspace/go")
        except RuntimeFailure as failure:
            if failure.code not in (ErrorCode.EXEC_LOST, ErrorCode.SANDBOX_NOT_RUNNING):
                raise

    def text(self, script: str, **fields: Any) -> str:
        """Run a script that succeeds, and return what it prints without the last newline."""
        result = self.sh(script, **fields)
        assert result.code == 0, result
        return result.stdout.decode().removesuffix("\n")


def _feed(process: ExecProcess, data: bytes) -> None:
    process.write(data)
    process.close_stdin()


def read_all(process: ExecProcess) -> tuple[bytes, bytes]:
    """Return both outputs until the end of the process."""
    parts: dict[Stream, list[bytes]] = {Stream.STDOUT: [], Stream.STDERR: []}
    while (chunk := process.read()) is not None:
        parts[chunk.stream].append(chunk.data)
    return b"".join(parts[Stream.STDOUT]), b"".join(parts[Stream.STDERR])


def read_until(process: ExecProcess, wanted: bytes, stream: Stream = Stream.STDOUT) -> bytes:
    """Return output up to and including ``wanted``; fail when the process ends before."""
    seen = b""
    while wanted not in seen:
        chunk = process.read()
        assert chunk is not None, f"ended before {wanted!r}: {seen!r}"
        if chunk.stream is stream:
            seen += chunk.data
    return seen


def in_thread(work: Callable[..., Value], *args: Any) -> "Future[Value]":
    """Call ``work`` in a thread of its own that does not keep a failing test run alive."""
    future: Future[Value] = Future()

    def call() -> None:
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
