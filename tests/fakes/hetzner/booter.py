"""What an emulated server does once it is started: nothing, or something real on this machine.

An emulator is given a `Booter`.  All its methods are called one after the other on a thread of their own, outside the
emulator's lock, in the order of the servers' changes; so they may take their time, and may call the emulator.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Protocol


@dataclass(frozen=True)
class Machine:
    """One emulated server, as whoever boots it needs it."""

    id: int
    name: str
    user_data: str
    """Byte for byte as it was ordered."""
    ipv4: str
    """Its public address; `Booter.address` decides it."""
    private_ip: str | None
    server_type: str
    cores: int
    memory_gb: float
    disk_gb: float
    location: str
    image: str
    gpus: int = 0


class Booter(Protocol):
    """Brings emulated servers to life."""

    def address(self, name: str) -> str | None:
        """The public IPv4 address that a new server shall have; ``None`` leaves it to the emulator.

        Asked within the create, under the emulator's lock: it must answer at once and call nothing.
        """

    def boot(self, machine: Machine) -> None:
        """The server has reached ``running``; called again when it is started again."""

    def stop(self, name: str) -> None:
        """The server is off or deleted; called once for each `boot`, and at the end for all that still run."""


class NoBooter:
    """Servers that are said to run, and do nothing."""

    def address(self, name: str) -> str | None:
        return None

    def boot(self, machine: Machine) -> None:
        pass

    def stop(self, name: str) -> None:
        pass


class CommandBooter:
    """One process for each running server.

    Args:
        command: its words may hold ``${name}``, ``${ipv4}``, ``${dir}`` and ``${user_data}`` (a file in ``${dir}``).
        root: holds a directory for each server, with ``user_data`` and ``log``.
        stop_seconds: between SIGTERM and SIGKILL, both to the process's whole group.
    """

    def __init__(self, command: Sequence[str], root: Path | None = None, stop_seconds: float = 10.0) -> None:
        self._command = tuple(command)
        self._root = root or Path(tempfile.mkdtemp(prefix="hetzner-vms-"))
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
