"""An image, and whoever wrote it, gets nothing of the host: no device, no privilege."""

import errno
import os
import stat
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import bpf, devices
from node_agent.host.images import architecture
from tests.contract.runtime.lab import Box, Lab
from tests.contract.runtime.marks import also_on_runc
from tests.engines.images import busybox_root, import_image, load_foreign

CHARACTER, BLOCK = tarfile.CHRTYPE, tarfile.BLKTYPE
REFUSED = {
    "/planted/kvm": (CHARACTER, 10, 232),
    "/planted/loop-control": (CHARACTER, 10, 237),
    "/planted/null": (CHARACTER, 1, 3),
    "/planted/console": (CHARACTER, 5, 1),
    "/planted/loop0": (BLOCK, 7, 0),
    "/dev/kvm": (CHARACTER, 10, 232),
    "/dev/mapper/null": (CHARACTER, 1, 3),
}
USUAL = {"/dev/null": (CHARACTER, 1, 3), "/dev/console": (CHARACTER, 5, 1), "/dev/tty": (CHARACTER, 5, 0)}
HOST_DEVICES = ("/dev/loop-control", "/dev/tty0", "/dev/kmsg", "/dev/loop0")
OPEN = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        print(path, error.errno)
    else:
        print(path, 0)
"""


def _entry(path: str, kind: bytes, major: int = 0, minor: int = 0, mode: int = 0o666) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.removeprefix("/"))
    entry.type, entry.mode, entry.devmajor, entry.devminor = kind, mode, major, minor
    return entry


@also_on_runc
@pytest.mark.parametrize("path", REFUSED)
def test_image_with_a_device_node_is_refused_by_its_name(lab: Lab, client: Any, path: str) -> None:
    reference = f"sandbox-test/planted:{path.replace('/', '-').strip('-')}"
    import_image(client, reference, busybox_root(_entry(path, *REFUSED[path])), [])
    order = lab.order(image=reference)

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert failure.value.code is ErrorCode.IMAGE_ERROR
    assert failure.value.reason is DeathReason.IMAGE_ERROR
    assert path in failure.value.message
    assert lab.found(order.sandbox_id) is None


@also_on_runc
def test_image_cannot_give_a_number_to_root_as_its_name(lab: Lab, client: Any) -> None:
    """Whoever may not be root is 1000 by default, and Docker looks for that name first."""
    layer = busybox_root(more_users="1000:x:0:0:root too:/root:/bin/sh\n")
    import_image(client, "sandbox-test/renamed:1", layer, [])

    with pytest.raises(RuntimeFailure) as failure:
        lab.create(image="sandbox-test/renamed:1")

    assert failure.value.code is ErrorCode.START_ERROR
    assert "1000 is a number, and also a name" in failure.value.message


@also_on_runc
def test_image_of_another_platform_is_refused_naming_both(lab: Lab, client: Any) -> None:
    other = "s390x" if os.uname().machine != "s390x" else "amd64"
    load_foreign(client, "sandbox-test/foreign:1", other)
    order = lab.order(image="sandbox-test/foreign:1")

    with pytest.raises(RuntimeFailure) as failure:
        lab.runtime.create(order)

    assert (failure.value.code, failure.value.reason) == (ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)
    assert f"linux/{other}" in failure.value.message
    assert f"linux/{architecture(os.uname().machine)}" in failure.value.message
    assert lab.found(order.sandbox_id) is None


@also_on_runc
def test_nodes_that_every_dev_hides_are_no_reason_to_refuse_an_image(lab: Lab, client: Any) -> None:
    entries = [_entry("/dev", tarfile.DIRTYPE, mode=0o755), *(_entry(path, *what) for path, what in USUAL.items())]
    import_image(client, "sandbox-test/usual:1", busybox_root(*entries), [])

    with lab.sandbox(image="sandbox-test/usual:1") as box:
        assert box.text("echo gone >/dev/null; echo up") == "up"
        assert _opened(box, "/dev/kvm") == []


def test_device_nodes_that_come_later_open_nothing_either(lab: Lab, client: Any) -> None:
    with lab.sandbox() as box:
        root = _root(lab, box, client)
        (root / "planted").mkdir()
        for name, kind, major, minor in (
            ("null", stat.S_IFCHR, 1, 3),  # the devices controller lets it pass: the mount alone refuses it
            ("kvm", stat.S_IFCHR, 10, 232),
            ("hwrng", stat.S_IFCHR, 10, 183),
            ("loop0", stat.S_IFBLK, 7, 0),
        ):
            os.mknod(root / "planted" / name, kind | 0o666, os.makedev(major, minor))
            (root / "planted" / name).chmod(0o666)

        assert box.text("ls /planted") == "hwrng\nkvm\nloop0\nnull"
        assert _opened(box, *(f"/planted/{name}" for name in ("null", "kvm", "hwrng", "loop0"))) == []


@also_on_runc
def test_whatever_a_sandbox_writes_is_mounted_without_devices_and_setuid(lab: Lab, client: Any) -> None:
    with lab.sandbox() as box:
        places = [_volume(lab, box)]
        if lab.fields["isolation"] == "gvisor":
            places.append(_root(lab, box, client))
        flags = [os.statvfs(place).f_flag for place in places]

    assert [flag & (os.ST_NODEV | os.ST_NOSUID) for flag in flags] == [os.ST_NODEV | os.ST_NOSUID] * len(places)


@also_on_runc
def test_processes_of_a_sandbox_may_open_only_what_an_engine_needs(lab: Lab, client: Any) -> None:
    with lab.sandbox() as box:
        group = box.host_group(client).directory("devices")
        paths = [
            path for path in ("/dev/null", "/dev/urandom", "/dev/loop-control", "/dev/tty0") if Path(path).exists()
        ]
        tried = _open_within(group, paths)

    assert tried == {path: 0 if path in ("/dev/null", "/dev/urandom") else 1 for path in paths}


@also_on_runc
def test_setuid_program_of_an_image_grants_nothing_unless_it_was_asked_for(lab: Lab, client: Any) -> None:
    entries = _entry("/planted", tarfile.DIRTYPE, mode=0o755), _entry("/planted/su", tarfile.REGTYPE, mode=0o4755)
    import_image(client, "sandbox-test/setuid:1", busybox_root(*entries), [])

    with lab.sandbox(image="sandbox-test/setuid:1") as box:
        tried = box.run("/planted/su", "-c", "id")

    assert tried.code != 0
    assert b"must be suid" in tried.stderr
    if lab.fields["isolation"] == "gvisor":  # which never lets them: the spec is refused
        with pytest.raises(ValidationError):
            lab.spec(security={"no_new_privileges": False})
        return
    wanted = {"no_new_privileges": False, "cap_add": ["SETUID", "SETGID"]}
    with lab.sandbox(image="sandbox-test/setuid:1", security=wanted) as box:
        assert box.text("/planted/su -c 'id -u'") == "0"


def test_groups_of_version_2_take_the_same_rules_as_a_program(engines: None) -> None:
    mounted = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    root = next((Path(fields[1]) for fields in mounted if fields[2] == "cgroup2"), None)
    if root is None:
        pytest.skip("no cgroup2 is mounted here")
    group = root / f"sandbox-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        bpf.attach(group, devices.DOCKER_RULES)
        bpf.attach(group, devices.ENGINE_RULES)
        programs = bpf.attached(group)
        paths = [path for path in ("/dev/null", "/dev/ptmx", *HOST_DEVICES) if Path(path).exists()]
        tried = _open_within(group, paths)
    finally:
        group.rmdir()

    assert len(programs) == 1
    assert tried == {path: errno.EPERM if path in HOST_DEVICES else 0 for path in paths}


def _opened(box: Box, *paths: str) -> list[str]:
    """Return which of these files can be opened inside."""
    script = "for path; do if (: <$path) 2>/dev/null; then echo $path; fi; done"
    return box.run("sh", "-c", script, "sh", *paths).stdout.decode().split()


def _root(lab: Lab, box: Box, client: Any) -> Path:
    """Return the sandbox's root as the host has it."""
    if lab.fields["runtime"] == "runsc":
        return lab.root / "runsc" / "sandboxes" / box.id / "rootfs"
    inspected = client.inspect_container(box.container(client))
    return Path(inspected["GraphDriver"]["Data"]["MergedDir"])


def _volume(lab: Lab, box: Box) -> Path:
    return lab.root / lab.fields["runtime"] / "sandboxes" / box.id / "volume"


def _open_within(group: Path, paths: list[str]) -> dict[str, int]:
    """Try to open files as root of the host, in a process of that group; return the error number for each."""
    argv = [sys.executable, "-c", OPEN, str(group / "cgroup.procs"), *paths]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return {path: int(number) for path, number in (line.split() for line in done.stdout.splitlines())}
