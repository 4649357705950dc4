"""What the emulators of all clouds share: virtual time, a script of faults, and a control port."""

import heapq
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import requests

from tests.fakes.web import Reply, Request

TICK_SECONDS = 0.05
CONTROL_SECONDS = 30.0


class Clock:
    """Seconds since the epoch, and what is to happen when.  Call it with the emulator's lock held.

    Args:
        start: where it begins.
        pace: emulated seconds per real one; 0 lets time stand still between calls of `advance`.
    """

    def __init__(self, start: float, pace: float = 0.0) -> None:
        self.now = start
        self.pace = pace
        self._seen = time.monotonic()
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Do ``work`` that much later."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), work))

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due happens in its order and at its moment."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            moment, _, work = heapq.heappop(self._due)
            self.now = max(self.now, moment)
            work()
        self.now = max(self.now, end)

    def catch_up(self) -> None:
        """Let the time pass that has passed outside since the last call, at the clock's pace."""
        before, self._seen = self._seen, time.monotonic()
        self.advance((self._seen - before) * self.pace)


class Ticker:
    """Keeps a clock with a pace going while nobody calls."""

    def __init__(self, clock: Clock, lock: threading.RLock) -> None:
        self._clock = clock
        self._lock = lock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if clock.pace:
            self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                self._clock.catch_up()


@dataclass
class ScriptedFault:
    """One entry of a fault script; each emulator adds what goes wrong, and where."""

    times: int | None = 1
    """How often it strikes; ``None`` without end."""
    skip: int = 0
    """How many calls that fit pass before the first."""
    probability: float = 1.0
    """Odds of each call that fits."""


F = TypeVar("F", bound=ScriptedFault)


class FaultScript(Generic[F]):
    """Asked at each place where something can go wrong; the first entry that fits wins."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._faults: list[F] = []
        self._lock = threading.Lock()

    def add(self, fault: F) -> None:
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, fits: Callable[[F], bool]) -> F | None:
        """Return the fault that strikes here, if one does."""
        with self._lock:
            for fault in self._faults:
                if fault.times == 0 or not fits(fault):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if self._chance.random() >= fault.probability:
                    continue
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None


def control_answers(verbs: Mapping[str, Callable[..., Any]], lock: threading.RLock) -> Callable[[Request], Reply]:
    """Return the answers of a control port: ``POST /<verb>`` with a JSON object of the verb's arguments."""

    def answer(request: Request) -> Reply:
        try:
            with lock:
                found = verbs[request.path.strip("/")](**request.json())
        except Exception as error:
            return Reply.of({"error": f"{type(error).__name__}: {error}"}, 400)
        return Reply.of({} if found is None else found)

    return answer


class ControlClient:
    """A test's handle on an emulator.

    Everything crosses HTTP, so that no object is shared with what is tested, and a test sees the same whether the
    emulator is a thread or a process.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = requests.Session()

    def ask(self, verb: str, /, **fields: Any) -> Any:
        """Carry out one verb of the control port.

        Raises:
            ValueError: the emulator refuses it.
        """
        answer = self._session.post(f"{self.url}/{verb}", data=json.dumps(fields), timeout=CONTROL_SECONDS)
        if not answer.ok:
            raise ValueError(answer.text)
        return answer.json()

    def advance(self, seconds: float) -> None:
        """Let the emulator's time pass."""
        self.ask("advance", seconds=seconds)

    def close(self) -> None:
        self._session.close()
