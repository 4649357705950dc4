"""A Docker daemon of the node's own: its arguments, and gVisor as its second runtime."""

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.host.firewall import group_of
from node_agent.host.network import HIDE_SYSCTL
from node_agent.host.process import CommandError, run

_ADMIN_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_WRAPPER: Final = r"""#!/bin/sh
# Written by the node's Docker engine: runs gVisor for Docker.
# gVisor opens device nodes of a root file system on the host, so before a container is made its root loses them.
bundle= create=
for word; do
  case $last in --bundle | -bundle) bundle=$word ;; esac
  [ "$word" != create ] || create=yes
  last=$word
done
if [ "$create" ]; then
  root=$(sed -n 's/.*"root":{{"path":"\([^"]*\)".*/\1/p' "$bundle/config.json") &&
    mount -o remount,bind,nodev,nosuid "$root" ||
    {{ echo "the container's root could not be mounted nodev" >&2; exit 1; }}
fi
# The KVM platform hangs on machines whose /dev/kvm does not work.  Without gVisor's own overlay, writes land in the
# container's layer on the host, where the sandbox's volume bounds them.
exec {runsc} --platform=systrap --overlay2=none --network=sandbox "$@"
"""


@dataclass(frozen=True)
class DockerDaemon:
    """One Docker daemon below a directory of its own.

    It sets up no firewall, no NAT and no default bridge: the node does that per sandbox.

    Attributes:
        directory: data, execution state, pid file and the gVisor wrapper; made when it is not there.
        socket: where it answers; Linux allows 107 bytes for its path.
    """

    directory: Path
    socket: Path

    @property
    def url(self) -> str:
        """As the Docker SDK takes it."""
        return f"unix://{self.socket}"

    def prepare(self) -> list[str]:
        """Write what the daemon needs and return its command line.

        Raises:
            CommandError: dockerd, runsc or setpriv is not installed.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        wrapper = self.directory / "runsc"
        wrapper.write_text(gvisor_wrapper(_installed("runsc"), hide_sysctl=sysctl_is_visible()))
        wrapper.chmod(0o755)
        # In a group of its own its connections are told from everybody's; see `firewall`.  Files of root stay its own.
        as_group = [_installed("setpriv"), "--regid", str(group_of(self.directory)), "--groups", "0", "--"]
        return [*as_group, _installed("dockerd"), *self._arguments(wrapper)]

    def _arguments(self, wrapper: Path) -> list[str]:
        values = {
            "data-root": self.directory / "data",
            "exec-root": self.directory / "exec",
            "pidfile": self.directory / "dockerd.pid",
            "host": self.url,
            "storage-driver": "overlay2",
            "exec-opt": "native.cgroupdriver=cgroupfs",
            "add-runtime": f"runsc={wrapper}",
            "bridge": "none",
            "iptables": "false",
            "ip-masq": "false",
            "log-level": "warn",
        }
        # Sandboxes outlive a daemon that is killed, and the next one takes them over.
        return [*(f"--{name}={value}" for name, value in values.items()), "--live-restore"]


def gvisor_wrapper(runsc: str, *, hide_sysctl: bool) -> str:
    """Return the script that Docker runs as its runtime ``runsc``."""
    return _WRAPPER.format(runsc=shlex.join([*(HIDE_SYSCTL if hide_sysctl else ()), runsc]))


def sysctl_is_visible() -> bool:
    """Return whether a new network namespace shows ``rmem_default``, as it does since about Linux 6.15."""
    try:
        run(["unshare", "-n", "test", "-e", "/proc/sys/net/core/rmem_default"])
    except CommandError:
        return False
    return True


def run_engine(state_dir: Path, socket: Path) -> int:
    """Become the Docker daemon of this node; the exit code is the daemon's.

    It is ready when the socket answers, and ends on SIGTERM.  Containers that are left go on, and the next daemon over
    the same directory takes them over.

    Raises:
        CommandError: dockerd or runsc is not installed.
        OSError: it cannot be started.
    """
    socket.parent.mkdir(parents=True, exist_ok=True)
    argv = DockerDaemon(state_dir, socket).prepare()
    os.execve(argv[0], argv, os.environ | {"PATH": _ADMIN_PATH})  # noqa: S606 - no shell is wanted


def _installed(program: str) -> str:
    path = shutil.which(program, path=_ADMIN_PATH)
    if path is None:
        raise CommandError([program], "is not installed on this host; `sandboxes doctor` names the package")
    return path
