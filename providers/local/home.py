"""An instance on disk, and the processes that belong to it.

It is one directory, made whole by one rename:

instance.json   who it is and what it runs; never changes
vm.lock         held by its supervisor as long as that lives
running         there once its node command was started for the first time
deleting        there once a delete was asked for
failure         why its node command, or its removal, failed last; not there while the command runs
vm.log          output of the supervisor and the node command; bounded
node/           the node agent's own root

Nothing about processes is stored, so a recycled process id fools nobody.  The kernel knows which process holds the
POSIX lock on ``vm.lock``.  A node agent and its children carry the directory in their environment, so they are found
even when their supervisor was killed before it could write anything down.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import string
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from providers.local.network import Namespace

FINDMNT_SECONDS: Final = 10.0
RECORD: Final = "instance.json"
TEMPORARY: Final = ".tmp-"
DOOMED: Final = ".gone-"
# Removed last, so that a removal that was cut short is seen as one and done again.
FAILURE: Final = "failure"
_KEPT: Final = frozenset({RECORD, "vm.lock", "deleting", "vm.log", FAILURE})
MARKER: Final = "SANDBOX_FLEET_INSTANCE"
"""Environment variable of an instance's processes that holds its directory."""
# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK: Final = "hhqqi4x"
_KILL_SECONDS: Final = 5.0


class File(BaseModel):
    """One file that the user data puts into the instance's directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """A name in the instance's directory."""
    content: str
    """``${dir}``, ``${name}`` and ``${address}`` are filled in; ``$$`` is one dollar."""
    mode: int = Field(default=0o600, ge=0, le=0o777)


class UserData(BaseModel):
    """The form of `Create.user_data` for this provider, as JSON: files, as cloud-init's ``write_files`` would make."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: tuple[File, ...] = ()


@dataclass(frozen=True)
class InstanceRecord:
    """Everything about an instance that never changes."""

    id: str
    name: str
    operation_id: str
    deployment: str
    type: str
    location: str
    labels: Mapping[str, str]
    address: str
    created_at: str
    node_command: tuple[str, ...]
    cleanup_command: tuple[str, ...]
    stop_seconds: float
    cleanup_seconds: float
    network: Mapping[str, str] | None = None
    """Its `network.Namespace`; ``None`` where it shares this machine's network."""

    @property
    def namespace(self) -> Namespace | None:
        """Its own network, if it has one."""
        return None if self.network is None else Namespace(**self.network)


