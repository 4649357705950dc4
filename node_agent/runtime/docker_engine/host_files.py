"""The parts of a sandbox that lie on the host: made before its container."""

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import accounts, mounts, programs
from node_agent.host.accounts import Account
from node_agent.host.disk import out_of_space, read_below
from node_agent.host.images import Image
from node_agent.host.network import DEFAULT_RESOLVERS
from node_agent.host.process import CommandError
from node_agent.host.volume import Volume
from node_agent.runtime.docker_engine import container_config
from node_agent.runtime.docker_engine.records import Record

_MAX_ACCOUNTS: Final = 1024 * 1024


def log_file(volume: Volume, stream: str) -> Path:
    """Output of the first process; on the volume, so that it is bounded."""
    return volume.path / "log" / stream


def prepare(
    record: Record, volume: Volume, image: Image, inspected: dict[str, Any], tools: Path
) -> container_config.Place:
    """Makes the directories and files that the container binds.

    Args:
        inspected: what Docker says of the image.
        tools: where the busybox is kept.

    Raises:
        RuntimeFailure: ``START_ERROR`` for a user that the image does not know; ``INTERNAL`` when the host refuses.
    """
    account = _account(record, container_config.user(record.spec, image), inspected)
    try:
        return container_config.Place(
            busybox=programs.provide(tools).busybox,
            workspace=_directory(volume.path / "workspace", account),
            stdout=_log(log_file(volume, "stdout")),
            stderr=_log(log_file(volume, "stderr")),
            volumes=_declared(record, volume, inspected, account),
            resolver=_resolver(volume.directory) if record.network else None,
            network=record.network or "none",
            account=account,
        )
    except (OSError, CommandError) as error:
        code = ErrorCode.DISK_FULL if out_of_space(error) else ErrorCode.INTERNAL
        raise RuntimeFailure(code, f"sandbox {record.sandbox_id}: {error}") from error


def _declared(record: Record, volume: Volume, inspected: dict[str, Any], account: Account) -> dict[str, Path]:
    """Docker would give the volumes that an image declares a place of its own, which nothing bounds."""
    paths = sorted((inspected.get("Config") or {}).get("Volumes") or {})
    return {
        path: _directory(volume.path / "volumes" / str(number), account)
        for number, path in enumerate(paths)
        if path.rstrip("/") != record.spec.filesystem.workspace_path
    }


def _directory(path: Path, account: Account) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, account.uid, account.gid)
    return path


def _log(path: Path) -> Path:
    """Any user of the sandbox may write it; on the host only root can reach it."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    path.chmod(0o666)
    return path


def _resolver(directory: Path) -> Path:
    """Docker's own resolver answers from rules of the host's kernel, which gVisor does not see."""
    path = directory / "resolv.conf"
    path.write_text("".join(f"nameserver {address}\n" for address in DEFAULT_RESOLVERS))
    path.chmod(0o644)
    return path


def _account(record: Record, user: str, inspected: dict[str, Any]) -> Account:
    if numbers := re.fullmatch(r"(\d+):(\d+)", user):
        return Account(int(numbers[1]), int(numbers[2]))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "etc").mkdir()
        for name in ("etc/passwd", "etc/group"):
            (root / name).write_bytes(_topmost(inspected, name))
        try:
            return accounts.look_up(root, user)
        except accounts.UnknownAccountError as error:
            raise RuntimeFailure(
                ErrorCode.START_ERROR, f"sandbox {record.sandbox_id}: {error}", reason=DeathReason.START_ERROR
            ) from error


def _topmost(inspected: dict[str, Any], path: str) -> bytes:
    """A file as the image's highest layer that has it holds it."""
    data = inspected["GraphDriver"].get("Data") or {}
    layers = [data.get("UpperDir", ""), *data.get("LowerDir", "").split(":")]
    found = (read_below(Path(directory), path, _MAX_ACCOUNTS) for directory in layers if directory)
    return next((content for content in found if content), b"")


_LAYER: Final = "layer"
_PARTS: Final = ("diff", "link", "lower", "work")
_CHUNK: Final = 1024 * 1024


def place(inspected: dict[str, Any]) -> Path:
    """The container's directory in Docker's overlay2 store.

    Raises:
        RuntimeFailure: ``UNSUPPORTED`` with another storage driver.
    """
    driver = inspected.get("GraphDriver") or {}
    upper = (driver.get("Data") or {}).get("UpperDir")
    if driver.get("Name") != "overlay2" or not upper:
        raise RuntimeFailure(
            ErrorCode.UNSUPPORTED,
            "the Docker engine must keep its containers with the overlay2 storage driver"
            f" (it uses {driver.get('Name') or 'an image store of containerd'}); only there can disk_mb be enforced",
        )
    return Path(upper).parent


def mount(layer: Path, volume: Volume) -> None:
    """Puts the container's layer on the volume.  The container must not have started yet.

    Raises:
        OSError: the host refused, or the volume is full.
    """
    own = volume.path / _LAYER
    forget(volume)
    own.mkdir(mode=0o710)
    for part in _PARTS:
        source = layer / part
        if source.is_dir():
            shutil.copytree(source, own / part, symlinks=True)
        elif source.exists():
            shutil.copy2(source, own / part)
    # runc gives the tmpfs on /tmp the mode of the directory below it, which in small images is not everybody's.
    points = own / "diff" / "tmp"
    points.mkdir(exist_ok=True)
    points.chmod(0o1777)
    mounts.bind(own, layer)


def unmount(layer: Path) -> bool:
    """Takes the volume away from the stopped container; false when it was not there."""
    return bool(mounts.unmount_below(layer))


def forget(volume: Volume) -> None:
    """Removes what containers of earlier generations wrote outside the workspace."""
    own = volume.path / _LAYER
    if own.exists():
        shutil.rmtree(own)
