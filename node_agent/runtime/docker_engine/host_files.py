"""The parts of a sandbox that lie on the host: made before its container."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import accounts, programs
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
