"""A private PostgreSQL server: on a Unix socket of its own, started when the first test asks, stopped with the run."""

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

_DEBIAN: Final = Path("/usr/lib/postgresql")
_SECONDS: Final = 60.0
# Nothing has to survive the run, and no test needs more than a few connections.
_OPTIONS: Final = ("listen_addresses=", "fsync=off", "full_page_writes=off", "shared_buffers=32MB", "jit=off")


_NUMBERS: Final = itertools.count()


@contextlib.contextmanager
def database() -> Iterator[str]:
    """Yield the SQLAlchemy URL of an empty database; drop it, and whoever is still connected, at the end."""
    name = f"test{next(_NUMBERS)}"
    with psycopg.connect(host=str(_server()), user="tests", dbname="postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        try:
            yield f"postgresql+psycopg://tests@/{name}?host={_server()}"
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@functools.cache
def _server() -> Path:
    """Start the server of this process, once, and return the directory of its socket.

    PostgreSQL refuses to run as root; then it runs as the user that Debian's package made for it.
    """
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL on this machine; setup/packages.sh tests brings it")
    # A short path: those of Unix sockets have 107 bytes at most.
    directory = Path(tempfile.mkdtemp(prefix="sft-pg-", dir="/tmp"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    drop: tuple[str, ...] = ()
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(directory, account.pw_uid, account.pw_gid)
        drop = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    data, log = directory / "data", directory / "log"

    def run(program: str, *arguments: str) -> None:
        command = [*drop, str(programs / program), *arguments]
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=_SECONDS)

    run("initdb", "-D", str(data), "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
    options = " ".join([f"-k {directory}", *(f"-c {option}" for option in _OPTIONS)])
    run("pg_ctl", "-D", str(data), "-l", str(log), "-w", "-o", options, "start")
    atexit.register(run, "pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    return directory


def _programs() -> Path | None:
    """Return the directory of initdb and pg_ctl: Debian keeps them out of PATH, one directory a version."""
    found = shutil.which("initdb")
    debian = sorted(_DEBIAN.glob("*/bin/initdb"), reverse=True)
    path = Path(found).resolve() if found else next(iter(debian), None)
    return path.parent if path else None
