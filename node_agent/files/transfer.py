"""Moves one file into or out of a sandbox, streaming."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gateway.wire.errors import ErrorCode
from node_agent.errors import NodeError
from node_agent.files import scripts
from node_agent.files.pump import BATCH, Pump
from node_agent.runtime.base import ExecCommand, ExecProcess, SandboxRuntime

log = logging.getLogger(__name__)

MAX_TRANSFERS = 32
END_WAIT = 30.0  # a script whose input ended needs no longer to rename, or to clean up after itself
STALL_WAIT = 60.0  # one batch that is not read for this long: the sandbox hangs, or is paused

T = TypeVar("T")

Receive = Callable[[], Awaitable[bytes]]
"""The next piece of the request's body, empty at its end; raises `ClientGone`."""


class ClientGone(Exception):  # noqa: N818 - an event, not an error of ours
    """The client left before the body was whole."""


@dataclass(frozen=True)
class SandboxPath:
    """A path in a sandbox."""

    runtime: SandboxRuntime
    sandbox_id: str
    path: str

    def failure(self, code: int, stderr: bytes) -> NodeError:
        """Return why a script ended with this code."""
        error, sentence = scripts.explain(code, stderr)
        return NodeError(error, f"{self.path!r} in sandbox {self.sandbox_id} {sentence}")


class Download:
    """A file on its way out: its size is known before its first byte is sent."""

    def __init__(self, size: int, first: bytes, pump: Pump) -> None:
        self.size = size
        self._first = first
        self._pump = pump

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield exactly ``size`` bytes, or fewer when the file or the sandbox went away meanwhile."""
        left = self.size
        piece = self._first or (await self._pump.take() if left else b"")
        while piece and left:
            piece = piece[:left]  # the file grew while it was read: the announced size holds
            left -= len(piece)
            yield piece
            piece = await self._pump.take() if left else b""


class Transfers:
    """Uploads and downloads, a bounded number at once."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._slots = asyncio.Semaphore(MAX_TRANSFERS)

    async def upload(self, path: SandboxPath, size: int, receive: Receive) -> None:
        """Write the body to the file, whole or not at all.

        Raises:
            NodeError: what kept the file from being written.
            ClientGone: the client left; nothing is left behind.
        """
        part = f".upload-{secrets.token_hex(8)}"
        async with self._slots:
            busybox = path.runtime.busybox(path.sandbox_id)
            command = scripts.upload_command(busybox, path.path, size, part)
            async with self._process(path, ExecCommand(command, stdin=True)) as process:
                pump = Pump(process, asyncio.get_running_loop())
                pump.abandon()
                try:
                    await self._feed(path, process, pump, receive, size)
                finally:
                    # Without the whole body the script sees a short file and removes it.
                    await asyncio.shield(self._run(process.close_stdin))
                    await asyncio.wait([pump.ended], timeout=END_WAIT)
                if not pump.ended.done():
                    raise _stalled(path)
                code = await pump.ended
                if code != 0:
                    raise path.failure(code, pump.stderr)

    @asynccontextmanager
    async def download(self, path: SandboxPath) -> AsyncIterator[Download]:
        """Open the file: its size is known and its bytes follow.

        Raises:
            NodeError: ``FILE_NOT_FOUND``, ``IS_DIRECTORY``, and what else keeps it from being read.
        """
        async with self._slots:
            busybox = path.runtime.busybox(path.sandbox_id)
            command = ExecCommand(scripts.download_command(busybox, path.path))
            async with self._process(path, command) as process:
                pump = Pump(process, asyncio.get_running_loop())
                try:
                    head = b""
                    while b"\n" not in head and (piece := await pump.take()):
                        head += piece
                    line, newline, rest = head.partition(b"\n")
                    if not newline:
                        raise path.failure(await pump.ended, pump.stderr)
                    yield Download(int(line), rest, pump)
                finally:
                    pump.abandon()

    async def _feed(self, path: SandboxPath, process: ExecProcess, pump: Pump, receive: Receive, size: int) -> None:
        """Receive the next batch while the last one is being written."""
        writing: asyncio.Future[None] | None = None
        left = size
        try:
            while left and not pump.ended.done() and (batch := await _batch(receive)):
                left -= len(batch)
                if writing is not None:
                    await self._written(path, process, writing)
                writing = self._run(partial(process.write, batch))
        finally:
            if writing is not None:
                await self._written(path, process, writing)

    async def _written(self, path: SandboxPath, process: ExecProcess, writing: "asyncio.Future[None]") -> None:
        await asyncio.wait([writing], timeout=STALL_WAIT)
        if not writing.done():
            await asyncio.shield(self._run(partial(_end, process)))
            raise _stalled(path)
        await writing

    @asynccontextmanager
    async def _process(self, path: SandboxPath, command: ExecCommand) -> AsyncIterator[ExecProcess]:
        process = await self._run(partial(path.runtime.exec, path.sandbox_id, command))
        try:
            yield process
        finally:
            await asyncio.shield(self._run(partial(_end, process)))

    def _run(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._executor, call)


def _stalled(path: SandboxPath) -> NodeError:
    return NodeError(
        ErrorCode.TIMEOUT,
        f"{path.path!r} in sandbox {path.sandbox_id} was not written: the sandbox does not read; is it paused?",
    )


async def _batch(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size < BATCH:
        piece = await receive()
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
