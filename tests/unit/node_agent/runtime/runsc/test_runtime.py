"""What only the runsc runtime promises, on the real gVisor."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.runtime.base import EngineState, ExecCommand, Exit, Order, Stream
from node_agent.runtime.runsc.runtime import RunscRuntime
from tests.engines import leftovers
from tests.engines.dockerd import Daemon
from tests.engines.images import TestImages

pytestmark = pytest.mark.engine


@dataclasses.dataclass
class Bench:
    """A runtime and what a test does with it."""

    runtime: RunscRuntime
    images: TestImages
    root: Path
    tag: str

    def order(self, name: str, generation: int = 1, **fields: Any) -> Order:
        base = {"id": name, "image": self.images.busybox, "command": ["sleep", "86400"], "disk_mb": 32, "memory_mb": 64}
        spec = SandboxSpec.model_validate(base | fields)
        return Order(name, generation, "op", spec, spec.sha256())

    def run(self, name: str, script: str, user: str | None = None) -> tuple[Exit, bytes]:
        command = ExecCommand(("/.sandbox/busybox", "sh", "-c", script), user=user)
        with contextlib.closing(self.runtime.exec(name, command)) as process:
            parts = []
            while (chunk := process.read()) is not None:
                parts.append(chunk.data)
            return process.wait(), b"".join(parts)


@pytest.fixture(scope="module")
def bench(docker_daemon: Daemon, test_images: TestImages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("node")
    tag = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    runtime = RunscRuntime(root, tag=tag, base_url=docker_daemon.url)
    yield Bench(runtime, test_images, root, tag)
    for found in runtime.found():
        runtime.delete(found.order.sandbox_id)
    runtime.close()
    assert leftovers.of_node(root, tag) == []


@pytest.fixture
def box(bench: Bench) -> Iterator[str]:
    bench.runtime.create(bench.order("box"))
    yield "box"
    bench.runtime.delete("box")


def test_truncating_open_inside_leaves_the_shared_programs_whole(bench: Bench, box: str) -> None:
    ended, output = bench.run(box, "echo x >/.sandbox/busybox", user="0")

    assert ended.code != 0
    assert b"Read-only" in output
    assert bench.run(box, "echo works") == (Exit(0), b"works\n")


def test_orphans_are_reaped(bench: Bench, box: str) -> None:
    for _ in range(5):
        bench.run(box, "sleep 0.01 & exit 0")

    # What is left are the init and the first process.  A zombie would stay for ever, and the test run out of time.
    while bench.runtime.usage(box).pids > 2:
        bench.run(box, "sleep 0.1")


def test_cores_and_memory_inside_are_the_sandboxs(bench: Bench, box: str) -> None:
    _, seen = bench.run(box, "head -n 1 /proc/meminfo; ulimit -u")

    assert seen.decode().split() == ["MemTotal:", "65536", "kB", "256"]


def test_first_process_that_fails_on_a_full_disk_dies_of_it(bench: Bench) -> None:
    command = ["sh", "-c", "dd if=/dev/zero of=/workspace/big bs=1M || exit 4"]
    bench.runtime.create(bench.order("full", command=command))

    death = bench.runtime.wait("full")

    assert (death.reason, death.exit_code) == (DeathReason.DISK_FULL, 4)
    assert b"No space left" in bench.runtime.logs("full", Stream.STDERR, 0, 1000).data


def test_checkpointed_sandbox_holds_no_memory_and_comes_back(bench: Bench, box: str) -> None:
    bench.run(box, "echo kept >/tmp/memory; echo kept >/workspace/file")

    bench.runtime.checkpoint(box)
    bench.runtime.checkpoint(box)
    frozen = bench.runtime.usage(box)
    with pytest.raises(RuntimeFailure) as failure:
        bench.run(box, "true")
    bench.runtime.restore(box)

    assert (frozen.memory_mb, frozen.pids) == (0, 0)
    assert failure.value.code is ErrorCode.SANDBOX_NOT_RUNNING
    assert bench.run(box, "cat /tmp/memory /workspace/file") == (Exit(0), b"kept\nkept\n")


def test_networked_sandbox_keeps_its_address_over_a_restore(bench: Bench) -> None:
    bench.runtime.create(bench.order("net", network="bridge"))
    before = bench.run("net", "ip -4 -o address show eth0; ip route | grep default; cat /etc/resolv.conf")

    bench.runtime.checkpoint("net")
    bench.runtime.restore("net")

    assert b"10.213." in before[1]
    assert bench.run("net", "ip -4 -o address show eth0; ip route | grep default; cat /etc/resolv.conf") == before


def test_sandbox_whose_kernel_is_killed_is_dead_and_leaves_its_workspace(bench: Bench) -> None:
    bench.runtime.create(bench.order("killed"))
    bench.run("killed", "echo kept >/workspace/file")
    bench.runtime._node.of("killed").cgroup.kill()

    assert bench.runtime.wait("killed").reason is DeathReason.EVICTED
    assert bench.runtime.create(bench.order("killed", generation=2)).state is EngineState.RUNNING
    assert bench.run("killed", "cat /workspace/file") == (Exit(0), b"kept\n")


def test_half_made_sandbox_is_found_and_made_again(bench: Bench) -> None:
    order = bench.order("half")
    bench.runtime.create(order)
    records = bench.runtime._records
    record = records.load("half")
    assert record is not None
    records.save(record.but(state=EngineState.CREATING))  # as a crash during the start leaves it

    states = {found.order.sandbox_id: found.state for found in bench.runtime.found()}

    assert states["half"] is EngineState.CREATING
    assert bench.runtime.create(order).state is EngineState.RUNNING


def test_delete_that_a_crash_cut_short_is_finished_by_the_sweep(bench: Bench) -> None:
    bench.runtime.create(bench.order("doomed", network="bridge"))
    paths = bench.runtime._node.of("doomed")
    bench.runtime._records.mark_deleting("doomed")

    assert "doomed" not in {found.order.sandbox_id for found in bench.runtime.found()}
    bench.runtime.sweep()

    assert not paths.directory.exists()
    assert paths.cgroup.pids() == set()


@pytest.mark.parametrize(("frozen", "state"), [(True, EngineState.PAUSED), (False, EngineState.RUNNING)])
def test_pause_that_a_crash_cut_short_is_settled_by_asking(
    bench: Bench, box: str, docker_daemon: Daemon, frozen: bool, state: EngineState
) -> None:
    paths = bench.runtime._node.of(box)
    paths.settling.touch()
    if frozen:
        paths.control.pause()
    restarted = RunscRuntime(bench.root, tag=bench.tag, base_url=docker_daemon.url)

    with contextlib.closing(restarted):
        assert {found.order.sandbox_id: found.state for found in restarted.found()}[box] is state
        restarted.resume(box)

    assert bench.run(box, "echo goes on") == (Exit(0), b"goes on\n")


@pytest.fixture
def command_line(bench: Bench) -> Iterator[Bench]:
    """Use the runtime as it is where the control socket failed its test."""
    probed = bench.runtime._engine()
    bench.runtime._probed = dataclasses.replace(probed, runsc=dataclasses.replace(probed.runsc, socket=False))
    yield bench
    bench.runtime._probed = probed


def test_command_line_takes_the_sockets_place(command_line: Bench, box: str) -> None:
    assert command_line.run(box, "echo hi; exit 3") == (Exit(3), b"hi\n")
    assert command_line.run(box, "kill -9 $$")[0] == Exit(137, 9)
    command_line.runtime.pause(box)
    command_line.runtime.resume(box)
    assert command_line.run(box, "id -u", user="0") == (Exit(0), b"0\n")


def test_command_line_kills_the_group(command_line: Bench, box: str) -> None:
    command = ExecCommand(("/.sandbox/busybox", "sh", "-c", "sleep 7700 & echo ready; sleep 7701"))
    with contextlib.closing(command_line.runtime.exec(box, command)) as process:
        assert process.read() is not None
        process.kill()
        assert process.wait() == Exit(137, 9)
    assert command_line.run(box, "ps -o args | grep -c '[s]leep 770'")[1] == b"0\n"


def test_command_line_cannot_tell_whether_execs_run(command_line: Bench, box: str) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        command_line.runtime.checkpoint(box)

    assert failure.value.code is ErrorCode.UNSUPPORTED
