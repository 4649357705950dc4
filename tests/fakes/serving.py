"""Runs an ASGI application on a real socket of the loopback, with a loop and a thread of its own."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar

import uvicorn

T = TypeVar("T")


class Loop:
    """An event loop on a thread of its own, for what runs beside a test."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], within: float = 30.0) -> T:
        """Return the result of ``work`` on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(within)

    def soon(self, call: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@contextlib.contextmanager
def running_loop() -> Iterator[Loop]:
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()


class QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which only a main thread may have."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.contextmanager
def served(loop: Loop, make: Callable[[], Awaitable[uvicorn.Server]]) -> Iterator[str]:
    """Yield the URL of the server of ``make``, which serves until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()

    async def run() -> uvicorn.Server:
        server = await make()
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        task.add_done_callback(lambda _: started.set())
        tasks.append(task)
        return server

    tasks: list[asyncio.Task[None]] = []
    server = loop.call(run())
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True

        async def ended() -> None:
            await tasks[0]

        loop.call(ended())
        listener.close()


def plain(app: Any) -> Callable[[], Awaitable[uvicorn.Server]]:
    """Return a factory of servers for an ASGI application."""

    async def make() -> uvicorn.Server:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        return QuietServer(config)

    return make


@contextlib.contextmanager
def stopped_server() -> Iterator[str]:
    """Yield the URL of a server whose kernel accepts connections and that never reads them, as a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
