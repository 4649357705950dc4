"""``sandboxes cp``: one file into or out of a sandbox, also from standard input or to standard output."""

import posixpath
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from gateway.wire.tenants import QUALIFIED_PATTERN
from sandboxes.output import transfer
from ucloud_sandboxes_sdk import SandboxClient

PIPE: Final = "-"
_ID: Final = QUALIFIED_PATTERN.removeprefix("^").removesuffix("$")
SANDBOX_PATH: Final = re.compile(rf"(?P<id>{_ID}):(?P<path>.+)", re.DOTALL)


@dataclass(frozen=True)
class RemotePath:
    """A path in a sandbox."""

    sandbox_id: str
    path: str


@dataclass(frozen=True)
class LocalPath:
    """A path on this machine, or ``-`` for standard input or output."""

    path: str


def parse_place(text: str) -> RemotePath | LocalPath:
    """Parse an argument of ``cp``.  A local name that holds a colon is written as ``./name:x``."""
    if match := SANDBOX_PATH.fullmatch(text):
        return RemotePath(match["id"], match["path"])
    return LocalPath(text)


def copy(client: SandboxClient, source: RemotePath | LocalPath, target: RemotePath | LocalPath) -> dict[str, object]:
    """Copy one file.

    Returns:
        JSON for programs: ``from``, ``to`` and ``size`` in bytes.

    Raises:
        click.UsageError: the two places do not make a copy into or out of one sandbox.
    """
    match source, target:
        case LocalPath(), RemotePath():
            return _upload(client, source.path, target)
        case RemotePath(), LocalPath():
            return _download(client, source, target.path)
    raise click.UsageError("one of SRC and DST must be ID:PATH, and the other a local path or -")


def _upload(client: SandboxClient, source: str, target: RemotePath) -> dict[str, object]:
    path = target.path
    if path.endswith("/"):
        if source == PIPE:
            raise click.UsageError(f"{path} is a directory; name the file that standard input becomes")
        path += Path(source).name
    with transfer(posixpath.basename(path)) as moved:
        if source == PIPE:
            answer = client.upload_file(target.sandbox_id, path, sys.stdin.buffer, on_progress=moved)
        else:
            _refuse_directory(Path(source), target.sandbox_id)
            answer = client.upload_file(target.sandbox_id, path, Path(source), on_progress=moved)
    return {"from": source, "to": f"{target.sandbox_id}:{path}", "size": answer["size"]}


def _download(client: SandboxClient, source: RemotePath, target: str) -> dict[str, object]:
    with transfer(posixpath.basename(source.path)) as moved:
        if target == PIPE:
            size = client.download_file_to(source.sandbox_id, source.path, sys.stdout.buffer, on_progress=moved)
            sys.stdout.buffer.flush()
        else:
            local = Path(target)
            if target.endswith("/") or local.is_dir():
                local /= posixpath.basename(source.path)
            size = client.download_file_to_path(source.sandbox_id, source.path, local, on_progress=moved).stat().st_size
            target = str(local)
    return {"from": f"{source.sandbox_id}:{source.path}", "to": target, "size": size}


def _refuse_directory(source: Path, sandbox_id: str) -> None:
    if source.is_dir():
        raise click.ClickException(
            f"{source} is a directory; pack it: tar -C {source} -c . | sandboxes exec -i {sandbox_id} -- tar -x"
        )
