"""The bundle: what new machines install, so that they need nothing but the gateway.

``sandboxes gateway bundle`` makes it (`build_bundle`). The node agent's wheel is built from the checkout that the
gateway's installation came from, or downloaded in the same version; its dependencies are downloaded as wheels for the
Pythons of the nodes, in the versions and with the hashes of the lock file.  That and the scripts come out of the wheel.
The gateway serves it with its manifest (`BundleService`).
"""

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import click
from pydantic import ValidationError

from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import SUMS, BundleFile, BundleManifest
from gateway.wire.system import DISTRIBUTION

PYTHONS: Final = ("3.11", "3.12", "3.13")
"""Of Debian 12, Ubuntu 24.04 and Debian 13."""
MANIFEST: Final = "manifest.json"
SCRIPTS: Final = ("install.sh", "packages.sh", "sandbox-fleet-node.service")
LOCK: Final = "requirements.txt"
"""Name of the lock file in the bundle."""
_SOURCES: Final = {
    **{name: f"node_agent/install/{name}" for name in SCRIPTS},
    LOCK: "sandboxes/locks/node.txt",
}
"""Where each file lies in the wheel."""
# Debian 12 has glibc 2.36; when pip downloads for another machine, it takes only the tags it is given.
_GLIBC: Final = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
_PIP_SECONDS: Final = 900.0

Pip = Callable[[Sequence[str]], None]
"""Runs pip with these arguments."""


@dataclass(frozen=True)
class BundleRequest:
    """What to collect, and where.

    Attributes:
        directory: the bundle's directory; replaced in one step.
        pythons: versions of the nodes' Pythons.
        machine: architecture of the nodes, as in the tags of wheels.
        source: checkout to build the wheel from; ``None`` is the one that this installation came from.
    """

    directory: Path
    pythons: tuple[str, ...] = PYTHONS
    machine: str = "x86_64"
    source: Path | None = None


def build_bundle(request: BundleRequest, say: Callable[[str], None], pip: Pip | None = None) -> BundleManifest:
    """Collect everything next to the directory, then put it in place in one step.

    Args:
        request: what to collect.
        say: called with a line for each step.
        pip: runs pip; ``None`` is the pip of this Python.

    Returns:
        The manifest of the new bundle.

    Raises:
        click.ClickException: pip failed, or the directory cannot be written.
    """
    pip = pip or _pip
    parent = request.directory.absolute().parent
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=parent) as temporary:
            draft = Path(temporary) / "bundle"
            draft.mkdir(mode=0o755)
            say("building the wheel of the node agent")
            wheel = _wheel(draft, request.source, pip)
            _unpack(wheel)
            for python in request.pythons:
                say(f"downloading its dependencies for Python {python}")
                pip(_download(draft, python, request.machine))
            manifest = _described(draft, wheel)
            _replace(draft, request.directory.absolute(), Path(temporary) / "old")
    except OSError as error:
        raise click.ClickException(f"the bundle cannot be written to {request.directory}: {error}") from error
    return manifest


def _wheel(draft: Path, source: Path | None, pip: Pip) -> Path:
    """Return the node agent's wheel: built from a checkout, else downloaded in the version that runs here."""
    origin = source or _checkout()
    common = ["--no-deps", "--quiet", "--disable-pip-version-check"]
    if origin is not None:
        pip(["wheel", *common, "--wheel-dir", str(draft), str(origin)])
    else:
        pip(["download", *common, "--dest", str(draft), f"{DISTRIBUTION}=={distribution(DISTRIBUTION).version}"])
    found = sorted(draft.glob("sandbox_fleet-*.whl"))
    if len(found) != 1:
        raise click.ClickException(
            f"pip made {len(found)} wheels of {DISTRIBUTION} instead of one; name the checkout with --source"
        )
    return found[0]


def _checkout() -> Path | None:
    """Return the directory that this installation was made from, if it was one; see PEP 610."""
    try:
        recorded = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        raise click.ClickException(f"{DISTRIBUTION} is not installed here; name its checkout with --source") from None
    if recorded is None:
        return None
    origin = urlsplit(json.loads(recorded)["url"])
    path = Path(unquote(origin.path))
    return path if origin.scheme == "file" and path.is_dir() else None


