"""Passes bytes from a thread to the event loop, in constant memory and with few wake-ups."""

import asyncio
import threading

from node_agent.errors import RuntimeFailure
from node_agent.runtime.base import ExecProcess, Stream

BATCH = 1024 * 1024
"""Bytes that cross at once: one wake-up of the loop costs some 50 µs, so small pieces would bound the speed."""
MAX_STDERR = 4096


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
            while (chunk := self._process.read()) is not None:
                if chunk.stream is Stream.STDERR:
                    self.stderr = (self.stderr + chunk.data)[-MAX_STDERR:]
                else:
                    self._put(chunk.data)
            code = self._process.wait().code
        except RuntimeFailure as failure:
            code = failure
        with self._condition:
            self._stdout_ended = True
        try:
            self._loop.call_soon_threadsafe(self._finish, code)
        except RuntimeError:
            return  # the loop is closed: the agent is going down and nobody waits any more

    def _put(self, data: bytes) -> None:
        with self._condition:
            while self._size >= 2 * BATCH and not self._abandoned:
                self._condition.wait()
            if self._abandoned:
                return
            self._pieces.append(data)
            self._size += len(data)
            wake, self._asleep = self._asleep, False
        if wake:
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _finish(self, code: int | RuntimeFailure) -> None:
        self._arrived.set()
        if self.ended.done():
            return
        if isinstance(code, RuntimeFailure):
            self.ended.set_exception(code)
            self.ended.exception()  # an end that nobody waits for any more is no error of the loop
        else:
            self.ended.set_result(code)
