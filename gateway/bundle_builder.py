"""``sandboxes gateway bundle``: collects what new machines install, so that they need nothing but the gateway.

The node agent's wheel is built from the very installation that runs the gateway, or fetched in its very version; its
dependencies are fetched as wheels for the Pythons of the nodes.  The scripts come out of the wheel itself.
"""

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

from gateway.services.bundle import MANIFEST, digest_of, sums_of
from gateway.wire.nodes import SUMS, BundleFile, BundleManifest
from gateway.wire.system import DISTRIBUTION
from sandboxes.errors import CommandFailed

PYTHONS: Final = ("3.11", "3.12", "3.13")
"""Of Debian 12, Ubuntu 24.04 and Debian 13."""
SCRIPTS: Final = ("install.sh", "packages.sh", "sandbox-fleet-node.service")
_INSIDE: Final = "node_agent/install"
# Debian 12 has glibc 2.36; pip takes only the tags that it is told when it fetches for another machine.
_GLIBC: Final = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
_PIP_SECONDS: Final = 900.0

Run = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Wanted:
    """What to collect."""

    directory: Path
    pythons: tuple[str, ...] = PYTHONS
    machine: str = "x86_64"
    source: Path | None = None
    """Checkout to build the wheel from; ``None`` is where this installation came from."""


def make(wanted: Wanted, say: Callable[[str], None], run: Run | None = None) -> BundleManifest:
    """Collects everything beside the directory, then puts it in its place in one step.

    Raises:
        CommandFailed: pip failed, or the directory cannot be written.
    """
    pip = run or _pip
    parent = wanted.directory.absolute().parent
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=parent) as temporary:
            draft = Path(temporary) / "bundle"
            draft.mkdir(mode=0o755)
            say("building the node agent's wheel")
            wheel = _wheel(draft, wanted.source, pip)
            for python in wanted.pythons:
                say(f"fetching its dependencies for Python {python}")
                pip(_download(draft, wheel, python, wanted.machine))
            _unpack_scripts(wheel)
            manifest = _described(draft, wheel)
            _put_in_place(draft, wanted.directory.absolute(), Path(temporary) / "old")
    except OSError as error:
        raise CommandFailed(f"the bundle cannot be written to {wanted.directory}: {error}") from error
    return manifest


def _wheel(draft: Path, source: Path | None, pip: Run) -> Path:
    """The node agent's wheel: built from a checkout, else fetched in the version that runs here."""
    origin = source or _checkout()
    common = ["--no-deps", "--quiet", "--disable-pip-version-check"]
    if origin is not None:
        pip(["wheel", *common, "--wheel-dir", str(draft), str(origin)])
    else:
        pip(["download", *common, "--dest", str(draft), f"{DISTRIBUTION}=={distribution(DISTRIBUTION).version}"])
    found = sorted(draft.glob("sandbox_fleet-*.whl"))
    if len(found) != 1:
        raise CommandFailed(f"pip made {len(found)} wheels of {DISTRIBUTION}; give the checkout with --source")
    return found[0]


def _checkout() -> Path | None:
    """Directory that this installation was made from, where it was one; see PEP 610."""
    try:
        told = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        raise CommandFailed(f"{DISTRIBUTION} is not installed here; give its checkout with --source") from None
    if told is None:
        return None
    origin = urlsplit(json.loads(told)["url"])
    path = Path(unquote(origin.path))
    return path if origin.scheme == "file" and path.is_dir() else None


def _download(draft: Path, wheel: Path, python: str, machine: str) -> list[str]:
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
        f"{wheel}[node]",
    ]


def _unpack_scripts(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in SCRIPTS:
            try:
                (wheel.parent / name).write_bytes(archive.read(f"{_INSIDE}/{name}"))
            except KeyError:
                raise CommandFailed(f"{wheel.name} has no {_INSIDE}/{name}: it is of another version") from None


def _described(draft: Path, wheel: Path) -> BundleManifest:
    """Writes the manifest and the list of digests beside the files."""
    files = [
        BundleFile(file=path.name, sha256=digest_of(path), size=path.stat().st_size, python=_python_of(path))
        for path in sorted(draft.iterdir())
    ]
    (draft / SUMS).write_text(sums_of(files))
    manifest = BundleManifest(version=wheel.name.split("-")[1], sha256=digest_of(draft / SUMS), files=files)
    (draft / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    return manifest


def _python_of(path: Path) -> str | None:
    """Python tag of a wheel, from its name: ``NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl``."""
    return path.stem.split("-")[-3] if path.suffix == ".whl" else None


def _put_in_place(draft: Path, directory: Path, old: Path) -> None:
    if directory.exists():
        directory.rename(old)
    draft.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _pip(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"pip {arguments[0]} took over {_PIP_SECONDS:.0f} s; try again") from None
    if done.returncode != 0:
        said = "; ".join(done.stderr.strip().splitlines()[-3:])
        raise CommandFailed(f"pip {arguments[0]} failed: {said or f'exit code {done.returncode}'}")
