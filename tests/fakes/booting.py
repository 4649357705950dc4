"""How an emulated VM becomes a machine that really runs: what every cloud's emulator calls.

An emulator knows states and time; what runs inside its VMs is a matter of whoever starts the emulator.  One booter
serves the emulators of all clouds: it needs no more of a machine than `Machine` has.
"""

import queue
import threading
from collections.abc import Callable
from typing import Protocol


class Machine(Protocol):
    """One VM whose operating system is up."""

    @property
    def name(self) -> str: ...

    @property
    def user_data(self) -> str:
        """What the order carried for the guest, byte for byte; empty for nothing."""

    @property
    def ipv4(self) -> str:
        """Its address; `Booter.address` decides it."""

    @property
    def gpus(self) -> int:
        """How many its operating system finds, whatever was sold."""


class Booter(Protocol):
    """Brings emulated machines to life.

    ``boot`` and ``stop`` are called one after the other on a thread of their own, in the order of the machines'
    changes; so they may take their time, and may call the emulator.
    """

    def address(self, name: str) -> str | None:
        """The address that a new machine shall have; ``None`` leaves it to the emulator.

        Asked under the emulator's lock: it must answer at once and call nothing.
        """

    def boot(self, machine: Machine) -> None:
        """The machine is up; called again when it is started again."""

    def stop(self, name: str) -> None:
        """The machine is off or gone; called once for each ``boot``, and at the end for all that still run."""


class Effects:
    """Does what is put in, in its order, on a thread of its own."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._todo.put(work)

    def close(self) -> None:
        """Waits for all that was put in."""
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (work := self._todo.get()) is not None:
            try:
                work()
            except Exception as error:
                self.failures.append(error)  # one machine that does not start must not keep the others from it
