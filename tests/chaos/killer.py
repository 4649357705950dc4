"""SIGKILLs the daemons of a running service at random moments, in an order that a seed decides."""

import os
import random
import signal
import threading
from collections import Counter
from typing import Final

from tests.stack import Up

DAEMONS: Final = ("gateway", "node", "autoscaler")
TYPICAL_AGE: Final = 1.5  # seconds; a node agent needs about as long to start


class Killer(threading.Thread):
    """Kills one daemon after another, each ``times`` times at most, until `stop`.

    A victim is killed at a random age, so that starts are hit as well as quiet moments.

    Args:
        up: the service.
        seed: decides victims, pauses and ages.
        times: most kills of one daemon.  Whoever restarts them waits longer each time, and a daemon that never lives
            does no work.
        pause: shortest and longest time between two kills, in seconds.
    """

    def __init__(self, up: Up, seed: int, *, times: int, pause: tuple[float, float]) -> None:
        super().__init__(daemon=True)
        self._up = up
        self._random = random.Random(seed)
        self._times = times
        self._pause = pause
        self._stop_asked = threading.Event()
        self.killed: Counter[str] = Counter()

    @property
    def has_killed_each(self) -> bool:
        """Whether every daemon has died at least once."""
        return all(self.killed[daemon] for daemon in DAEMONS)

    def run(self) -> None:
        for _ in range(self._times):
            for daemon in self._random.sample(DAEMONS, len(DAEMONS)):
                if self._stop_asked.wait(self._random.uniform(*self._pause)) or not self._kill(daemon):
                    return

    def _kill(self, daemon: str) -> bool:
        """Waits for the daemon, lets it live a while, and kills it; false when asked to stop."""
        while (pid := self._up.pid(daemon)) is None:
            if self._stop_asked.wait(0.05):
                return False
        if self._stop_asked.wait(self._random.expovariate(1 / TYPICAL_AGE)):
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        self.killed[daemon] += 1
        return True

    def stop(self) -> None:
        """No kill comes after this returns."""
        self._stop_asked.set()
        self.join()
