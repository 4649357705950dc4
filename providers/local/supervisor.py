"""A VM with systemd, played by one process: ``python -m providers.local.supervisor DIR``.

It starts the node command, restarts it when it dies, keeps its output in a bounded log, and ends it on SIGTERM.  A node
that a killed supervisor has left is looked after as if it were its own.
When the instance is to be deleted it also ends whatever the node left, runs the cleanup command and removes the
directory.  It lives in a session of its own and outlives whoever started it.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from providers.local.home import MARKER, Home, InstanceRecord, hold_lock, kill_processes_of, node_of, pid_of
from providers.local.network import Network, NetworkError

LOG_BYTES: Final = 8 * 2**20
FIRST_BACKOFF: Final = 0.5
MAX_BACKOFF: Final = 30.0
GOOD_RUN: Final = 60.0  # seconds after which a death counts as the first again
CLEANUP_ATTEMPTS: Final = 3
_CHUNK: Final = 64 * 1024
_PIPE_CHUNKS: Final = 16
_TAIL: Final = 4096  # bytes in which the last line of a child is looked for


class BoundedLog:
    """A file that is rotated once at a size, so that it never takes more than twice that."""

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._tail = b""

    def write(self, data: bytes) -> None:
        """Append data."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)
            full = file.tell() > self._limit
        if full:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))

    def copy(self, data: bytes) -> None:
        """Append what a child wrote."""
        self._tail = (self._tail + data)[-_TAIL:]
        self.write(data)

    def last_line(self) -> str:
        """Return the last line that children wrote since the last call; empty when they wrote nothing."""
        lines, self._tail = self._tail.decode(errors="replace").split("\n"), b""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def say(self, message: str) -> None:
        """Append a line of the supervisor's own."""
        self.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} vm: {message}\n".encode())


