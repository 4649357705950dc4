"""SIGKILLs the daemons of a running service at random moments, in an order that a seed decides."""

import os
import random
import signal
import threading
from collections import Counter
from typing import Final

from tests.stack import Up

DAEMONS: Final = ("gateway", "node", "autoscaler")


class Killer(threading.Thread):
    """Kills one daemon after another until `stop`; a daemon that is not back yet is left alone.

    Args:
        up: the service.
        seed: decides victims and pauses.
        pause: shortest and longest time between two kills, in seconds.
    """

    def __init__(self, up: Up, seed: int, pause: tuple[float, float]) -> None:
        super().__init__(daemon=True)
        self._up = up
        self._random = random.Random(seed)
        self._pause = pause
        self._stop_asked = threading.Event()
        self.killed: Counter[str] = Counter()

    def run(self) -> None:
        while not self._stop_asked.wait(self._random.uniform(*self._pause)):
            daemon = self._random.choice(DAEMONS)
            pid = self._up.pid(daemon)
            if pid is None:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.killed[daemon] += 1

    def stop(self) -> None:
        """No kill comes after this returns."""
        self._stop_asked.set()
        self.join()
