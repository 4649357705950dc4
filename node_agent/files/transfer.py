"""Moves one file into or out of a sandbox, streaming.

The script that does it runs as the sandbox's user, so processes beside it can write into its pipes, stop it, or kill
it.  What it answers is bounded and has a deadline; the worst that they achieve is that this one transfer fails, or
carries bytes that they could have put into the file anyway.
"""

import asyncio
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gateway.wire.errors import ErrorCode
from gateway.wire.shares import FairPool, Holder
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.files import scripts
from node_agent.runtime.base import ExecCommand, ExecProcess, SandboxRuntime, Stream
from node_agent.runtime.untrusted import ForgedAnswerError, NumberLine

log = logging.getLogger(__name__)

MAX_TRANSFERS = 64
SHARE_WAIT = 10.0  # seconds for which a transfer waits until others of its own sandbox or tenant have ended
IDLE_WAIT = 60.0  # seconds for which a caller may send, or take, no byte
ANSWER_WAIT = 15.0  # for a file's size and first bytes; with SHARE_WAIT before the gateway gives up
END_WAIT = 30.0  # a script whose input ended needs no longer to rename, or to clean up after itself
STALL_WAIT = 60.0  # one batch that is not read for this long: the sandbox hangs, or is paused

BATCH = 1024 * 1024  # bytes to or from a thread at once: a wake-up of the loop costs some 50 µs and bounds the speed
MAX_STDERR = 4096
MAX_NOISE = 1024 * 1024  # bytes of a script's output that nobody asked for; then it is ended
MAX_SIZE = 2**60  # bytes of a file
MAX_UNSIZED = 16 * 1024 * 1024  # bytes of a file whose size is not told, as of those in /proc; held in memory

T = TypeVar("T")

Receive = Callable[[], Awaitable[bytes]]
"""The next piece of the request's body, empty at its end; raises `ClientGone`."""


class ClientGone(Exception):  # noqa: N818 - an event, not an error of ours
    """The client left before the body was whole."""


@dataclass(frozen=True)
class SandboxFile:
    """A path in a sandbox."""

    runtime: SandboxRuntime
    sandbox_id: str
    path: str

    def failure(self, code: int, stderr: bytes) -> NodeError:
        """Return why a script ended with this code."""
        error, sentence = scripts.explain(code, stderr)
        return NodeError(error, f"{self.path!r} in sandbox {self.sandbox_id} {sentence}")

    def unreadable(self, why: str) -> NodeError:
        """Return the refusal of what looks like a file and is none."""
        return NodeError(
            ErrorCode.UNSUPPORTED, f"{self.path!r} in sandbox {self.sandbox_id} {why}; read it with a command"
        )


