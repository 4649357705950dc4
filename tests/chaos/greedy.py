"""A tenant that takes up whatever it can get, until its stdin ends: ``python -m tests.chaos.greedy URL TOKEN IMAGE``.

A process of its own, so that what it does is not measured as slowness of those who measure.  It prints ``filled`` once
everything has begun, and at the end a line of JSON: the answers that it got, by kind of call.
"""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import aiohttp

MIB: Final = 1024 * 1024
BOXES: Final = ("greedy-1", "greedy-2")
FLOOD: Final = ["cat", "/dev/zero"]
SLEEP: Final = ["sleep", "600"]
PAUSE: Final = 0.05  # seconds between two calls of one kind, of each of its workers


class Greedy:
    """Its calls, each kind repeated by several workers."""

    def __init__(self, session: aiohttp.ClientSession, image: str) -> None:
        self._session = session
        self._image = image
        self._sleeper = ""
        self.answers: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Bring its sandboxes up, with a file to download and a session to poll."""
        for box in BOXES:
            await self._call("box", "POST", "/v1/sandboxes", json=self._spec(box, 0.2))
        await self._call("file", "PUT", self._files(), data=bytes(64 * MIB))
        answer = await self._call("exec", "POST", f"/v1/sandboxes/{BOXES[0]}/exec", json={"command": SLEEP})
        self._sleeper = json.loads(answer)["session"]["id"]

    def workers(self) -> dict[str, tuple[int, Callable[[int], Coroutine[Any, Any, None]]]]:
        """Return how many workers do what."""
        return {
            "sleeping": (4, self.sleeping),
            "flooding": (4, self.flooding),
            "polling": (200, self.polling),
            "uploading": (40, self.uploading),
            "downloading": (40, self.downloading),
            "bodies": (4, self.bodies),
            "creating": (50, self.creating),
        }

    async def sleeping(self, number: int) -> None:
        """Start a process that stays."""
        await self._call("sleep", "POST", f"/v1/sandboxes/{BOXES[number % 2]}/exec", json={"command": SLEEP})

    async def flooding(self, number: int) -> None:
        """Start a process that writes as fast as it can."""
        order = {"command": FLOOD, "timeout_seconds": 20}
        await self._call("flood", "POST", f"/v1/sandboxes/{BOXES[number % 2]}/exec?wait_seconds=20", json=order)

    async def polling(self, _: int) -> None:
        """Wait for an event that does not come."""
        await self._call("poll", "GET", f"/v1/exec/{self._sleeper}/events?after=1&wait_seconds=20")

    async def uploading(self, _: int) -> None:
        """Begin an upload whose body does not come."""

        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.sleep(60)

        await self._call("upload", "PUT", self._files(), data=body(), headers={"Content-Length": "100"})

    async def downloading(self, _: int) -> None:
        """Begin a download and take nothing."""
        async with self._session.get(self._files()) as answer:
            self.answers[f"download {answer.status}"] += 1
            if answer.status == 200:
                await asyncio.sleep(30)

    async def bodies(self, _: int) -> None:
        """Send the largest body that is taken."""
        head = {"Content-Type": "application/json"}
        await self._call("body", "POST", "/v1/sandboxes", data=b"[" + b" " * (16 * MIB - 1), headers=head)

    async def creating(self, number: int) -> None:
        """Ask for a sandbox that has to wait for room."""
        await self._call("create", "POST", "/v1/sandboxes", json=self._spec(f"greedy-waits-{number}", 7.0))

    def _files(self) -> str:
        return f"/v1/sandboxes/{BOXES[0]}/files?path=/workspace/large"

    def _spec(self, name: str, cpus: float) -> dict[str, Any]:
        return {"id": name, "image": self._image, "cpus": cpus, "memory_mb": 256, "disk_mb": 256}

    async def _call(self, kind: str, method: str, path: str, **options: Any) -> bytes:
        try:
            async with self._session.request(method, path, **options) as answer:
                content = await answer.read()
                self.answers[f"{kind} {answer.status}"] += 1
                return content
        except aiohttp.ClientError as error:
            self.answers[f"{kind} {type(error).__name__}"] += 1
            return b""


async def _repeat(what: Callable[[int], Coroutine[Any, Any, None]], number: int) -> None:
    while True:
        await what(number)
        await asyncio.sleep(PAUSE)


async def main(url: str, token: str, image: str) -> None:
    """Take everything until stdin ends."""
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=timeout) as session:
        greedy = Greedy(session, image)
        await greedy.prepare()
        tasks = [
            asyncio.ensure_future(_repeat(what, number))
            for count, what in greedy.workers().values()
            for number in range(count)
        ]
        await asyncio.sleep(3)
        print("filled", flush=True)
        with contextlib.suppress(EOFError):
            await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        print(json.dumps(dict(sorted(greedy.answers.items()))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
