"""Private PostgreSQL servers: one that all tests of a process share, and servers of a test's own that it may break."""

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psycopg
import pytest

_DEBIAN: Final = Path("/usr/lib/postgresql")
_SECONDS: Final = 60.0
# Nothing has to survive the run, and no test needs more than a few connections.
_OPTIONS: Final = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "jit=off")
_NUMBERS: Final = itertools.count()


class Server:
    """A server with its data in a directory of its own, on a Unix socket there and, where ``port`` is given, on TCP."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        self.directory = directory
        self.port = port
        self._programs = _programs()
        options = [*_OPTIONS, f"port={port or 5432}", f"listen_addresses={'*' if port else ''}"]
        self.options = [f"-k {directory}", *(f"-c {option}" for option in options)]

    def make(self) -> None:
        """Make an empty cluster, in which everybody may do everything."""
        options = ("-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
        self._run("initdb", "-D", str(self._data), *options)
        with (self._data / "pg_hba.conf").open("a") as file:
            file.write("host all all all trust\n")

    def start(self) -> None:
        """Start it, and return once it takes connections."""
        log = str(self.directory / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-o", " ".join(self.options), "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it; ``immediate`` is a crash, ``fast`` ends all transactions first."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def end(self) -> None:
        """Stop it if it runs, also when it was frozen."""
        if (self._data / "postmaster.pid").exists():
            self.thaw()
            self.stop()

    def freeze(self) -> None:
        """Stop all its processes with SIGSTOP: its kernel still takes packets, and nobody answers."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):  # a backend ends with its client
                os.kill(pid, number)

    def pids(self) -> list[int]:
        """Return its processes, the postmaster first."""
        postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [postmaster, *map(int, children)]

    def url(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        if self.port:
            return f"postgresql+psycopg://tests@127.0.0.1:{self.port}/{name}"
        return f"postgresql+psycopg://tests@/{name}?host={self.directory}"

    def admin(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        """Return a connection of the superuser, each statement a transaction of its own."""
        return psycopg.connect(
            host=str(self.directory), port=self.port or 5432, user="tests", dbname=database, autocommit=True
        )

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of an empty database; drop it, and whoever is still connected, at the end."""
        name = f"test{next(_NUMBERS)}"
        with self.admin() as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        try:
            yield self.url(name)
        finally:
            with self.admin() as connection:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*unprivileged(), str(self._programs / program), *arguments]
        subprocess.run(command, cwd=self.directory, check=True, capture_output=True, timeout=_SECONDS)


@contextlib.contextmanager
def database() -> Iterator[str]:
    """Yield the SQLAlchemy URL of an empty database on the server of this process."""
    with _shared().database() as url:
        yield url


@contextlib.contextmanager
def own_server(*, tcp: bool = False) -> Iterator[Server]:
    """Run a server that the caller may stop, freeze and restart; ``tcp`` puts it on a port as well."""
    directory = private_directory("sft-pg-")
    server = Server(directory, free_port() if tcp else 0)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.end()
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def _shared() -> Server:
    """Start the server of this process, once."""
    directory = private_directory("sft-pg-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = Server(directory)
    server.make()
    server.start()
    atexit.register(server.end)
    return server


def private_directory(prefix: str) -> Path:
    """Make a directory for a server with sockets, owned by the user that it runs as."""
    if not _found():
        pytest.skip("no PostgreSQL on this machine; setup/packages.sh tests brings it")
    # A short path: those of Unix sockets have 107 bytes at most.
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(directory, account.pw_uid, account.pw_gid)
    return directory


def unprivileged() -> Sequence[str]:
    """Return the words before a command of a program that refuses to run as root.

    PostgreSQL does, and then it runs as the user that Debian's package made for it.
    """
    if os.geteuid() != 0:
        return ()
    account = pwd.getpwnam("postgres")
    return ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _programs() -> Path:
    return _found()[0]


@functools.cache
def _found() -> list[Path]:
    """Return directories of initdb and pg_ctl: Debian keeps them out of PATH, one directory a version."""
    found = shutil.which("initdb")
    here = [Path(found).resolve().parent] if found else []
    return here + [path.parent for path in sorted(_DEBIAN.glob("*/bin/initdb"), reverse=True)]
