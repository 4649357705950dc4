"""What a sandbox writes into the pipes of the agent's own helpers: it may spoil its own answers and nothing else."""

import asyncio
import contextlib
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.files.transfer import SandboxFile, Transfers
from tests.contract.runtime.lab import Box, Lab, read_until
from tests.contract.runtime.marks import docker_only, runsc_only

# The next process of the sandbox is the agent's helper: stop it before it answers, and write in its stead.
FORGER = """
n=$(($$ + 1)); echo ready
while [ ! -e /proc/$n/fd/1 ]; do :; done
kill -STOP $n; sleep 0.2
%s
"""
FLOOD = "cat /dev/zero >/proc/$n/fd/1"
MAX_GROWTH_MB = 64


def peak_mb() -> float:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def download(box: Box, path: str) -> tuple[int, bytes]:
    """Download a file as the agent does."""

    async def run() -> tuple[int, bytes]:
        with ThreadPoolExecutor(4) as executor:
            target = SandboxFile(box.lab.runtime, box.id, path)
            async with Transfers(executor).download(target) as file:
                return file.size, b"".join([piece async for piece in file.pieces()])

    return asyncio.run(asyncio.wait_for(run(), 60))


@runsc_only
@pytest.mark.parametrize("forged", [FLOOD, "echo -5 >/proc/$n/fd/1"])
def test_a_forged_answer_of_a_download_is_refused_in_bounded_memory(lab: Lab, forged: str) -> None:
    with lab.sandbox() as box:
        box.text("echo content >/workspace/file")
        before = peak_mb()
        forger = box.exec("sh", "-c", FORGER % forged)
        read_until(forger, b"ready\n")
        with pytest.raises(NodeError) as refused:
            download(box, "/workspace/file")
        forger.close()

    assert refused.value.code is ErrorCode.TRANSFER_INTERRUPTED
    assert peak_mb() - before < MAX_GROWTH_MB


@runsc_only
def test_a_process_is_killed_whatever_its_neighbours_environments_hold(lab: Lab) -> None:
    with lab.sandbox(memory_mb=1024) as box:
        big = box.exec(
            "sh",
            "-c",
            "v=$(printf %0120000d 0); for i in 1 2 3 4 5 6 7 8; do export V$i=$v; done;"
            " for i in $(seq 40); do sleep 99 & done; echo ready; wait",
        )
        read_until(big, b"ready\n")
        before = peak_mb()
        with contextlib.closing(box.exec("sleep", "99")) as victim:
            victim.kill()
            assert victim.wait().signal == 9
        with contextlib.closing(big):
            big.kill()
            assert big.wait().signal == 9

    assert peak_mb() - before < MAX_GROWTH_MB


@docker_only
def test_a_forged_end_spoils_only_the_exec_that_it_forges(lab: Lab) -> None:
    forge = r"""
    for shell in /proc/[0-9]*; do
      grep -q 'EXEC_OF[_]THE_TEST' $shell/cmdline || continue
      prefix=$(tr '\0' '\n' <$shell/cmdline | grep -x '[0-9a-f]\{32\}') || continue
      for fd in 1 4; do printf '\036%sE99999999999999999999;' $prefix >$shell/fd/$fd; done
    done
    """
    with (
        lab.sandbox() as box,
        contextlib.closing(box.exec("sh", "-c", "echo on; sleep 30; : EXEC_OF_THE_TEST")) as held,
    ):
        read_until(held, b"on\n")
        with contextlib.closing(box.exec("sh", "-c", forge)):
            assert held.read() is None
            with pytest.raises(RuntimeFailure) as forged:
                held.wait()
        assert box.text("echo well") == "well"

    assert forged.value.code is ErrorCode.EXEC_LOST
