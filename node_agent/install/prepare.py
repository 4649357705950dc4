"""Makes this machine an image that others boot from: all is installed, and nothing in it is this machine's own.

A snapshot of it boots without installing: the bootstrap finds the marker of `install.sh` and only starts the agent.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from node_agent.host import mounts

_INSTALL_SECONDS: Final = 1800.0
_SERVICES: Final = ("sandbox-fleet-node.service", "sandbox-fleet-bootstrap.service")
IDENTITY: Final = (
    "var/lib/sandbox-fleet",
    "etc/sandbox-fleet",
    "run/sandbox-fleet",
    "etc/systemd/system/multi-user.target.wants/sandbox-fleet-node.service",
    "etc/systemd/system/multi-user.target.wants/sandbox-fleet-bootstrap.service",
    "etc/ssh/ssh_host_*",
    "root/.ssh/authorized_keys",
    "root/.bash_history",
    "home/*/.ssh/authorized_keys",
    "home/*/.bash_history",
    "var/lib/cloud",
    "var/lib/dbus/machine-id",
    "var/lib/systemd/random-seed",
    "var/lib/dhcp/*",
    "var/lib/docker/containers/*",
    "var/log/cloud-init*.log",
    "var/log/journal/*",
    "opt/sandbox-fleet/bundle",
)
"""What belongs to one machine, below ``/``: credentials, names, histories, and what cloud-init has done already."""

Run = Callable[[Sequence[str]], None]


class PrepareError(Exception):
    """The image cannot be prepared; the sentence says why and what to do."""


@dataclass(frozen=True)
class Step:
    """One thing to do."""

    what: str
    act: Callable[[], None]


@dataclass(frozen=True)
class MachineImage:
    """The machine that becomes the image.

    Attributes:
        root: its file system; ``/`` but in tests.
        has_systemd: whether a service manager runs, whose services have to be stopped.
        run: runs one command.
    """

    root: Path
    has_systemd: bool
    run: Run

    def steps(self) -> list[Step]:
        """Return all steps, in order.  Each can be done again."""
        installer = self.root / "opt/sandbox-fleet/install.sh"
        steps = [Step(f"install whatever is missing: {installer} --image", partial(self._install, installer))]
        if self.has_systemd:
            stop = ["systemctl", "disable", "--now", *_SERVICES]
            steps.append(Step(f"stop and disable {' and '.join(_SERVICES)}", partial(self.run, stop)))
        steps += [Step(f"remove {self.root / pattern}", partial(self._remove, pattern)) for pattern in IDENTITY]
        steps.append(Step(f"empty {self.root / 'etc/machine-id'}, for the next boot to fill", self._forget_machine))
        return steps

    def _install(self, installer: Path) -> None:
        marker = self.root / "opt/sandbox-fleet/installed"
        if not installer.exists() or not marker.exists():
            raise PrepareError(
                f"there is no complete installation in {marker.parent}; boot a machine of the pool, let it become a"
                " node, drain it, then run this there"
            )
        self.run(["bash", str(installer), "--image"])

    def _remove(self, pattern: str) -> None:
        for path in sorted(self.root.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _forget_machine(self) -> None:
        """Empty the file: systemd chooses a new id at the next boot, where a missing one would make it a first boot."""
        path = self.root / "etc/machine-id"
        if path.exists():
            path.write_text("")


def run_command(command: Sequence[str]) -> None:
    """Run one step's command.

    Raises:
        PrepareError: it failed, or took too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PrepareError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise PrepareError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


def prepare(image: MachineImage, say: Callable[[str], None], *, dry_run: bool) -> None:
    """Do every step, and name each before it is done.

    Args:
        image: the machine.
        say: called with one line a step.
        dry_run: name the steps only.

    Raises:
        PrepareError: a step failed, or sandboxes are still mounted here; what was done stays done.
    """
    mounted = mounts.mounts_inside(image.root / "var/lib/sandbox-fleet")
    if mounted and not dry_run:
        raise PrepareError(f"sandboxes are still here ({mounted[0]}); drain this node and wait until it is empty")
    for step in image.steps():
        say(step.what)
        if dry_run:
            continue
        try:
            step.act()
        except OSError as error:
            raise PrepareError(f"{step.what}: {error}") from error
