"""An instance on disk: one directory, made whole by one rename.

instance.json   who it is and what it runs; never changes
vm.lock         held by its supervisor as long as that lives
running         there once its node command was started for the first time
deleting        there once a delete was asked for
vm.log          what the supervisor and the node command said; bounded
node/           the node agent's own root
"""

import json
import os
import shutil
import string
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from providers.local import processes
from providers.local.network import Namespace

FINDMNT_SECONDS: Final = 10.0
RECORD: Final = "instance.json"
TEMPORARY: Final = ".tmp-"
DOOMED: Final = ".gone-"
# Removed last, so that a removal that was cut short is seen as one and done again.
_KEPT: Final = frozenset({RECORD, "vm.lock", "deleting", "vm.log"})


class File(BaseModel):
    """One file that the user data puts into the instance's directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """A name in the instance's directory."""
    content: str
    """``${dir}``, ``${name}`` and ``${address}`` are filled in; ``$$`` is one dollar."""
    mode: int = Field(default=0o600, ge=0, le=0o777)


class UserData(BaseModel):
    """What `Create.user_data` holds for this provider, as JSON: files, as cloud-init's ``write_files`` would make."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: tuple[File, ...] = ()


@dataclass(frozen=True)
class Record:
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
    def make(cls, path: Path, record: Record, user_data: UserData) -> Self:
        """Makes the whole directory at once.

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

    def record(self) -> Record | None:
        """Who it is; ``None`` when it is gone.

        Raises:
            ValueError: the record is damaged.
        """
        try:
            stored = json.loads((self.path / RECORD).read_text())
        except FileNotFoundError:
            return None
        try:
            stored |= {key: tuple(stored[key]) for key in ("node_command", "cleanup_command")}
            return Record(**stored)
        except (TypeError, KeyError) as error:
            raise ValueError(f"{self.path / RECORD}: {error}") from error

    @property
    def lock(self) -> Path:
        """The file whose lock its supervisor holds."""
        return self.path / "vm.lock"

    @property
    def alive(self) -> bool:
        """Whether its supervisor lives."""
        return processes.holder(self.lock) is not None

    @property
    def has_run(self) -> bool:
        """Whether its node command was ever started."""
        return (self.path / "running").exists()

    @property
    def is_deleting(self) -> bool:
        """Whether a delete was asked for."""
        return (self.path / "deleting").exists()

    def mark(self, name: str) -> None:
        """Makes one of the two markers, for good."""
        _write(self.path / name, "", 0o600)
        _sync(self.path)

    def mounts(self) -> list[str]:
        """Mount points below the directory.

        Raises:
            OSError: they cannot be listed.
        """
        return [point for point in _mount_points() if point.startswith(f"{self.path}/")]

    def remove(self) -> None:
        """Removes everything; can be cut short anywhere and done again.

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
    """Of this process's namespace; findmnt undoes the escapes of the kernel's table."""
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
