"""A volume that the host's disk has lost: the sandbox can be deleted, and the node goes on with the others."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MIB
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.volume import Volume
from node_agent.runtime.base import EngineState, Stream
from tests.contract.runtime.lab import Box, Lab, in_thread
from tests.contract.runtime.marks import runsc_only


def volume_of(box: Box) -> Volume:
    return Volume(next(box.lab.root.rglob(f"sandboxes/{box.id}")))


def damage(box: Box) -> Volume:
    """Take a sandbox's blocks away below its running file system: whatever it reads or writes fails from here on."""
    volume = volume_of(box)
    os.truncate(volume.image, 0)
    Path("/proc/sys/vm/drop_caches").write_text("1")
    with contextlib.suppress(RuntimeFailure):
        box.sh("cd /workspace; for n in 1 2 3 4; do mkdir $n; head -c 300000 /dev/zero >$n/file; done; sync")
    with contextlib.suppress(OSError):
        (volume.path / "workspace" / "more").write_bytes(bytes(MIB))
    return volume


@pytest.fixture
def two(lab: Lab) -> Iterator[tuple[Box, Box]]:
    with lab.sandbox() as one, lab.sandbox() as other:
        yield one, other


def gone(box: Box, volume: Volume) -> bool:
    devices = [device for device, file in mounts.loop_devices() if file == volume.image]
    return box.lab.found(box.id) is None and not volume.directory.exists() and not devices


def test_a_sandbox_is_deleted_over_a_damaged_volume(two: tuple[Box, Box]) -> None:
    broken, whole = two
    volume = damage(broken)

    broken.lab.runtime.delete(broken.id)

    assert gone(broken, volume)
    assert whole.text("echo usable") == "usable"


def test_a_sandbox_ends_for_the_reason_that_it_is_given(two: tuple[Box, Box]) -> None:
    broken, whole = two
    damage(broken)
    ending = in_thread(broken.lab.runtime.wait, broken.id)

    broken.lab.runtime.fail(broken.id, DeathReason.DISK_FULL, "the disk refused a write")

    assert (ending.result(30).reason, ending.result().detail) == (DeathReason.DISK_FULL, "the disk refused a write")
    found = broken.lab.found(broken.id, broken.lab.reopen())
    assert found is not None
    assert found.death is not None
    assert (found.state, found.death.reason) == (EngineState.DEAD, DeathReason.DISK_FULL)
    broken.lab.runtime.fail(broken.id, DeathReason.EVICTED, "again")
    assert broken.lab.found(broken.id).death.reason is DeathReason.DISK_FULL  # type: ignore[union-attr]
    assert whole.text("echo usable") == "usable"


def test_a_restarted_agent_goes_on_beside_a_damaged_volume(two: tuple[Box, Box]) -> None:
    broken, whole = two
    volume = damage(broken)

    again = broken.lab.reopen()
    states = {found.order.sandbox_id: found.state for found in again.found()}
    again.sweep()

    assert states[whole.id] is EngineState.RUNNING
    assert broken.id in states
    again.delete(broken.id)
    assert gone(broken, volume)
    assert whole.text("echo usable") == "usable"


@runsc_only
def test_a_volume_that_cannot_be_mounted_any_more(lab: Lab) -> None:
    with lab.sandbox() as box:
        box.lab.runtime.fail(box.id, DeathReason.EVICTED, "by the test")
        volume = volume_of(box)
        volume.unmount()
        size = volume.image.stat().st_size
        # Another file: elsewhere on the host somebody may still hold the mount of this one.
        volume.image.unlink()
        with volume.image.open("wb") as file:
            file.truncate(size)

        with pytest.raises(RuntimeFailure) as caught:
            box.lab.runtime.logs(box.id, Stream.STDOUT, 0, 100)
        assert caught.value.code in {ErrorCode.DISK_FULL, ErrorCode.INTERNAL}
        again = box.lab.reopen()
        assert [found.state for found in again.found() if found.order.sandbox_id == box.id] == [EngineState.DEAD]
        again.sweep()
        again.delete(box.id)
        assert gone(box, volume)
