"""Images made from this machine's own packages, for demos and tests where no registry can be reached.

They carry names of their own, so that nobody takes them for the image of a registry.
"""

import io
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final

import docker
import requests
from docker.errors import DockerException

DEMO_IMAGE: Final = "sandbox-fleet/debian-python:local"
TEST_IMAGE: Final = "sandbox-fleet/busybox:local"
CACHE: Final = Path("/var/cache/sandbox-fleet")
BUSYBOX: Final = Path("/bin/busybox")
WANTED: Final = (
    "python3",
    "bash",
    "dash",
    "coreutils",
    "findutils",
    "grep",
    "sed",
    "base-files",
    "base-passwd",
    "tzdata",
)
STEP_SECONDS: Final = 600.0
IMPORT_SECONDS: Final = 300
# Debian's directories moved below /usr; the old names stay as links.
MERGED: Final = ("bin", "sbin", "lib", "lib64")

Packer = Callable[[Path, Path], None]
"""Makes the image's archive (second path) with the help of an empty directory (first path)."""


class ImageBuildError(Exception):
    """The image could not be made; the sentence says what failed and what to do."""


def demo_image(docker_url: str, cache: Path = CACHE) -> str:
    """Put a Debian with Python into the local Docker engine; return its reference.

    Packed once from the packages that this machine's apt knows, without running their installation scripts, and kept
    below ``cache``.

    Raises:
        ImageBuildError: apt or the engine failed.
    """
    return _provide(docker_url, DEMO_IMAGE, cache / f"debian-python-{platform.machine()}.tar", _pack_debian)


def test_image(docker_url: str, cache: Path = CACHE) -> str:
    """Put a busybox into the local Docker engine; return its reference.

    Raises:
        ImageBuildError: busybox is missing or the engine failed.
    """
    return _provide(docker_url, TEST_IMAGE, cache / f"busybox-{platform.machine()}.tar", _pack_busybox)


def _provide(docker_url: str, reference: str, archive: Path, pack: Packer) -> str:
    socket = docker_url.removeprefix("unix://")
    if socket.startswith("/") and not Path(socket).exists():
        raise ImageBuildError(f"no Docker engine listens at {docker_url}; start one, or name another with --docker")
    try:
        client = docker.APIClient(base_url=docker_url, timeout=IMPORT_SECONDS)
        try:
            if client.images(name=reference):
                return reference
            if not archive.exists():
                _make(archive, pack)
            repository, _, tag = reference.partition(":")
            client.import_image_from_file(str(archive), repository=repository, tag=tag)
        finally:
            client.close()
    except (DockerException, requests.RequestException) as error:
        raise ImageBuildError(f"the Docker engine at {docker_url} did not take the image: {error}") from error
    except OSError as error:
        raise ImageBuildError(f"{archive} could not be made: {error.strerror or error}") from error
    return reference


def _make(archive: Path, pack: Packer) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".making-") as directory:
        draft = Path(directory) / "image.tar"
        pack(Path(directory), draft)
        draft.replace(archive)


def _pack_busybox(_: Path, draft: Path) -> None:
    if not BUSYBOX.exists():
        raise ImageBuildError(f"{BUSYBOX} is missing; install it with: apt-get install busybox-static")
    applets = _run([str(BUSYBOX), "--list"]).split()
    with tarfile.open(draft, "w") as tar:
        for name in ("bin", "etc", "tmp", "root"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        tar.add(BUSYBOX, "bin/busybox")
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        passwd = b"root:x:0:0:root:/root:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        tar.addfile(entry, io.BytesIO(passwd))


def _pack_debian(directory: Path, draft: Path) -> None:
    packages, root = directory / "packages", directory / "root"
    packages.mkdir()
    packages.chmod(0o777)  # apt downloads as a user of its own
    directory.chmod(0o755)
    names = closure(
        _run(
            [
                "apt-cache",
                "depends",
                "--recurse",
                "--no-recommends",
                "--no-suggests",
                "--no-conflicts",
                "--no-breaks",
                "--no-replaces",
                "--no-enhances",
                *WANTED,
            ]
        )
    )
    _run(["apt-get", "download", *names], cwd=packages)
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in sorted(packages.glob("*.deb")):
        contents = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
        with contents:
            _run(["tar", "-x", "--keep-directory-symlink", "-C", str(root)], stdin=contents.stdout)
        if contents.returncode != 0:
            raise ImageBuildError(f"{package.name} could not be unpacked")
    _finish_debian(root)
    _run(["tar", "-c", "-f", str(draft), "-C", str(root), "."])


def _finish_debian(root: Path) -> None:
    """Do what the installation scripts would do and a sandbox needs."""
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / f"etc/{name}")
    (root / "usr/bin/python").symlink_to("python3")
    (root / "tmp").chmod(0o1777)
    for name in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / name, ignore_errors=True)


def closure(depends: str) -> list[str]:
    """Return the package names that ``apt-cache depends --recurse`` printed, without virtual ones and doubles."""
    names: Iterable[str] = (line.strip() for line in depends.splitlines() if line and not line[0].isspace())
    return sorted({name for name in names if re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name)})


def _run(argv: list[str], *, cwd: Path | None = None, stdin: IO[bytes] | int | None = subprocess.DEVNULL) -> str:
    try:
        done = subprocess.run(argv, cwd=cwd, stdin=stdin, capture_output=True, timeout=STEP_SECONDS, check=False)
    except FileNotFoundError as error:
        raise ImageBuildError(f"{argv[0]} is not installed on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise ImageBuildError(f"{argv[0]} did not end within {STEP_SECONDS:g} s") from error
    if done.returncode != 0:
        raise ImageBuildError(f"{argv[0]} failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return str(done.stdout.decode())