class Download:
    """A file on its way out: its size is known before its first byte is sent."""

    def __init__(self, size: int, first: bytes, pump: "Pump") -> None:
        """
        Args:
            size: in bytes.
            first: bytes that have come by now.
            pump: brings the others.
        """
        self.size = size
        self._first = first
        self._pump = pump

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield exactly ``size`` bytes, or fewer when the file or the sandbox went away, or stood still, meanwhile."""
        left = self.size
        piece = self._first or (await self._take() if left else b"")
        while piece and left:
            piece = piece[:left]  # the file grew while it was read: the announced size holds
            left -= len(piece)
            yield piece
            piece = await self._take() if left else b""

    async def _take(self) -> bytes:
        try:
            async with asyncio.timeout(STALL_WAIT):
                return await self._pump.take()
        except TimeoutError:
            return b""


class Transfers:
    """Uploads and downloads, a bounded number at once that tenants and sandboxes share fairly."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._running = FairPool(MAX_TRANSFERS)
        self._ended = asyncio.Condition()

    async def upload(self, target: SandboxFile, size: int, receive: Receive) -> None:
        """Write the body to the file, whole or not at all.

        Raises:
            NodeError: what kept the file from being written.
            ClientGone: the client left; nothing is left behind.
        """
        part = f".upload-{secrets.token_hex(8)}"
        async with self._place(target):
            busybox = target.runtime.busybox(target.sandbox_id)
            command = scripts.upload_command(busybox, target.path, size, part)
            async with self._process(target, ExecCommand(command, stdin=True)) as process:
                pump = Pump(process, asyncio.get_running_loop())
                pump.abandon()
                try:
                    await self._feed(target, process, pump, receive, size)
                finally:
                    # Without the whole body the script sees a short file and removes it.
                    await asyncio.shield(self._run(process.close_stdin))
                    await asyncio.wait([pump.ended], timeout=END_WAIT)
                if not pump.ended.done():
                    raise _stalled(target)
                code = await pump.ended
                if code != 0:
                    raise target.failure(code, pump.stderr)

    @asynccontextmanager
    async def download(self, target: SandboxFile) -> AsyncIterator[Download]:
        """Open the file: its size is known and its bytes follow.

        Raises:
            NodeError: ``FILE_NOT_FOUND``, ``IS_DIRECTORY``, and what else keeps it from being read.
        """
        async with self._place(target):
            busybox = target.runtime.busybox(target.sandbox_id)
            command = ExecCommand(scripts.download_command(busybox, target.path))
            async with self._process(target, command) as process:
                pump = Pump(process, asyncio.get_running_loop())
                try:
                    yield await _opened(target, pump)
                finally:
                    pump.abandon()

    @asynccontextmanager
    async def _place(self, target: SandboxFile) -> AsyncIterator[None]:
        """Take a place for one transfer, waiting while the share is used up; who has one left gets in at once.

        Raises:
            NodeError: ``BUSY``.
        """
        holder = Holder.of(target.sandbox_id)
        full = self._running.take(holder)
        if full is not None:
            try:
                async with asyncio.timeout(SHARE_WAIT), self._ended:
                    await self._ended.wait_for(lambda: self._running.take(holder) is None)
            except TimeoutError:
                raise NodeError(
                    ErrorCode.BUSY,
                    f"{self._running.held(holder)} files are moved in sandbox {target.sandbox_id} and"
                    f" {self._running.total} on its node, which moves {MAX_TRANSFERS}: {full.value};"
                    " try again when one has ended",
                ) from None
        try:
            yield
        finally:
            self._running.give(holder)
            async with self._ended:
                self._ended.notify_all()

    async def _feed(self, target: SandboxFile, process: ExecProcess, pump: "Pump", receive: Receive, size: int) -> None:
        """Receive the next batch while the last one is being written."""
        writing: asyncio.Future[None] | None = None
        left = size
        try:
            while left and not pump.ended.done() and (batch := await _batch(receive)):
                left -= len(batch)
                if writing is not None:
                    await self._written(target, process, writing)
                writing = self._run(partial(process.write, batch))
        finally:
            if writing is not None:
                await self._written(target, process, writing)

    async def _written(self, target: SandboxFile, process: ExecProcess, writing: "asyncio.Future[None]") -> None:
        await asyncio.wait([writing], timeout=STALL_WAIT)
        if not writing.done():
            await asyncio.shield(self._run(partial(_end, process)))
            raise _stalled(target)
        await writing

    @asynccontextmanager
    async def _process(self, target: SandboxFile, command: ExecCommand) -> AsyncIterator[ExecProcess]:
        process = await self._run(partial(target.runtime.exec, target.sandbox_id, command))
        try:
            yield process
        except RuntimeFailure as failure:
            raise _interrupted(target, failure) from failure
        finally:
            await asyncio.shield(self._run(partial(_end, process)))

    def _run(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._executor, call)


async def _opened(target: SandboxFile, pump: "Pump") -> Download:
    """Return the download once its size is certain.

    A large file has the size that it was announced with, or its download breaks off.  A small one is held until it is
    whole: the sizes of files in /proc and /sys say nothing, and any file may have become shorter.
    """
    try:
        async with asyncio.timeout(ANSWER_WAIT):
            size, first = await _announced(target, pump)
            if size > BATCH:
                return Download(size, first, pump)
            whole = await _held(target, pump, size, first)
            return Download(len(whole), whole, pump)
    except TimeoutError:
        sentence = f"{target.path!r} in sandbox {target.sandbox_id} was not read within {ANSWER_WAIT:g} s"
        raise NodeError(ErrorCode.TIMEOUT, f"{sentence}; the sandbox is busy, or the file has no end") from None


async def _announced(target: SandboxFile, pump: "Pump") -> tuple[int, bytes]:
    """Return the size that the script announces, and the bytes that came with it."""
    line = NumberLine(MAX_SIZE)
    try:
        while piece := await pump.take():
            if (found := line.feed(piece)) is not None:
                return found
        raise target.failure(await pump.ended, pump.stderr)
    except ForgedAnswerError as error:
        raise _disturbed(f"{target.path!r} in sandbox {target.sandbox_id}", f"forged its size: {error}") from error


async def _held(target: SandboxFile, pump: "Pump", size: int, first: bytes) -> bytes:
    """Return the ``size`` bytes of a small file, or all that it has where they are fewer, or the size is not told."""
    held = bytearray(first)
    most = size - 1 if size else MAX_UNSIZED
    while len(held) <= most and (piece := await pump.take()):
        held += piece
    if len(held) > most:
        if not size:
            raise target.unreadable(f"tells no size and has more than {most} bytes")
        return bytes(held[:size])
    if (code := await pump.ended) != 0:
        raise target.failure(code, pump.stderr) if size else target.unreadable("cannot be read as a file")
    return bytes(held)