@contextlib.contextmanager
def copy_output_to(log: BoundedLog) -> Iterator[int]:
    """Yield a descriptor for a child's output, which goes to the log, up to what is there when the child has ended.

    A pipe of our own: asyncio's counts a process as ended only when nobody holds its pipes any more, and a child that a
    node left behind may hold them for ever.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()

    def copy() -> bool:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(reading, _CHUNK):
                log.copy(data)
                return True
            loop.remove_reader(reading)
        return False

    loop.add_reader(reading, copy)
    try:
        yield writing
    finally:
        os.close(writing)
        # At most what the pipe can hold: a child that goes on writing must not keep us here.
        for _ in range(_PIPE_CHUNKS):
            if not copy():
                break
        loop.remove_reader(reading)
        os.close(reading)


def next_backoff(last: float, ran: float) -> float:
    """Return the seconds to wait before the node command is started again, after it ran for ``ran`` seconds."""
    if last == 0.0 or ran >= GOOD_RUN:
        return FIRST_BACKOFF
    return min(MAX_BACKOFF, 2 * last)


class Supervisor:
    """The life of one instance, from its lock to its end."""

    def __init__(self, home: Home, record: InstanceRecord) -> None:
        self._home = home
        self._record = record
        self._log = BoundedLog(home.log)
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Run until SIGTERM, or until the instance is removed; return the exit code of the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        # The handlers are set before the lock is taken: its holder acts on SIGTERM.
        if hold_lock(self._home.lock) is None:
            return 0
        if not self._home.is_deleting:
            await self._supervise()
        if self._home.is_deleting:
            return await self._tear_down()
        return 0

    async def _supervise(self) -> None:
        backoff = 0.0
        while not self._stop.is_set():
            started = time.monotonic()
            await self._run_node()
            if self._stop.is_set():
                return
            backoff = next_backoff(backoff, time.monotonic() - started)
            self._log.say(f"starting it again in {backoff:.1f} s")
            await self._stopped_within(backoff)

    async def _run_node(self) -> None:
        """Run the node command until it ends."""
        environment = {**os.environ, MARKER: str(self._home.path)}
        command = self._record.node_command
        try:
            command = self._inside(command)
        except NetworkError as error:
            self._fail(f"no network: {error}")
            return
        if (orphan := node_of(self._home.path, self._record.node_command)) is not None:
            try:
                await self._adopt(orphan)
            finally:
                os.close(orphan)
            return
        with copy_output_to(self._log) as output:
            try:
                node = await self._start(command, output, environment)
            except OSError as error:
                self._fail(f"cannot start {command[0]}: {error}")
                return
            self._log.say(f"started process {node.pid}: {' '.join(command)}")
            self._home.note_failure(None)
            if not self._home.has_run:
                self._home.mark("running")
            ending = asyncio.create_task(node.wait())
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await self._end(node, ending)
            stopping.cancel()
        self._log.say(f"process {node.pid} ended with {node.returncode}")
        last = self._log.last_line()
        if not self._stop.is_set():
            self._home.note_failure(last or f"it ended with {node.returncode} and wrote nothing")

    def _fail(self, sentence: str) -> None:
        self._log.say(sentence)
        self._home.note_failure(sentence)

    async def _adopt(self, node: int) -> None:
        """Look after the node of a supervisor that was killed until it ends.

        Args:
            node: its pidfd.
        """
        pid = pid_of(node)
        if pid is None:
            return
        self._log.say(f"adopted process {pid} of a killed supervisor; its output is kept again when it is started anew")
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(node, ended.set)
        try:
            ending = asyncio.create_task(ended.wait())
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not ending.done():
                await self._end_adopted(node, pid, ending)
        finally:
            loop.remove_reader(node)
        self._log.say(f"process {pid} ended")

    async def _end_adopted(self, node: int, pid: int, ending: asyncio.Task[bool]) -> None:
        """Send SIGTERM to an adopted node, and SIGKILL when it does not end in time."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(node, signal.SIGTERM)
            await asyncio.wait({ending}, timeout=self._record.stop_seconds)
            if not ending.done():
                self._log.say(f"process {pid} did not end in {self._record.stop_seconds:.0f} s; killing it")
                signal.pidfd_send_signal(node, signal.SIGKILL)
        await ending

    def _inside(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``command`` inside the instance's own network, which is made where it is missing."""
        namespace = self._record.namespace
        if namespace is None:
            return command
        Network(self._home.path.parent, namespace.subnet).attach(namespace)
        return namespace.entered(command)

    @staticmethod
    async def _start(command: tuple[str, ...], output: int, environment: Mapping[str, str]) -> Process:
        return await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )

    async def _end(self, node: Process, ending: asyncio.Task[int]) -> None:
        """Send SIGTERM to the node, and SIGKILL to its whole group when it does not end in time."""
        with contextlib.suppress(ProcessLookupError):
            node.terminate()
        await asyncio.wait({ending}, timeout=self._record.stop_seconds)
        if not ending.done():
            self._log.say(f"process {node.pid} did not end in {self._record.stop_seconds:.0f} s; killing it")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            await ending

    async def _stopped_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _tear_down(self) -> int:
        """Remove the instance.  When that fails, the directory stays listed, and the next delete tries again."""
        backoff = FIRST_BACKOFF
        for attempt in range(1, CLEANUP_ATTEMPTS + 1):
            try:
                kill_processes_of(self._home.path)
                await self._clean_up()
                if namespace := self._record.namespace:
                    Network(self._home.path.parent, namespace.subnet).detach(namespace.name)
                self._home.remove()
                return 0
            except (OSError, RuntimeError, NetworkError) as error:
                self._fail(f"removal failed ({attempt} of {CLEANUP_ATTEMPTS}): {error}")
            if attempt < CLEANUP_ATTEMPTS:
                await asyncio.sleep(backoff)
                backoff *= 4
        return 1

    async def _clean_up(self) -> None:
        """Run the cleanup command.

        Raises:
            OSError: it cannot be started.
            RuntimeError: it failed or took too long.
        """
        command = self._record.cleanup_command
        if not command:
            return
        if (namespace := self._record.namespace) is not None and namespace.is_there:
            command = namespace.entered(command)
        with copy_output_to(self._log) as output:
            process = await self._start(command, output, os.environ)
            try:
                code = await asyncio.wait_for(process.wait(), self._record.cleanup_seconds)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                raise RuntimeError(f"{command[0]} took over {self._record.cleanup_seconds:.0f} s") from None
        if code != 0:
            raise RuntimeError(self._log.last_line() or f"{' '.join(command)} ended with {code}")


def main(arguments: list[str]) -> int:
    """Run one supervisor; return 0 also when the instance is gone or another supervisor has it."""
    (directory,) = arguments
    home = Home(Path(directory))
    record = home.record()
    if record is None:
        return 0
    try:
        return asyncio.run(Supervisor(home, record).run())
    except FileNotFoundError:  # removed by another supervisor between two steps
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