def _download(draft: Path, python: str, machine: str) -> list[str]:
    platforms = [part for glibc in _GLIBC for part in ("--platform", f"{glibc}_{machine}")]
    return [
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python}",
        f"--abi=cp{python.replace('.', '')}",
        "--abi=abi3",
        "--abi=none",
        *platforms,
        "--dest",
        str(draft),
        "--require-hashes",
        "--requirement",
        str(draft / LOCK),
    ]


def _unpack(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name, source in _SOURCES.items():
            try:
                (wheel.parent / name).write_bytes(archive.read(source))
            except KeyError:
                raise click.ClickException(f"{wheel.name} has no {source}: it is of another version") from None


def _described(draft: Path, wheel: Path) -> BundleManifest:
    """Write the manifest and the list of digests next to the files, and return the manifest."""
    files = [
        BundleFile(file=path.name, sha256=digest_of(path), size=path.stat().st_size, python=_python_of(path))
        for path in sorted(draft.iterdir())
    ]
    (draft / SUMS).write_text(sums_of(files))
    manifest = BundleManifest(version=wheel.name.split("-")[1], sha256=digest_of(draft / SUMS), files=files)
    (draft / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    return manifest


def _python_of(path: Path) -> str | None:
    """Return the Python tag of a wheel, from its name: ``NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl``."""
    return path.stem.split("-")[-3] if path.suffix == ".whl" else None


def _replace(draft: Path, directory: Path, old: Path) -> None:
    if directory.exists():
        directory.rename(old)
    draft.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _pip(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"pip {arguments[0]} took over {_PIP_SECONDS:.0f} s; try again") from None
    if done.returncode != 0:
        reason = "; ".join(done.stderr.strip().splitlines()[-3:])
        raise click.ClickException(f"pip {arguments[0]} failed: {reason or f'exit code {done.returncode}'}")


# -- serving ----------------------------------------------------------------------------------------------------------


def sums_of(files: list[BundleFile]) -> str:
    """Return the text of `SUMS` for these files."""
    return "".join(f"{item.sha256}  {item.file}\n" for item in files)


class BundleService:
    """Reads the directory again whenever its manifest has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: tuple[tuple[int, int], BundleManifest] | None = None

    async def manifest(self) -> BundleManifest:
        """Return what the bundle holds.

        Raises:
            ApiError: ``NOT_FOUND``: there is no bundle, or it cannot be read.
        """
        return await asyncio.to_thread(self._manifest)

    async def path(self, name: str) -> Path:
        """Return where a file of the bundle lies.

        Raises:
            ApiError: ``NOT_FOUND``: the bundle has no such file, or its size is not the manifest's.
        """
        return await asyncio.to_thread(self._path, name)

    def _manifest(self) -> BundleManifest:
        path = self._directory / MANIFEST
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_ino)
            if self._kept is None or self._kept[0] != stamp:
                self._kept = (stamp, BundleManifest.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            raise _no_bundle(f"there is no bundle in {self._directory}") from None
        except (OSError, ValidationError) as error:
            raise _no_bundle(f"{path} cannot be read: {error}") from error
        return self._kept[1]

    def _path(self, name: str) -> Path:
        manifest = self._manifest()
        sums = sums_of(manifest.files)
        sizes = {item.file: item.size for item in manifest.files} | {SUMS: len(sums)}
        if name not in sizes:
            raise ApiError(ErrorCode.NOT_FOUND, f"the bundle has no file {name[:100]!r}; its manifest lists them all")
        path = self._directory / name
        try:
            whole = path.stat().st_size == sizes[name]
        except OSError:
            whole = False
        if not whole:
            raise _no_bundle(f"{name} in {self._directory} is not what the manifest says")
        return path


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_bundle(why: str) -> ApiError:
    return ApiError(ErrorCode.NOT_FOUND, f"{why}; make it on the gateway's machine with: sandboxes gateway bundle")
