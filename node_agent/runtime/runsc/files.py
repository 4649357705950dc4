"""The content of a sandbox's volume, and its root file system mounted over an image."""

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from node_agent.host import mounts
from node_agent.host.accounts import Account
from node_agent.runtime.base import Stream
from node_agent.runtime.runsc.paths import Places

_UPPER: Final = "upper"
_WORK: Final = "work"


def mount_rootfs(places: Places, image_root: Path, etc: dict[str, str]) -> None:
    """Mounts the image below a fresh writable layer that holds the given files of ``/etc``.

    Raises:
        OSError: the kernel refused, or the volume is full.
    """
    volume = places.volume.path
    upper, work = volume / _UPPER, volume / _WORK
    for directory in (upper, work):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
        directory.mkdir(mode=0o755)
    _take_mode(upper, image_root)
    _write_etc(upper / "etc", image_root / "etc", etc)
    places.rootfs.mkdir(exist_ok=True)
    mounts.overlay(image_root, upper, work, places.rootfs)


def _write_etc(upper: Path, lower: Path, files: dict[str, str]) -> None:
    """An ``/etc`` that is a link stays as the image has it: files beside its target would be seen by nobody."""
    if lower.is_symlink():
        return
    upper.mkdir(mode=0o755)
    if lower.is_dir():
        _take_mode(upper, lower)
    for name, text in files.items():
        (upper / name).write_text(text)
        (upper / name).chmod(0o644)


def _take_mode(target: Path, source: Path) -> None:
    """The upper directory's owner and mode are the ones that are seen."""
    status = source.stat()
    os.chown(target, status.st_uid, status.st_gid)
    target.chmod(status.st_mode & 0o7777)


def prepare_workspace(places: Places, account: Account) -> None:
    """A workspace that belongs to the sandbox's user; what an earlier generation left in it stays."""
    places.workspace.mkdir(mode=0o755, exist_ok=True)
    os.chown(places.workspace, account.uid, account.gid)


def prepare_logs(places: Places) -> None:
    """Empty logs."""
    for stream in Stream:
        path = places.log(stream)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(b"")


def etc_files(hostname: str, resolvers: Sequence[str]) -> dict[str, str]:
    """Names that a sandbox can resolve; ``resolv.conf`` only where there is a network."""
    files = {
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    }
    if resolvers:
        files["resolv.conf"] = "".join(f"nameserver {address}\n" for address in resolvers)
    return files
