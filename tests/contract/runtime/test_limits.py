"""Limits that bite: memory, processes, disk, and what they leave alone."""

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.states import DeathReason
from node_agent.runtime.base import EngineState
from tests.contract.runtime.lab import UNTIL_GO, Lab, in_thread, read_all, read_until
from tests.contract.runtime.marks import also_on_runc
from tests.engines.dockerd import Daemon

MIB = 1024 * 1024
_IN_MEMORY = ("/tmp", "/dev/shm")
# Doubles a string: 32 bytes become more than any limit here in two dozen steps.
MEMORY_HOG = "x=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; while :; do x=$x$x; done"


def on_disk(*directories: Path) -> int:
    """Return the bytes of the host's disk that lie there; what is mounted below does not count."""
    command = ["du", "--summarize", "--block-size=1", "--one-file-system", *map(str, directories)]
    # Files of engines come and go while it looks.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return sum(int(line.split()[0]) for line in done.stdout.splitlines())


@also_on_runc
def test_memory_hog_dies_of_oom(lab: Lab) -> None:
    with lab.sandbox(command=["sh", "-c", f"{UNTIL_GO}; {MEMORY_HOG}"], memory_mb=64) as box:
        ending = in_thread(lab.runtime.wait, box.id)
        box.go()
        death = ending.result()
        found = lab.found(box.id)

    assert death.reason is DeathReason.OOM
    assert found is not None
    assert found.state is EngineState.DEAD
    assert found.death is not None
    assert found.death.reason is DeathReason.OOM


@also_on_runc
def test_fork_bomb_is_held_and_the_sandbox_lives(lab: Lab) -> None:
    with lab.sandbox(security={"pids_limit": 40}) as box:
        bomb = "n=0; while [ $n -lt 500 ]; do sleep 77100 & n=$((n+1)); done; echo all made"
        with contextlib.closing(box.exec("sh", "-c", f"sh -c '{bomb}'; echo over; cat", stdin=True)) as process:
            seen = read_until(process, b"over")
            process.kill()
            read_all(process)

        assert b"all made" not in seen
        assert box.text("echo usable") == "usable"
        assert lab.found(box.id).state is EngineState.RUNNING  # type: ignore[union-attr]


def test_host_threads_of_a_gvisor_sandbox_are_bounded(lab: Lab, client: Any) -> None:
    with lab.sandbox(security={"pids_limit": 200}, memory_mb=512) as box:
        group = box.host_group(client)
        script = "n=0; while [ $n -lt 500 ]; do sleep 77100 & n=$((n+1)); done; echo all made"
        with contextlib.closing(box.exec("sh", "-c", f"sh -c '{script}'; echo over; cat", stdin=True)) as process:
            seen = read_until(process, b"over")
            taken, bound = (group.number("pids", name) for name in ("pids.current", "pids.max"))
            process.kill()
            read_all(process)

        assert b"all made" not in seen
        assert 200 < taken < bound <= 1500
        assert box.text("echo usable") == "usable"


@also_on_runc
def test_sandboxes_compete_for_a_busy_processor_by_their_cores(lab: Lab, client: Any) -> None:
    with lab.sandbox(cpus=1.5) as box:
        group = box.host_group(client)
        if group.is_v2:
            assert group.number("cpu", "cpu.weight") == 1 + (1536 - 2) * 9999 // 262142
        else:
            assert group.number("cpu", "cpu.shares") == 1536


@also_on_runc
@pytest.mark.parametrize("place", ["/workspace/big", "/var/big"])
def test_full_disk_is_enospc_inside_and_nothing_outside(lab: Lab, docker_daemon: Daemon, place: str) -> None:
    with lab.sandbox(disk_mb=32, security={"user": "0"}) as box:
        before = on_disk(lab.root, docker_daemon.directory)
        filled = box.sh(f"mkdir -p /var; dd if=/dev/zero of={place} bs=1M count=200")
        after = on_disk(lab.root, docker_daemon.directory)

        assert filled.code != 0
        assert b"No space left on device" in filled.stderr
        assert after - before < MIB
        assert box.text("echo alive") == "alive"
        box.text(f"rm {place}; echo fits >{place}")


@also_on_runc
def test_disk_inside_has_the_size_that_was_asked_for(lab: Lab) -> None:
    with lab.sandbox(disk_mb=100) as box:
        size = int(box.text("df -k /workspace | tail -n 1 | tr -s ' '").split()[1])

    assert 80 * 1024 <= size <= 100 * 1024


@also_on_runc
def test_tmp_and_shm_are_memory_of_the_size_that_was_asked_for(lab: Lab) -> None:
    with lab.sandbox(filesystem={"tmpfs_mb": 4, "shm_mb": 5}) as box:
        filled = [box.sh(f"dd if=/dev/zero of={place}/big bs=1M count=20; wc -c <{place}/big") for place in _IN_MEMORY]

    assert all(b"No space left on device" in result.stderr for result in filled)
    assert [int(result.stdout) for result in filled] == [4 * MIB, 5 * MIB]


@also_on_runc
def test_read_only_root_leaves_workspace_and_tmp_writable(lab: Lab) -> None:
    with lab.sandbox(security={"read_only_rootfs": True, "user": "0"}) as box:
        assert box.sh("echo x >/data/readme").code != 0
        assert box.text("echo a >/workspace/a; echo b >/tmp/b; cat /workspace/a /tmp/b") == "a\nb"


@also_on_runc
def test_root_file_system_is_writable_and_private(lab: Lab) -> None:
    with lab.sandbox(security={"user": "0"}) as one, lab.sandbox() as other:
        one.text("echo changed >/data/readme")

        assert one.text("cat /data/readme") == "changed"
        assert other.text("cat /data/readme") == "from the image"


@also_on_runc
def test_workspace_is_the_users(lab: Lab) -> None:
    with lab.sandbox(filesystem={"workspace_path": "/home/agent/work"}, security={"user": "agent"}) as box:
        assert box.text("pwd; echo mine >file; cat file") == "/home/agent/work\nmine"
