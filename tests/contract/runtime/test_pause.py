"""Freezing: pause and resume on every engine, checkpoint and restore where the engine has them."""

import contextlib

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.runtime.base import EngineState, RuntimeFailure
from tests.contract.runtime.lab import Lab, in_thread, read_until
from tests.contract.runtime.marks import also_on_runc

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
