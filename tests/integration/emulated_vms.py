"""What runs inside emulated machines that boot for real: their own network, processes and file system on this kernel.

A machine is a set of namespaces.  Its file system is this machine's with a layer of its own above the places that the
boot writes to, so everything lies where it would on a VM and nothing of it is left afterwards.  It does with its user
data what the cloud would: the cloud-config's files and commands, or the init script.  A stand-in for ``systemctl``
starts the very units that they install, and one for ``ucloud`` gives a machine the data of its job.
"""

import base64
import io
import ipaddress
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from node_agent.host.cgroup import parent_name
from node_agent.settings import tag_of
from providers.local.network import Namespace, Network
from tests.fakes.booting import Machine
from tests.fakes.ucloud.cluster import Guest

STATE: Final = Path("/var/lib/sandbox-fleet")
GROUPS: Final = Path("/sys/fs/cgroup")
SYSTEMCTL: Final = r"""#!/bin/bash
# As much of systemctl as a boot asks for: it starts a unit's commands, and starts them again when they fail.
verb=$1; shift
now= units=()
for word in "$@"; do
    case $word in --now) now=1 ;; -*) ;; *) units+=("$word") ;; esac
done
value() { sed -n "s/^$2=//p" "/etc/systemd/system/$1" | head -n 1; }
once() {
    local unit=$1 before file
    before=$(value "$unit" ExecStartPre) file=$(value "$unit" EnvironmentFile)
    [ -z "$before" ] || $before || return
    ( file=${file#-}; set -a; [ -z "$file" ] || [ ! -e "$file" ] || . "$file"; set +a; exec $(value "$unit" ExecStart) )
}
keep() {
    local unit=$1 unless
    unless=$(value "$unit" ConditionPathExists)
    case $unless in "!"*) [ ! -e "${unless#!}" ] || return 0 ;; esac
    until once "$unit" && [ "$(value "$unit" Type)" = oneshot ]; do sleep "$(value "$unit" RestartSec)"; done
}
for unit in "${units[@]}"; do
    if [ "$verb" = enable ]; then
        mkdir -p /etc/systemd/system/multi-user.target.wants
        ln -sf "/etc/systemd/system/$unit" /etc/systemd/system/multi-user.target.wants/
    fi
    if [ "$verb" = start ] || [ -n "$now" ]; then
        keep "$unit" >>"/run/log.$unit" 2>&1 </dev/null &
    fi
done
"""
UCLOUD: Final = """#!/bin/sh
# As much of UCloud's program as the init script asks for: what the job is.
[ "$*" = "introspect job -json" ] && cat /etc/ucloud-job.json
"""
BOOT: Final = """
set -eu
layers=$1
mount -t tmpfs tmpfs "$layers"
for place in etc opt usr/local var/lib; do
    mkdir -p "$layers/above/$place" "$layers/work/$place"
    options="lowerdir=/$place,upperdir=$layers/above/$place,workdir=$layers/work/$place"
    mount -t overlay overlay -o "$options" "/$place"
done
mkdir -p "$layers/run/systemd/system" /var/lib/sandbox-fleet
mount --bind "$2" /var/lib/sandbox-fleet
mount --bind "$layers/run" /run
tar --extract --directory / --file "$3"
PATH=/usr/local/sbin:/usr/local/bin:$PATH bash "$4"
# The first process of a machine: it takes in what others leave, and ends with the machine only.
while :; do sleep 3600 & wait $!; done
"""


class Vms:
    """Machines in namespaces of their own.

    Args:
        root: holds a directory for each of them, with ``log`` and what it keeps on its disk.
        subnet: private range that is free on this machine; its first address is this machine.
    """

    def __init__(self, root: Path, subnet: str) -> None:
        self._root = root
        self._subnet = subnet
        self.network = Network(root, subnet)
        self._places: dict[str, Namespace] = {}
        self._machines: dict[str, subprocess.Popen[bytes]] = {}
        self.booted_at: dict[str, float] = {}
        """Seconds since the start of the kernel at which each was started, by name."""

    @property
    def host(self) -> str:
        """This machine, as those machines see it."""
        return str(ipaddress.IPv4Network(self._subnet)[1])

    def address(self, name: str) -> str | None:
        taken = [place.name for place in self._places.values()]
        return self._places.setdefault(name, self.network.free(taken)).address

    def boot(self, machine: Machine) -> None:
        home = self._root / machine.name
        for part in ("disk", "layers"):
            (home / part).mkdir(parents=True, exist_ok=True)
        place = self._places[machine.name]
        self.network.attach(place)
        _pack(home / "files.tar", _files(machine))
        (home / "first").write_text(_first(machine))
        (home / "boot").write_text(BOOT)
        given = [str(home / name) for name in ("layers", "disk", "files.tar", "first")]
        # The machine ends with this process, however that ends, and with it everything in it.
        apart = ("setpriv", "--pdeathsig=KILL", "unshare", "--kill-child=KILL", "--fork", "--pid", "--mount-proc")
        self.booted_at[machine.name] = float(Path("/proc/uptime").read_text().split()[0])
        with (home / "log").open("ab") as log:
            self._machines[machine.name] = subprocess.Popen(
                place.entered((*apart, "bash", str(home / "boot"), *given)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        machine = self._machines.pop(name, None)
        if machine is not None:
            machine.send_signal(signal.SIGKILL)  # unshare goes, and with it the machine's first process and all others
            machine.wait(30)
            _end_groups(self._root / name / "disk")
        if (place := self._places.get(name)) is not None:
            self.network.detach(place.name)

    def running(self) -> list[str]:
        """Return the names of the running machines."""
        return sorted(self._machines)

    def log(self, name: str) -> str:
        """Return the end of a machine's output."""
        return (self._root / name / "log").read_text()[-4000:]


def _end_groups(disk: Path) -> None:
    """Remove the control groups of a machine's node, which would have gone with the machine's own kernel."""
    for kept in disk.iterdir():
        name = parent_name(tag_of(STATE / kept.name))
        for group in [*GROUPS.glob(name), *GROUPS.glob(f"*/{name}")]:
            for inner, _, _ in os.walk(group, topdown=False):
                Path(inner).rmdir()


def _files(machine: Machine) -> dict[str, tuple[bytes, int]]:
    """Return the files of the machine before it starts: content and mode by path."""
    files = {"/usr/local/sbin/systemctl": (SYSTEMCTL.encode(), 0o755)}
    if isinstance(machine, Guest):
        job = {"id": machine.id, "specification": {"name": machine.name, "labels": machine.labels}}
        files["/usr/local/bin/ucloud"] = (UCLOUD.encode(), 0o755)
        files["/etc/ucloud-job.json"] = (json.dumps(job).encode(), 0o644)
        return files
    for file in yaml.safe_load(machine.user_data)["write_files"]:
        text = file["content"]
        content = base64.b64decode(text) if file.get("encoding") == "b64" else text.encode()
        files[file["path"]] = (content, int(file["permissions"], 8))
    return files


def _pack(archive: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    with tarfile.open(archive, "w") as tar:
        for path, (content, mode) in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))


def _first(machine: Machine) -> str:
    """Return the script that the cloud's own program in the machine would run first."""
    if isinstance(machine, Guest):
        return machine.script
    words = yaml.safe_load(machine.user_data)["runcmd"]
    return "set -e\n" + "".join(" ".join(command) + "\n" for command in words)
