"""Calls of a database on threads of their own, each with an end.

A server that is frozen keeps its connections: its kernel still takes packets, so neither its own timeouts nor
keepalives end a wait for it. So what has not begun in time is refused, and what does not end in time has its connection
cut, which the thread that waits on it sees as the end of the connection.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from gateway.store import failures

T = TypeVar("T")


class _HasSocket(Protocol):
    def fileno(self) -> int: ...


class _Call:
    """One call; ``began`` once a thread has it."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.refused = False
        self.cut = False
        self.timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._socket: int | None = None

    def run(self, fn: Callable[[], T]) -> T:
        """Carry it out on the present thread."""
        self.began = time.monotonic()
        _present.call = self
        try:
            return fn()
        finally:
            _present.call = None
            self.waits_on(None)

    def waits_on(self, connection: _HasSocket | None) -> None:
        """Note the connection by which it may be cut: a descriptor of its own, which nobody else can get meanwhile."""
        with self._lock:
            if self._socket is not None:
                os.close(self._socket)
            self._socket = None if connection is None else os.dup(connection.fileno())

    def end(self) -> None:
        """Cut its connection."""
        with self._lock:
            self.cut = True
            if self._socket is not None:
                with socket.socket(fileno=os.dup(self._socket)) as shared, contextlib.suppress(OSError):
                    shared.shutdown(socket.SHUT_RDWR)


class _Present(threading.local):
    """The call that the present thread carries out."""

    call: _Call | None = None


_present: Final = _Present()


def on_connection(connection: Any, *_: object) -> None:
    """Take note that the present call goes on by this connection; for the pool's events."""
    if _present.call is not None:
        _present.call.waits_on(connection)


def is_cut() -> bool:
    """Return whether the present call was cut off, and shall end."""
    return _present.call is not None and _present.call.cut


class BoundedCalls:
    """Some threads, and the calls that wait for them.

    Args:
        threads: how many.
        name: of the threads.
        seconds: after which a call that has not begun is refused, and one that has is cut; ``None`` for never.
    """

    def __init__(self, threads: int, name: str, seconds: float | None) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._seconds = seconds

    async def run(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` on one of the threads.

        Raises:
            ApiError: ``BUSY``: it has not begun in time, and never will.
        """
        call = _Call()
        future = self._threads.submit(call.run, fn)
        if self._seconds is not None:
            loop = asyncio.get_running_loop()
            call.timer = loop.call_later(self._seconds, self._check, call, future, self._seconds, loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.refused and not (task is not None and task.cancelling()):
                raise failures.away() from None
            raise
        finally:
            # A call whose caller has left goes on, and so does the watch over it.
            if call.timer is not None and future.done():
                call.timer.cancel()

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.shutdown()

    def _check(self, call: _Call, future: "Future[T]", seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        if future.done():
            return
        call.refused = True
        if future.cancel():
            return
        call.refused = False
        left = seconds if call.began is None else call.began + seconds - time.monotonic()
        if left > 0:
            call.timer = loop.call_later(left, self._check, call, future, seconds, loop)
        else:
            call.end()
