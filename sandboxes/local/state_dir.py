"""The state directory of `sandboxes up`: closed to others, locked by one service, its files replaced atomically."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import click

DEFAULT_STATE_DIR: Final = Path("/var/lib/sandbox-fleet")
LONGEST_ROOT: Final = 40
"""Bytes of the state directory's path.  Unix sockets below it must keep within Linux's 107 bytes for a whole path."""


@dataclass(frozen=True)
class StateDir:
    """The state directory of one service on this machine."""

    root: Path

    @property
    def gateway(self) -> Path:
        """The gateway's own state."""
        return self.root / "gateway"

    @property
    def autoscaler(self) -> Path:
        """The autoscaler's own state."""
        return self.root / "autoscaler"

    @property
    def instances(self) -> Path:
        """One directory for each instance of the `local` provider."""
        return self.root / "i"

    @property
    def docker(self) -> Path:
        """Root of the service's own Docker engine."""
        return self.root / "docker"

    @property
    def docker_socket(self) -> Path:
        """Where that engine listens."""
        return self.docker / "docker.sock"

    @property
    def tokens(self) -> Path:
        """The first tokens, one file each."""
        return self.root / "tokens"

    @property
    def logs(self) -> Path:
        """Output of the processes."""
        return self.root / "logs"

    @property
    def url(self) -> Path:
        """File with the service's URL."""
        return self.root / "url"

    @property
    def lock(self) -> Path:
        """Held by the `sandboxes up` that runs here."""
        return self.root / "up.lock"

    def make(self) -> bool:
        """Make the directories, closed to others.

        Returns:
            True if the state directory itself is new.

        Raises:
            click.ClickException: the path is too long, or the disk or its permissions do not allow it.
        """
        if len(os.fsencode(self.root)) > LONGEST_ROOT:
            raise click.ClickException(
                f"the state directory {self.root} is longer than {LONGEST_ROOT} bytes, and Unix sockets below it would"
                " not fit into what Linux allows; choose a shorter one with --state-dir"
            )
        is_new = not self.root.exists()
        try:
            for path in (self.root, self.gateway, self.autoscaler, self.instances, self.tokens, self.logs):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            raise click.ClickException(f"cannot make {self.root}: {error.strerror or error}") from error
        return is_new

    def unmake(self) -> None:
        """Remove the directories if they hold no file; the caller holds the lock and made the root."""
        found = sorted(self.root.rglob("*"), reverse=True)
        if any(path != self.lock and not path.is_dir() for path in found):
            return
        for path in found:
            if path != self.lock:
                path.rmdir()
        self.lock.unlink()
        self.root.rmdir()


def open_log(path: Path) -> BinaryIO:
    """Open a log to append to; only its owner can read it.

    Raises:
        click.ClickException: it cannot be opened.
    """
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")
    except OSError as error:
        raise click.ClickException(f"cannot open {path}: {error.strerror or error}") from error


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically; only its owner can read it.

    Raises:
        click.ClickException: the disk is full, or the directory cannot be written.
    """
    draft = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise click.ClickException(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the lock of a state directory.  The kernel releases it when this process dies by any means.

    Raises:
        click.ClickException: another process has it, or it cannot be made.
    """
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise click.ClickException(f"cannot open {lock}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 20).decode().strip() or "unknown"
            raise click.ClickException(
                f"another 'sandboxes up' (process {owner}) runs over {lock.parent};"
                " end it first, or choose another directory with --state-dir"
            ) from error
        if not lock.exists() or not os.path.samestat(lock.stat(), os.fstat(descriptor)):
            raise click.ClickException(f"{lock.parent} was removed a moment ago; run this again")
        os.ftruncate(descriptor, 0)
        # The number is for people; on a full disk the lock holds without it.
        with contextlib.suppress(OSError):
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
