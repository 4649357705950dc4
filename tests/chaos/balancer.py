"""A small TCP balancer, as stands before several gateways: it asks each whether it is ready, and passes bytes on."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Final

ASK_SECONDS: Final = 0.3
ANSWER_SECONDS: Final = 3.0
CHUNK: Final = 65536
_ASK: Final = b"GET /readyz HTTP/1.1\r\nHost: balancer\r\nConnection: close\r\n\r\n"


class Balancer:
    """Listens on a port of the loopback, and connects each client to a gateway that is ready, in turns.

    A connection to a gateway that freezes or dies is the client's problem, as behind every balancer.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._ready: set[int] = set()
        self._turns = itertools.cycle(range(len(ports)))
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.answers: set[str] = set()
        """Every status that a readiness check has had."""

    @property
    def url(self) -> str:
        """The address that clients and nodes know."""
        return f"http://127.0.0.1:{self.port}"

    def ready(self) -> frozenset[int]:
        """Return the ports of the gateways that are ready."""
        return frozenset(self._ready)

    @contextlib.contextmanager
    def running(self) -> Iterator["Balancer"]:
        """Run it on a thread until the block ends."""
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        for port in self._ports:
            self._start(self._watch(port))
        thread = threading.Thread(target=self._loop.run_forever, name="balancer")
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(server), self._loop).result(20)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(20)
            self._loop.close()

    def _start(self, work: "asyncio.coroutines.Coroutine[None, None, None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, port: int) -> None:
        while True:
            if await self._is_ready(port):
                self._ready.add(port)
            else:
                self._ready.discard(port)
            await asyncio.sleep(ASK_SECONDS)

    async def _is_ready(self, port: int) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with contextlib.closing(writer):
                    writer.write(_ASK)
                    status = (await reader.readline()).split()[1].decode()
        except (OSError, TimeoutError, IndexError):
            return False
        self.answers.add(status)
        return status == "200"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            for _ in self._ports:
                port = self._ports[next(self._turns)]
                if port not in self._ready:
                    continue
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        behind, ahead = await asyncio.open_connection("127.0.0.1", port)
                except (OSError, TimeoutError):
                    continue
                with contextlib.closing(ahead):
                    await asyncio.gather(_pass(reader, ahead), _pass(behind, writer))
                return


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    # Neither side speaks on where the other has ended.
    target.close()
