"""Bounded disk for a container.

Docker bounds a container's writes only on XFS.  So the directory that overlay2 keeps for the container (its upper and
work directories, and two small files that name its place in the stack) is copied to the sandbox's volume before the
first start, and the volume is mounted in its place.  Everything that the container writes then lands on the volume,
beside the workspace, and a full volume is an ordinary ENOSPC inside.
"""

import shutil
from pathlib import Path
from typing import Any, Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.volume import Volume

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
