"""Freezing: pause and resume on every engine, checkpoint and restore where the engine has them."""

import contextlib
import time
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.cgroup import Cgroup
from node_agent.runtime.base import EngineState, Order
from node_agent.runtime.runsc.control import Control
from tests.contract.runtime.lab import UNTIL_GO, Lab, in_thread, read_all, read_until
from tests.contract.runtime.marks import also_on_runc, runsc_only

# Answers each line of input; while it is frozen, no answer comes.
ECHO = "while read line; do echo answer $line; done"
COUNT = "n=0; while :; do n=$((n+1)); echo $n >/workspace/count; done"
# The file is not there at first, and empty for the moment between its truncation and the next number.
READ_COUNT = 'while :; do n=$(cat /workspace/count 2>/dev/null); [ -n "$n" ] && break; done; echo $n'


@also_on_runc
def test_pause_freezes_and_resume_goes_on(lab: Lab) -> None:
    with lab.sandbox() as box, contextlib.closing(box.exec("sh", "-c", ECHO, stdin=True)) as process:
        process.write(b"one\n")
        read_until(process, b"answer one\n")

        lab.runtime.pause(box.id)
        assert lab.found(box.id).state is EngineState.PAUSED  # type: ignore[union-attr]
        process.write(b"two\n")
        reading = in_thread(read_until, process, b"answer two\n")
        # Everything that this second sandbox does takes its time; the frozen one would have answered meanwhile.
        with lab.sandbox() as other:
            other.text("true")
        assert not reading.done()

        lab.runtime.resume(box.id)
        assert reading.result() == b"answer two\n"
        assert lab.found(box.id).state is EngineState.RUNNING  # type: ignore[union-attr]


@also_on_runc
def test_pause_and_resume_are_idempotent(lab: Lab) -> None:
    with lab.sandbox() as box:
        lab.runtime.resume(box.id)
        lab.runtime.pause(box.id)
        lab.runtime.pause(box.id)
        lab.runtime.resume(box.id)
        lab.runtime.resume(box.id)

        assert box.text("echo up") == "up"


@also_on_runc
def test_delete_of_a_paused_sandbox(lab: Lab) -> None:
    box = lab.create()
    lab.runtime.pause(box.id)

    lab.runtime.delete(box.id)

    assert lab.found(box.id) is None


def test_exec_in_a_paused_sandbox_is_refused(lab: Lab) -> None:
    with lab.sandbox() as box:
        lab.runtime.pause(box.id)

        with pytest.raises(RuntimeFailure) as failure:
            box.exec("true")

        assert failure.value.code is ErrorCode.SANDBOX_NOT_RUNNING


def test_usage_of_a_paused_sandbox_is_known(lab: Lab) -> None:
    with lab.sandbox() as box:
        lab.runtime.pause(box.id)

        assert lab.runtime.usage(box.id).pids >= 1
        assert lab.found(box.id).state is EngineState.PAUSED  # type: ignore[union-attr]


def test_next_generation_of_a_paused_sandbox_runs(lab: Lab) -> None:
    with lab.sandbox() as box:
        lab.runtime.pause(box.id)
        order = box.order

        lab.runtime.create(Order(order.sandbox_id, 2, "op-2", order.spec, order.spec_hash))

        assert box.text("echo up") == "up"


@runsc_only
def test_paused_sandbox_takes_no_processor_time(lab: Lab) -> None:
    with lab.sandbox() as box:
        group = Cgroup(lab.tag, box.id)
        running = _cpu_seconds_of(group)
        lab.runtime.pause(box.id)
        paused = _cpu_seconds_of(group)
        lab.runtime.resume(box.id)

        assert running > 0
        assert paused < running / 20
        assert box.text("echo up") == "up"


def _cpu_seconds_of(group: Cgroup) -> float:
    """Measure what a group takes in two seconds, after the moments in which a pause still comes to its end."""
    time.sleep(0.2)
    before = group.cpu_seconds()
    time.sleep(2)
    return group.cpu_seconds() - before


@runsc_only
def test_kill_of_an_exec_in_a_paused_sandbox_holds_once_it_goes_on(lab: Lab) -> None:
    with lab.sandbox() as box, contextlib.closing(box.exec("sh", "-c", "echo ready; sleep 77400")) as process:
        read_until(process, b"ready\n")
        lab.runtime.pause(box.id)
        process.kill()
        assert Cgroup(lab.tag, box.id).frozen()

        lab.runtime.resume(box.id)

        assert read_all(process) == (b"", b"")
        assert process.wait().signal == 9


@runsc_only
def test_restarted_agent_finds_a_paused_sandbox_and_lets_it_go_on(lab: Lab) -> None:
    with lab.sandbox(command=["sh", "-c", f"{UNTIL_GO}; exit 7"]) as box:
        lab.runtime.pause(box.id)
        restarted = lab.reopen()

        assert lab.found(box.id, restarted).state is EngineState.PAUSED  # type: ignore[union-attr]
        assert Cgroup(lab.tag, box.id).frozen()
        restarted.sweep()
        ending = in_thread(restarted.wait, box.id)
        restarted.resume(box.id)
        box.go()
        assert ending.result().exit_code == 7


@runsc_only
@pytest.mark.parametrize(
    ("stopped", "frozen"), [(True, True), (True, False), (False, False)], ids=["frozen", "stopped", "only begun"]
)
def test_agent_that_died_in_the_middle_of_a_pause(lab: Lab, stopped: bool, frozen: bool) -> None:
    """The mark of the begin is on disk, the end is not: what the kernel and the sandbox say is the truth."""
    with lab.sandbox() as box:
        group = Cgroup(lab.tag, box.id)
        record = next(lab.root.rglob(f"{box.id}/record.json"))
        (record.parent / "settling").touch()
        if stopped:
            Control(Path(f"/run/sandbox-{lab.tag}/runsc-{box.id}.sock"), box.id).pause()
            if frozen:
                group.freeze()
        restarted = lab.reopen()

        found = lab.found(box.id, restarted)
        assert found is not None
        assert found.state is (EngineState.PAUSED if stopped else EngineState.RUNNING)
        assert group.frozen() is stopped
        restarted.resume(box.id)
        assert box.text("echo up") == "up"


def test_checkpoint_and_restore_or_a_clear_refusal(lab: Lab) -> None:
    facts = lab.runtime.probe()
    with lab.sandbox(command=["sh", "-c", COUNT]) as box:
        if not facts.checkpoint:
            for call in (lab.runtime.checkpoint, lab.runtime.restore):
                with pytest.raises(RuntimeFailure) as failure:
                    call(box.id)
                assert failure.value.code is ErrorCode.UNSUPPORTED
            return
        before = int(box.text(READ_COUNT))
        lab.runtime.checkpoint(box.id)
        assert lab.found(box.id).state is EngineState.CHECKPOINTED  # type: ignore[union-attr]

        lab.runtime.restore(box.id)

        assert lab.found(box.id).state is EngineState.RUNNING  # type: ignore[union-attr]
        assert int(box.text(READ_COUNT)) >= before


def test_checkpoint_is_refused_while_an_exec_runs(lab: Lab) -> None:
    if not lab.runtime.probe().checkpoint:
        pytest.skip("this engine has no checkpoint; the test above shows that it says so")
    with lab.sandbox() as box, contextlib.closing(box.exec("cat", stdin=True)) as process:
        with pytest.raises(RuntimeFailure) as failure:
            lab.runtime.checkpoint(box.id)
        assert failure.value.code is ErrorCode.CONFLICT
        process.kill()
