"""The parts of a sandbox that lie on the host: what its container binds, and the container's own layer.

Docker bounds a container's writes only on XFS.  So the directory that overlay2 keeps for the container (its upper and
work directories, and two small files that name its place in the stack) is copied to the sandbox's volume before the
first start, and the volume is mounted in its place.  Everything that the container writes then lands on the volume,
beside the workspace, and a full volume is an ordinary ENOSPC inside.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import accounts, devices, mounts, programs
from node_agent.host.accounts import Account
from node_agent.host.disk import host_errors, read_below
from node_agent.host.images import EngineImage
from node_agent.host.network import DEFAULT_RESOLVERS
from node_agent.host.volume import Volume
from node_agent.runtime.base import Stream
from node_agent.runtime.docker_engine import container_config
from node_agent.runtime.docker_engine.container_config import HostParts
from node_agent.runtime.etc_files import etc_files
from node_agent.runtime.record import DockerRecord

_MAX_ACCOUNTS: Final = 1024 * 1024
_LAYER: Final = "layer"
_LAYER_PARTS: Final = ("diff", "link", "lower", "work")


def log_file(volume: Volume, stream: Stream) -> Path:
    """Return the file of the first process's output.  It is on the volume, so that its size is bounded."""
    return volume.path / "log" / stream.value


def prepare(
    record: DockerRecord, volume: Volume, image: EngineImage, inspected: dict[str, Any], tools: Path
) -> HostParts:
    """Make the directories and files that the container binds.

    Args:
        record: of the sandbox.
        volume: of the sandbox, mounted.
        image: that it is made from.
        inspected: the image as Docker describes it.
        tools: where the static programs are kept.

    Raises:
        RuntimeFailure: ``START_ERROR`` for a user that the image does not know; ``INTERNAL`` when the host refuses.
    """
    account = _account(record, container_config.user(record.spec, image), inspected)
    with host_errors(f"sandbox {record.sandbox_id}"):
        return HostParts(
            busybox=programs.provide(tools).busybox,
            workspace=_directory(volume.path / "workspace"),
            stdout=_log(log_file(volume, Stream.STDOUT)),
            stderr=_log(log_file(volume, Stream.STDERR)),
            volumes=_declared(record, volume, inspected),
            etc=_etc(volume, record.spec),
            network=record.part.network or "none",
            account=account,
        )


def _declared(record: DockerRecord, volume: Volume, inspected: dict[str, Any]) -> dict[str, Path]:
    """Make a place for each volume that the image declares: Docker's own places are not bounded."""
    paths = sorted((inspected.get("Config") or {}).get("Volumes") or {})
    return {
        path: _directory(volume.path / "volumes" / str(number))
        for number, path in enumerate(paths)
        if path.rstrip("/") != record.spec.filesystem.workspace_path
    }


def _directory(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _log(path: Path) -> Path:
    """Make an empty log that any user of the sandbox may write; on the host only root can reach it."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    path.chmod(0o666)
    return path


def _etc(volume: Volume, spec: SandboxSpec) -> dict[str, Path]:
    """Write the files that Docker would bind from a place of its own, where what root writes into them is not bounded.

    They also name resolvers: Docker's own one answers from rules of the host's kernel, which gVisor does not see.
    """
    directory = volume.path / "etc"
    directory.mkdir(exist_ok=True)
    return {name: _file(directory / name, text) for name, text in etc_files(spec, DEFAULT_RESOLVERS).items()}


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def _account(record: DockerRecord, user: str, inspected: dict[str, Any]) -> Account:
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
    """Return a file as the image's highest layer that has it holds it; empty where none has it."""
    found = (read_below(directory, path, _MAX_ACCOUNTS) for directory in _layers(inspected))
    return next((content for content in found if content), b"")


def _layers(inspected: dict[str, Any]) -> list[Path]:
    """Return the directories of an image's layers in Docker's overlay2 store, the highest first."""
    data = inspected["GraphDriver"].get("Data") or {}
    return [Path(layer) for layer in (data.get("UpperDir", ""), *data.get("LowerDir", "").split(":")) if layer]


class CheckedLayers:
    """Looks for device nodes in the layers of images, in each layer once.

    A layer counts whether or not a higher one covers its node: what overlayfs shows of it is the image's own decision.
    """

    def __init__(self) -> None:
        self._clean: set[Path] = set()

    def check(self, image: EngineImage, inspected: dict[str, Any]) -> None:
        """Refuse an image with device nodes.

        Args:
            image: the image.
            inspected: the image as Docker describes it.

        Raises:
            RuntimeFailure: ``IMAGE_ERROR``, naming the node.
        """
        for layer in _layers(inspected):
            if layer in self._clean:
                continue
            with host_errors(f"image {image.id}"):
                node = next(devices.device_nodes(layer), None)
            if node is not None:
                raise devices.planted(image.id, f"/{node.relative_to(layer)}")
            self._clean.add(layer)


def layer_directory(inspected: dict[str, Any]) -> Path:
    """Return the container's directory in Docker's overlay2 store.

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


def mount_layer(layer: Path, volume: Volume) -> None:
    """Put the container's layer on the volume.  The container must not have started yet.

    Raises:
        OSError: the host refused, or the volume is full.
    """
    own = volume.path / _LAYER
    remove_layer(volume)
    own.mkdir(mode=0o710)
    for part in _LAYER_PARTS:
        source = layer / part
        if source.is_dir():
            shutil.copytree(source, own / part, symlinks=True)
        elif source.exists():
            shutil.copy2(source, own / part)
    _take_owners(layer, own)
    # runc gives the tmpfs on /tmp the mode of the directory below it, which in small images is not everybody's.
    points = own / "diff" / "tmp"
    points.mkdir(exist_ok=True)
    points.chmod(0o1777)
    mounts.bind(own, layer)


def _take_owners(source: Path, copy: Path) -> None:
    """Give each part of a copy the owner of its source, which is not root where the engine has ``userns-remap``."""
    for path in (copy, *copy.rglob("*")):
        status = (source / path.relative_to(copy)).lstat()
        os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)


def hand_over(parts: HostParts, layer: Path) -> None:
    """Give workspace and volumes to the sandbox's user, as the engine maps users to the host's.

    Args:
        parts: of the sandbox.
        layer: the container's directory in Docker's store; its ``diff`` is the mapped root's.

    Raises:
        OSError: the host refused.
    """
    root = (layer / "diff").stat()
    for directory in (parts.workspace, *parts.volumes.values()):
        os.chown(directory, root.st_uid + parts.account.uid, root.st_gid + parts.account.gid)


def unmount_layer(layer: Path) -> None:
    """Take the volume away from the stopped container.  Idempotent."""
    mounts.unmount_below(layer)


def remove_layer(volume: Volume) -> None:
    """Remove what containers of earlier generations wrote outside the workspace."""
    own = volume.path / _LAYER
    if own.exists():
        shutil.rmtree(own)