class Home:
    """The directory of one instance."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, record: InstanceRecord, user_data: UserData) -> Self:
        """Make the whole directory at once.

        Raises:
            FileExistsError: there is one of that name.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent))
        try:
            words = {"dir": str(path), "name": record.name, "address": record.address}
            for file in user_data.files:
                _write(draft / file.path, string.Template(file.content).safe_substitute(words), file.mode)
            _write(draft / "vm.lock", "", 0o600)
            _write(draft / RECORD, json.dumps(asdict(record), indent=1), 0o600)
            _sync(draft)
            try:
                draft.rename(path)
            except OSError as error:
                raise FileExistsError(f"{path} is there") from error
            _sync(path.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return cls(path)

    def record(self) -> InstanceRecord | None:
        """Return the instance's record; ``None`` when it is gone.

        Raises:
            ValueError: the record is damaged.
        """
        try:
            stored = json.loads((self.path / RECORD).read_text())
        except FileNotFoundError:
            return None
        try:
            stored |= {key: tuple(stored[key]) for key in ("node_command", "cleanup_command")}
            return InstanceRecord(**stored)
        except (TypeError, KeyError) as error:
            raise ValueError(f"{self.path / RECORD}: {error}") from error

    @property
    def lock(self) -> Path:
        """The file whose lock its supervisor holds."""
        return self.path / "vm.lock"

    @property
    def alive(self) -> bool:
        """Whether its supervisor lives."""
        return lock_holder(self.lock) is not None

    @property
    def has_run(self) -> bool:
        """Whether its node command was ever started."""
        return (self.path / "running").exists()

    @property
    def is_orphaned(self) -> bool:
        """Whether its supervisor was killed while its node, or what that started, runs on."""
        return self.has_run and not self.alive and any(True for _ in processes_of(self.path))

    @property
    def is_deleting(self) -> bool:
        """Whether a delete was asked for."""
        return (self.path / "deleting").exists()

    def mark(self, name: str) -> None:
        """Make one of the two marker files, durably."""
        _write(self.path / name, "", 0o600)
        _sync(self.path)

    @property
    def log(self) -> Path:
        """Output of its supervisor and its node command."""
        return self.path / "vm.log"

    @property
    def failure(self) -> str | None:
        """Why its node command, or its removal, failed last; ``None`` while the command runs, or before."""
        try:
            return (self.path / FAILURE).read_text()
        except FileNotFoundError:
            return None

    def note_failure(self, sentence: str | None) -> None:
        """Write down a failure for whoever waits for the node, or with ``None`` that it is over."""
        # On a full disk the log, of which it is a part, cannot be written either.
        with contextlib.suppress(OSError):
            if sentence is None:
                (self.path / FAILURE).unlink(missing_ok=True)
            else:
                draft = self.path / f".{FAILURE}"
                draft.write_text(sentence)
                draft.replace(self.path / FAILURE)

    def mounts(self) -> list[str]:
        """Return the mount points below the directory.

        Raises:
            OSError: they cannot be listed.
        """
        return [point for point in _mount_points() if point.startswith(f"{self.path}/")]

    def remove(self) -> None:
        """Remove everything; can be interrupted anywhere and repeated.

        Raises:
            OSError: something is still mounted below it, or a file cannot be removed.
        """
        if mounted := self.mounts():
            raise OSError(f"still mounted: {', '.join(mounted)}")
        for entry in self.path.iterdir():
            if entry.name in _KEPT:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        doomed = self.path.with_name(DOOMED + self.path.name)
        self.path.rename(doomed)
        shutil.rmtree(doomed)


def _mount_points() -> list[str]:
    """Return those of this process's namespace; findmnt undoes the escapes of the kernel's table."""
    command = ["findmnt", "--json", "--list", "--output", "TARGET"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=FINDMNT_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        raise OSError(f"findmnt did not list the mounts: {error}") from error
    return [mount["target"] for mount in json.loads(done.stdout.decode(errors="surrogateescape"))["filesystems"]]


def _write(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- its processes ----------------------------------------------------------------------------------------------------


def hold_lock(path: Path) -> int | None:
    """Take the lock until this process ends.

    Returns:
        The open descriptor, which must stay open and be the only one this process ever opens; ``None`` when another
        process has the lock.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        raise
    return descriptor


def lock_holder(path: Path) -> int | None:
    """Return the id of the process that holds the lock; ``None`` when none does or the file is not there."""
    try:
        with path.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except FileNotFoundError:
        return None
    kind, _, _, _, pid = answer
    return None if kind == fcntl.F_UNLCK else int(pid)


def signal_lock_holder(path: Path, number: signal.Signals) -> bool:
    """Send a signal to the process that holds the lock; return whether there was one."""
    pid = lock_holder(path)
    if pid is None:
        return False
    with _pidfd(pid) as handle:
        # The id may have gone to another process before the handle was open; the lock shows whether it has.
        if handle is None or lock_holder(path) != pid:
            return False
        signal.pidfd_send_signal(handle, number)
    return True


def reap(pid: int) -> bool:
    """Collect a child of this process if it has ended; return whether it has."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def kill_processes_of(home: Path) -> int:
    """Kill every process that carries ``home`` in its environment, and wait until they are gone.

    Returns:
        How many were killed.

    Raises:
        TimeoutError: some are still alive.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    killed = 0
    while found := list(processes_of(home)):
        for pid in found:
            with _pidfd(pid) as handle:
                if handle is None or not _belongs_to(pid, home):
                    continue
                killed += 1
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} of {home} are still alive after SIGKILL")
    return killed


def processes_of(home: Path) -> Iterator[int]:
    """Yield the ids of the processes that carry ``home`` in their environment, but for this one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _belongs_to(int(entry.name), home):
            yield int(entry.name)


def node_of(home: Path, command: tuple[str, ...]) -> int | None:
    """Return a pidfd of the running node that ``command`` started for ``home``; ``None`` where there is none.

    It leads a session, and its arguments end with the command's; an interpreter may stand before them.
    """
    for pid in processes_of(home):
        with _pidfd(pid) as handle:
            # Asked behind the handle, so that it is this process.
            if handle is not None and _belongs_to(pid, home) and _leads_session(pid) and _runs(pid, command):
                return os.dup(handle)
    return None


def pid_of(handle: int) -> int | None:
    """Return the id of the process behind a pidfd; ``None`` once somebody has collected its end."""
    words = Path(f"/proc/self/fdinfo/{handle}").read_text().split()
    pid = int(words[words.index("Pid:") + 1])
    return pid if pid > 0 else None


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _runs(pid: int, command: tuple[str, ...]) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return False
    wanted = [os.fsencode(word) for word in command]
    # A script's own path takes the place of the name under which it was found.
    return words[-len(wanted) :] == wanted or (len(wanted) > 1 and words[1 - len(wanted) :] == wanted[1:])


def _belongs_to(pid: int, home: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended, or it is another user's
        return False
    return f"{MARKER}={home}".encode() in environment.split(b"\0")


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """Yield a descriptor of this very process; ``None`` when there is none."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
