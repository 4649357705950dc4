"""How an emulated VM becomes a machine that really runs: the interface between emulators and booters.

An emulator knows states and time; what runs inside its VMs is up to whoever starts the emulator.  One booter serves the
emulators of all clouds: of a machine it needs only what `Machine` has.
"""

import contextlib
import importlib
import logging
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Machine(Protocol):
    """One VM whose operating system is up."""

    @property
    def name(self) -> str: ...

    @property
    def user_data(self) -> str:
        """User data of the order, byte for byte; empty if there was none."""

    @property
    def ipv4(self) -> str:
        """Its address, chosen by `Booter.address`."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that its operating system finds, whatever was sold."""


class Booter(Protocol):
    """Brings emulated machines to life.

    ``boot`` and ``stop`` are called one after the other on a thread of their own, in the order of the machines'
    changes; so they may take their time, and may call the emulator.
    """

    def address(self, name: str) -> str | None:
        """Return the address that a new machine shall have; ``None`` leaves it to the emulator.

        Called under the emulator's lock: it must return at once and call nothing.
        """

    def boot(self, machine: Machine) -> None:
        """Boot a machine that is up; called again when it is started again."""

    def stop(self, name: str) -> None:
        """Stop a machine that is off or gone; called once for each ``boot``, and at the end for all that still run."""


class CommandBooter:
    """One process for each running machine.

    Args:
        command: its words may hold ``${name}``, ``${ipv4}``, ``${dir}`` and ``${user_data}`` (a file in ``${dir}``).
        root: holds a directory for each machine, with ``user_data`` and ``log``.
        stop_seconds: between SIGTERM and SIGKILL, both to the process's whole group.
    """

    def __init__(self, command: Sequence[str], root: Path | None = None, stop_seconds: float = 10.0) -> None:
        self._command = tuple(command)
        self._root = root or Path(tempfile.mkdtemp(prefix="emulated-vms-"))
        self._stop_seconds = stop_seconds
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, name: str) -> str | None:
        return None

    def boot(self, machine: Machine) -> None:
        home = self._root / machine.name
        home.mkdir(parents=True, exist_ok=True)
        user_data = home / "user_data"
        user_data.touch(mode=0o600)
        user_data.write_text(machine.user_data)
        words = {"name": machine.name, "ipv4": machine.ipv4, "dir": str(home), "user_data": str(user_data)}
        with (home / "log").open("ab") as log:
            self._running[machine.name] = subprocess.Popen(
                [Template(word).safe_substitute(words) for word in self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            try:
                process.wait(self._stop_seconds)
                return
            except subprocess.TimeoutExpired:
                continue


def booter_from(named: str | None) -> Any:
    """Return what ``module:factory`` makes; ``None`` for no name."""
    if named is None:
        return None
    module, _, factory = named.partition(":")
    return getattr(importlib.import_module(module), factory)()


class Effects:
    """Runs what is put in, in order, on a thread of its own."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._todo.put(work)

    def close(self) -> None:
        """Wait for all that was put in."""
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (work := self._todo.get()) is not None:
            try:
                work()
            except Exception as error:
                # One machine that does not start must not keep the others from it; its own never registers.
                log.exception("a booter broke")
                self.failures.append(error)
