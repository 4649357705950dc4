"""Machines for tests: Debian and Ubuntu with a real systemd, in namespaces of this machine's kernel.

Their file systems come from the distributions' mirrors once, and are kept in `.borrowed` of the checkout.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from providers.local.network import Namespace
from tests.borrowed import FOLDER, borrowed

SCRIPT: Final = Path(__file__).with_name("machines.sh")
AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
# python3-cffi-backend provides a virtual package that cloud-init needs in the end; debootstrap resolves real ones only.
INCLUDED: Final = "systemd,systemd-sysv,dbus,python3,ca-certificates,iproute2,python3-cffi-backend,cloud-init"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_SECONDS: Final = 900.0
START_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Distribution:
    """Arguments of debootstrap."""

    suite: str
    mirror: tuple[str, ...] = ()
    """Mirror, and the script for a suite that debootstrap's own table may not have; empty for those that it knows."""
    components: str = "main"
    keyring: str | None = None
    """Debian package with the keys of the mirror; ``None`` for Debian's own."""


DEBIAN_12: Final = Distribution("bookworm")
DEBIAN_13: Final = Distribution("trixie")
UBUNTU_24_04: Final = Distribution(
    "noble", ("http://archive.ubuntu.com/ubuntu", "gutsy"), "main,universe", "ubuntu-keyring"
)


def base(wanted: Distribution) -> Path:
    """The file system of a new machine, made when it is not there; skips the test where that is not possible."""
    made = FOLDER / "bases" / wanted.suite
    if made.exists():
        return made
    program = borrowed("debootstrap")
    draft = made.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    keys = [] if wanted.keyring is None else [f"--keyring={_keyring(wanted.keyring)}"]
    command = [program, "--variant=minbase", f"--include={INCLUDED}", f"--components={wanted.components}", *keys]
    done = subprocess.run(
        [*command, wanted.suite, str(draft), *wanted.mirror],
        capture_output=True,
        text=True,
        timeout=BASE_SECONDS,
        check=False,
        env={"PATH": PATH, "HOME": "/root"},
    )
    if done.returncode != 0:
        pytest.skip(f"debootstrap {wanted.suite}: {done.stdout[-300:]}")
    draft.rename(made)
    return made


def _keyring(package: str) -> Path:
    """The keys from that Debian package, unpacked and not installed."""
    place = FOLDER / "keys"
    place.mkdir(parents=True, exist_ok=True)
    found = sorted(place.rglob("ubuntu-archive-keyring.gpg"))
    if not found:
        command = f"apt-get -qq download {package} && dpkg-deb --extract {package}_*.deb ."
        subprocess.run(["sh", "-c", command], cwd=place, check=True, capture_output=True, timeout=60)
        found = sorted(place.rglob("ubuntu-archive-keyring.gpg"))
    return found[0]


@dataclass(frozen=True)
class Machine:
    """One that runs."""

    root: Path
    """Its file system, seen from here; what it mounts itself is not seen."""
    init: int
    """Process id of its systemd, here."""

    def run(self, *words: str, text: str | None = None, seconds: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """Runs a command on it, as root."""
        namespaces = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--root", "--wd")
        enter = ["nsenter", "--target", str(self.init), *namespaces, "env", "-i", f"PATH={PATH}", "HOME=/root"]
        return subprocess.run(
            [*enter, *words], input=text or "", capture_output=True, text=True, timeout=seconds, check=False
        )

    def told(self, *words: str, text: str | None = None, seconds: float = 60.0) -> str:
        """Output of a command that has to succeed."""
        done = self.run(*words, text=text, seconds=seconds)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@contextlib.contextmanager
def prepared(wanted: Distribution, place: Path) -> Iterator[Path]:
    """The file system of a machine that was not started yet: changes stay in ``place``, a directory of its own."""
    below = base(wanted)
    for name in ("changes", "work", "root"):
        (place / name).mkdir(parents=True)
    root = place / "root"
    layers = f"lowerdir={below},upperdir={place / 'changes'},workdir={place / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True, timeout=20)
    try:
        # What a provider's network would configure, and whom this machine trusts for its own outgoing calls.
        (root / "etc/resolv.conf").unlink(missing_ok=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {AUTHORITIES}\n")
        yield root
    finally:
        subprocess.run(["umount", root], check=True, timeout=20)


@contextlib.contextmanager
def started(root: Path, name: str, namespace: Namespace) -> Iterator[Machine]:
    """A machine that boots from there, alive inside the block."""
    volumes = root.parent / "volumes"
    command = ["bash", str(SCRIPT), "enter", name, namespace.name, str(root), str(volumes)]
    with (root.parent / "console.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield _await_systemd(root, process)
    finally:
        process.kill()  # and with it the first process of its namespace, and all others there
        process.wait()
        _remove_groups(name)


def _await_systemd(root: Path, process: "subprocess.Popen[bytes]") -> Machine:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
            machine = Machine(root, int(children[0]))
            if machine.run("systemctl", "show", "--property=Version").returncode == 0:
                return machine
        time.sleep(0.1)
    raise AssertionError(f"systemd did not start: {(root.parent / 'console.log').read_text()[-2000:]}")


def _remove_groups(name: str) -> None:
    """Control groups of a machine that has ended; the kernel may need a moment to let go of them."""
    deadline = time.monotonic() + 10
    for top in Path("/sys/fs/cgroup").rglob(name):
        for group in sorted((Path(place) for place, _, _ in os.walk(top)), reverse=True):
            while True:
                try:
                    group.rmdir()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
