"""Settings and the six methods of the `local` provider, over directories and supervisor processes."""

import contextlib
import ipaddress
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from string import Template
from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from providers.base import (
    Access,
    Applied,
    Billing,
    Caps,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Inventory,
    Offer,
    Phase,
    ProviderError,
    Ref,
    Resources,
    Scope,
)
from providers.local.home import DOOMED, TEMPORARY, Home, InstanceRecord, UserData, reap, signal_lock_holder
from providers.local.network import Namespace, Network, NetworkError
from providers.settings import parse, problems

NODE_COMMAND: Final = (sys.executable, "-m", "sandboxes", "node", "run", "--config", "${dir}/node.toml")
CLEANUP_COMMAND: Final = (sys.executable, "-m", "sandboxes", "node", "cleanup", "--root", "${dir}/node")


class LocalSettings(BaseModel):
    """The provider's table of the settings file.

    In both commands ``${dir}`` is the instance's directory, ``${name}`` its name and ``${address}`` its address.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path
    """Directory that holds one directory per instance."""
    address: str = "127.0.0.1"
    """Address of every instance, where they share this machine's network."""
    network: Literal["host", "namespace"] = "host"
    """``namespace`` gives each instance a network namespace and an address of its own, as a machine has; needs root."""
    subnet: str = "10.215.0.0/24"
    """Range of those addresses; the first is this machine's, where they reach a gateway that listens on it."""
    max_instances: int = Field(default=8, ge=1)
    """More are refused as a quota would be."""
    cpus: float | None = Field(default=None, gt=0)
    """Cores of one instance; this machine's by default."""
    memory_mb: int | None = Field(default=None, gt=0)
    """MiB of one instance; this machine's by default."""
    disk_mb: int | None = Field(default=None, gt=0)
    """MiB of one instance; what is free below ``root`` by default."""
    node_command: tuple[str, ...] = Field(default=NODE_COMMAND, min_length=1)
    """What an instance runs, and starts again when it dies."""
    cleanup_command: tuple[str, ...] = CLEANUP_COMMAND
    """Run once the instance is stopped, before its directory goes; removes what the node left on this machine.

    Empty for nothing.  It has `cleanup_seconds`, and it must be able to run twice.
    """
    stop_seconds: float = Field(default=20.0, gt=0)
    """What the node command has between SIGTERM and SIGKILL."""
    cleanup_seconds: float = Field(default=120.0, gt=0)
    """What one run of the cleanup command may take."""

    @field_validator("subnet")
    @classmethod
    def _private_range(cls, value: str) -> str:
        network = ipaddress.IPv4Network(value)
        if not network.is_private or network.num_addresses < 4:
            raise ValueError("must be a private IPv4 range with room for two addresses, such as 10.215.0.0/24")
        return str(network)


TYPE: Final = "local"
LOCATION: Final = "here"
MAX_USER_DATA: Final = 256 * 1024
# What a crash left of a create or a removal is swept once it is older than any of them takes.
_DEBRIS_SECONDS: Final = 600.0
# A new machine knows nothing of the settings and secrets of whoever ordered it.
_ENVIRONMENT: Final = frozenset({"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"})