def _disturbed(file: str, what: str) -> RuntimeFailure:
    sentence = f"{file} could not be moved: another process of the sandbox {what}"
    return RuntimeFailure(ErrorCode.TRANSFER_INTERRUPTED, sentence)


def _interrupted(target: SandboxFile, failure: RuntimeFailure) -> NodeError:
    """Return what a client sees of a helper process that went away: it knows of files, and not of processes."""
    if failure.code not in {ErrorCode.EXEC_LOST, ErrorCode.STDIN_CLOSED}:
        return failure
    return NodeError(
        ErrorCode.TRANSFER_INTERRUPTED, f"{target.path!r} in sandbox {target.sandbox_id} {scripts.INTERRUPTED}"
    )


def _stalled(target: SandboxFile) -> NodeError:
    return NodeError(
        ErrorCode.TIMEOUT,
        f"{target.path!r} in sandbox {target.sandbox_id} was not written: the sandbox did not take it in time",
    )


async def within_idle(call: Awaitable[T]) -> T:
    """Return the result of one step that is the caller's to make.

    Raises:
        NodeError: ``TIMEOUT``: it was not made within `IDLE_WAIT` seconds.
    """
    try:
        async with asyncio.timeout(IDLE_WAIT):
            return await call
    except TimeoutError:
        raise NodeError(
            ErrorCode.TIMEOUT, f"the file was not moved: no byte was sent or taken for {IDLE_WAIT:g} s"
        ) from None


async def _batch(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size < BATCH:
        piece = await within_idle(receive())
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _end(process: ExecProcess) -> None:
    try:
        process.kill()
    finally:
        process.close()


# -- between a thread and the event loop ------------------------------------------------------------------------------


class Pump:
    """Reads a process to its end on a thread; the loop takes stdout in batches.

    At most two batches are held; the thread waits while nobody takes them.
    """

    def __init__(self, process: ExecProcess, loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self._loop = loop
        self._condition = threading.Condition()
        self._pieces: list[bytes] = []
        self._size = 0
        self._abandoned = False
        self._stdout_ended = False
        self._arrived = asyncio.Event()
        self._asleep = False
        self.ended: asyncio.Future[int] = loop.create_future()
        """The exit code; fails with `RuntimeFailure` when it cannot be known."""
        self.stderr = b""
        threading.Thread(target=self._run, name="file-pump", daemon=True).start()

    async def take(self) -> bytes:
        """Return everything that has come by now; wait for at least one byte; empty at the end."""
        while True:
            self._arrived.clear()
            with self._condition:
                if self._pieces or self._stdout_ended:
                    data = b"".join(self._pieces)
                    self._pieces, self._size = [], 0
                    self._condition.notify()
                    return data
                self._asleep = True
            await self._arrived.wait()

    def abandon(self) -> None:
        """Throw away what still comes: nobody takes the output any more."""
        with self._condition:
            self._abandoned = True
            self._condition.notify()

    def _run(self) -> None:
        code: int | RuntimeFailure
        try:
            code = self._to_end()
        except RuntimeFailure as failure:
            code = failure
        except Exception as error:
            log.exception("a file's helper could not be read")
            code = RuntimeFailure(ErrorCode.INTERNAL, f"the node agent failed while it moved a file: {error}")
        with self._condition:
            self._stdout_ended = True
        try:
            self._loop.call_soon_threadsafe(self._finish, code)
        except RuntimeError:
            return  # the loop is closed: the agent is shutting down and nobody waits any more

    def _to_end(self) -> int:
        noise = 0
        while (chunk := self._process.read()) is not None:
            if chunk.stream is Stream.STDERR:
                self.stderr = (self.stderr + chunk.data)[-MAX_STDERR:]
            elif self._put(chunk.data):
                continue
            noise += len(chunk.data)
            if noise > MAX_NOISE:
                self._process.kill()
                raise _disturbed("a file", f"wrote more than {MAX_NOISE} bytes into the pipes of the agent's helper")
        return self._process.wait().code

    def _put(self, data: bytes) -> bool:
        """Hand output to whoever takes it, waiting for room; return ``False`` when nobody takes it any more."""
        with self._condition:
            while self._size >= 2 * BATCH and not self._abandoned:
                self._condition.wait()
            if self._abandoned:
                return False
            self._pieces.append(data)
            self._size += len(data)
            wake, self._asleep = self._asleep, False
        if wake:
            self._loop.call_soon_threadsafe(self._arrived.set)
        return True

    def _finish(self, code: int | RuntimeFailure) -> None:
        self._arrived.set()
        if self.ended.done():
            return
        if isinstance(code, RuntimeFailure):
            self.ended.set_exception(code)
            self.ended.exception()  # an end that nobody waits for any more is no error of the loop
        else:
            self.ended.set_result(code)