class LocalProvider(ComputeProvider):
    """Instances are supervisor processes on this machine that outlive whoever created them."""

    kind: ClassVar[str] = "local"
    caps: ClassVar[Caps] = Caps(
        unique_names=True,
        list_is_atomic=False,
        deleted_vanish=True,
        billing=Billing.PER_SECOND,
        max_user_data=MAX_USER_DATA,
        calls_per_hour=None,
        has_gpu=False,
    )

    def __init__(self, settings: LocalSettings, *, deployment: str) -> None:
        self._settings = settings
        self._root = settings.root.absolute()
        self._deployment = deployment
        self._network = Network(self._root, settings.subnet) if settings.network == "namespace" else None
        self._making = threading.Lock()
        """One at a time: an address is taken once the instance's directory is there."""
        self._children: set[int] = set()
        """Supervisors that this process started and must collect when they end."""
        self._adopting: dict[Path, int] = {}
        """The last of those for each instance whose own supervisor was killed."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        return cls(parse(LocalSettings, settings, kind="local"), deployment=deployment)

    def offers(self) -> list[Offer]:
        settings = self._settings
        there = next(path for path in (self._root, *self._root.parents) if path.exists())
        resources = Resources(
            cpus=settings.cpus or float(len(os.sched_getaffinity(0))),
            memory_mb=settings.memory_mb or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
            disk_mb=settings.disk_mb or shutil.disk_usage(there).free // 2**20,
        )
        room = len(self._homes()) < settings.max_instances
        return [Offer(TYPE, LOCATION, resources, Decimal(0), available=room)]

    def list(self) -> Inventory:
        for pid in tuple(self._children):
            if reap(pid):
                self._children.discard(pid)
        taken_at = datetime.now(UTC)
        instances = (self._view(home) for home in self._homes())
        mine = tuple(instance for instance in instances if instance is not None)
        return Inventory(mine, taken_at=taken_at)

    def get(self, ref: Ref) -> Instance | None:
        home = self._home(ref)
        return self._view(home) if home is not None else None

    def create(self, want: Create) -> Instance:
        if (want.type, want.location) != (TYPE, LOCATION):
            raise _refusal(ErrorKind.CONFIG, f"there is only {TYPE} at {LOCATION}, not {want.type} at {want.location}")
        path = self._root / want.name
        if not path.exists():
            self._sweep_debris()
            if len(self._homes()) >= self._settings.max_instances:
                message = f"{self._settings.max_instances} instances are there, the most that max_instances allows"
                raise _refusal(ErrorKind.QUOTA, message, Scope.PROVIDER)
        try:
            with self._making:
                record = self._record(want, self._free_namespace())
                home, adopted = Home.make(path, record, _user_data(want)), False
        except NetworkError as error:
            raise _refusal(ErrorKind.CONFIG, str(error), Scope.PROVIDER) from error
        except FileExistsError:
            home, adopted = Home(path), True
        except OSError as error:
            raise ProviderError(
                f"local: cannot make {path}: {error}",
                kind=ErrorKind.TRANSIENT,
                applied=Applied.MAYBE,
                scope=Scope.PROVIDER,
            ) from error
        return self._start(home, want, adopted=adopted)

    def delete(self, ref: Ref) -> Deleted:
        home = self._home(ref)
        if home is None:
            return Deleted.GONE
        try:
            home.mark("deleting")
        except FileNotFoundError:
            return Deleted.GONE
        # The supervisor with the lock acts on SIGTERM and on the marker; where there is none, a new one tears down.
        if not signal_lock_holder(home.lock, signal.SIGTERM):
            try:
                self._spawn(home)
            except FileNotFoundError:  # the last supervisor ended in this moment, and took the directory with it
                return Deleted.GONE
        return Deleted.ACCEPTED

    def connect(self, instance: Instance) -> Access | None:
        return None

    # -- directories --------------------------------------------------------------------------------------------------

    def _homes(self) -> tuple[Home, ...]:
        """Return the directories of all instances of all deployments."""
        try:
            entries = sorted(path for path in self._root.iterdir() if not path.name.startswith("."))
        except FileNotFoundError:
            return ()
        return tuple(Home(path) for path in entries)

    def _home(self, ref: Ref) -> Home | None:
        """Return the instance of this deployment that ``ref`` names.  Its id is its name, which is never used twice."""
        names = {name for name in (ref.id, ref.name) if name is not None}
        if len(names) != 1 or "/" in (name := names.pop()) or name.startswith("."):
            return None
        home = Home(self._root / name)
        record = self._mine(home)
        return home if record is not None and ref.operation_id in (None, record.operation_id) else None

    def _mine(self, home: Home) -> InstanceRecord | None:
        try:
            record = home.record()
        except ValueError as error:
            raise ProviderError(
                f"local: {error}; repair it or remove the directory",
                kind=ErrorKind.BUG,
                applied=Applied.NO,
                scope=Scope.PROVIDER,
            ) from error
        return record if record is not None and record.deployment == self._deployment else None

    def _view(self, home: Home) -> Instance | None:
        record = self._mine(home)
        if record is None:
            return None
        phase = _phase(home)
        if phase is Phase.LOST and home.is_orphaned:
            self._look_after(home)
            phase = Phase.RUNNING
        return Instance(
            id=record.id,
            name=record.name,
            labels=record.labels,
            phase=phase,
            type=record.type,
            location=record.location,
            created_at=datetime.fromisoformat(record.created_at),
            address=record.address,
        )

    def _free_namespace(self) -> Namespace | None:
        """Return a network for a new instance, and sweep the networks that no instance owns."""
        if self._network is None:
            return None
        records = (home.record() for home in self._homes())
        taken = {record.namespace.name for record in records if record is not None and record.namespace is not None}
        self._network.sweep(taken)
        return self._network.free(taken)

    def _record(self, want: Create, namespace: Namespace | None) -> InstanceRecord:
        settings = self._settings
        address = settings.address if namespace is None else namespace.address
        words = {"dir": str(self._root / want.name), "name": want.name, "address": address}
        return InstanceRecord(
            id=want.name,
            name=want.name,
            operation_id=want.operation_id,
            deployment=want.deployment,
            type=want.type,
            location=want.location,
            labels=dict(want.labels),
            address=address,
            created_at=datetime.now(UTC).isoformat(),
            node_command=tuple(Template(word).safe_substitute(words) for word in settings.node_command),
            cleanup_command=tuple(Template(word).safe_substitute(words) for word in settings.cleanup_command),
            stop_seconds=settings.stop_seconds,
            cleanup_seconds=settings.cleanup_seconds,
            network=None if namespace is None else asdict(namespace),
        )

    def _start(self, home: Home, want: Create, *, adopted: bool) -> Instance:
        """Return the instance in ``home``, and start its supervisor unless it was started before."""
        instance, record = self._view(home), self._mine(home)
        if instance is None or record is None or record.operation_id != want.operation_id:
            message = f"the name {want.name} belongs to another operation or deployment"
            raise _refusal(ErrorKind.EXISTS, message, Scope.INSTANCE)
        if instance.phase is Phase.BOOTING and not home.alive:
            self._spawn(home)
        return replace(instance, phase=instance.phase if adopted else Phase.BOOTING, adopted=adopted)

    def _look_after(self, home: Home) -> None:
        """Start another supervisor for an instance that goes on although its own was killed, one at a time."""
        starting = self._adopting.get(home.path)
        if starting is None or reap(starting):
            self._adopting[home.path] = self._spawn(home)

    def _spawn(self, home: Home) -> int:
        """Start a supervisor, in a session that no signal to the caller's group reaches, and return its id."""
        log = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "providers.local.supervisor", str(home.path)],
                {name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
                file_actions=[(os.POSIX_SPAWN_DUP2, *pair) for pair in ((null, 0), (log, 1), (log, 2))],
                setsid=True,
            )
        finally:
            os.close(null)
            os.close(log)
        self._children.add(pid)
        return pid

    def _sweep_debris(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in self._root.iterdir():
                if not path.name.startswith((TEMPORARY, DOOMED)):
                    continue
                if time.time() - path.stat().st_mtime > _DEBRIS_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def _phase(home: Home) -> Phase:
    if home.is_deleting:
        return Phase.STOPPING
    if not home.has_run:
        return Phase.BOOTING
    return Phase.RUNNING if home.alive else Phase.LOST


def _user_data(want: Create) -> UserData:
    if len(want.user_data.encode()) > MAX_USER_DATA:
        raise _refusal(ErrorKind.CONFIG, f"user data is over {MAX_USER_DATA} bytes")
    if not want.user_data.strip():
        return UserData()
    try:
        return UserData.model_validate_json(want.user_data)
    except ValidationError as error:
        raise _refusal(ErrorKind.CONFIG, f"user data: {problems(error)}") from None


def _refusal(kind: ErrorKind, message: str, scope: Scope = Scope.POOL) -> ProviderError:
    return ProviderError(f"local: {message}", kind=kind, applied=Applied.NO, scope=scope)
