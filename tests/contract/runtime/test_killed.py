"""A process of the engine that somebody kills on the host: noticed, reported with its reason, and nothing is left."""

import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.cgroup import Cgroup
from node_agent.host.process import readable
from node_agent.runtime.base import EngineState
from node_agent.runtime.runsc.control import ControlLostError
from node_agent.runtime.runsc.paths import RunscPaths, SandboxPaths
from tests.contract.runtime.lab import UNTIL_GO, Box, Lab, in_thread, read_all, read_until
from tests.contract.runtime.marks import runsc_only


@runsc_only
@pytest.mark.parametrize("name", ["runsc-sandbox", "runsc-gofer"])
def test_killed_process_of_the_engine_ends_the_sandbox(lab: Lab, name: str) -> None:
    with lab.sandbox(network="bridge") as box:
        process = box.exec("sh", "-c", "echo ready; sleep 77500")
        read_until(process, b"ready\n")
        ending = in_thread(lab.runtime.wait, box.id)

        _kill(box, name)

        death = ending.result()
        assert (death.reason, lab.found(box.id).state) == (DeathReason.EVICTED, EngineState.DEAD)  # type: ignore[union-attr]
        read_all(process)
        process.close()
        _nothing_runs(lab, box)


@runsc_only
def test_crash_of_the_engine_is_told_from_a_kill_and_its_log_is_kept(lab: Lab) -> None:
    with lab.sandbox() as crashed, lab.sandbox() as killed:
        logs = lab.root / "engine-logs"
        kept = set(logs.glob("*"))
        with contextlib.suppress(ControlLostError):
            RunscPaths(lab.root, lab.tag).of(crashed.id).control.resume()  # gVisor panics: nothing is paused
        _kill(killed, "runsc-sandbox")

        crash, kill = lab.runtime.wait(crashed.id), lab.runtime.wait(killed.id)

        assert (crash.reason, kill.reason) == (DeathReason.EVICTED, DeathReason.EVICTED)
        assert "panic: Invalid stopCount" in crash.detail
        assert "signal 9" in kill.detail
        (log,) = set(logs.glob("*")) - kept
        assert log.name in crash.detail
        assert b"EndExternalStop" in log.read_bytes()
    assert log.exists()


@runsc_only
def test_first_process_that_is_killed_from_inside_is_no_eviction(lab: Lab) -> None:
    """The process that serves its files ends at the same time, by itself."""
    for _ in range(5):
        with lab.sandbox(security={"user": "0:0"}) as box:
            ending = in_thread(lab.runtime.wait, box.id)
            with contextlib.suppress(RuntimeFailure):
                box.sh("kill -9 1")

            death = ending.result()
            assert (death.reason, death.exit_code) == (DeathReason.EXITED, 137)


@runsc_only
def test_paused_sandbox_that_is_killed_is_dead_when_it_is_to_go_on(lab: Lab) -> None:
    """With cgroup v1 a frozen process dies only once it is let go."""
    with lab.sandbox() as box:
        lab.runtime.pause(box.id)
        ending = in_thread(lab.runtime.wait, box.id)
        _kill(box, "runsc-sandbox")

        with pytest.raises(RuntimeFailure) as failure:
            lab.runtime.resume(box.id)

        assert failure.value.code is ErrorCode.SANDBOX_NOT_RUNNING
        assert ending.result().reason is DeathReason.EVICTED
        _nothing_runs(lab, box)


@runsc_only
def test_death_is_told_only_once_every_process_has_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another call that ends meanwhile wakes whoever waits for the death."""
    burying, go_on, kill = threading.Event(), threading.Event(), SandboxPaths.kill

    def held_up(paths: SandboxPaths) -> None:
        burying.set()
        go_on.wait(30)
        kill(paths)

    with lab.sandbox() as box:
        ending = in_thread(lab.runtime.wait, box.id)
        with monkeypatch.context() as patch:
            patch.setattr(SandboxPaths, "kill", held_up)
            _kill(box, "runsc-sandbox")
            assert burying.wait(30)
            late = in_thread(lab.runtime.wait, box.id)
            concurrent.futures.wait([ending, late], timeout=0.5)
            assert not late.done()
            go_on.set()
            assert [waiter.result().reason for waiter in (ending, late)] == [DeathReason.EVICTED] * 2
        _nothing_runs(lab, box)


@runsc_only
@pytest.mark.parametrize("name", ["runsc-sandbox", "runsc-gofer"])
def test_process_of_the_engine_that_is_killed_while_the_sandbox_starts(lab: Lab, name: str) -> None:
    for _ in range(3):
        order = lab.order()
        creating = in_thread(lab.runtime.create, order)
        box = Box(lab, order)
        while not (pids := _pids(box, name)) and not creating.done():
            pass
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        # The start fails, or the sandbox was up by then and dies of it; it never stays half alive.
        error = creating.exception()
        if error is None:
            assert lab.runtime.wait(box.id).reason is DeathReason.EVICTED
        else:
            assert isinstance(error, RuntimeFailure)
            assert error.code is ErrorCode.START_ERROR
        lab.runtime.delete(box.id)
        assert lab.found(box.id) is None
        assert Cgroup(lab.tag, box.id).pids() == set()


@runsc_only
def test_killed_fd_store_costs_no_exit_code_while_the_agent_runs(lab: Lab) -> None:
    with lab.sandbox(command=["sh", "-c", f"{UNTIL_GO}; exit 7"]) as box:
        ending = in_thread(lab.runtime.wait, box.id)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and f"sandbox-{lab.tag}-fd-store" in _command(entry):
                os.kill(int(entry.name), signal.SIGKILL)
        box.go()

        assert ending.result().exit_code == 7


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def _without_agent(lab: Lab, **fields: Any) -> Iterator[Box]:
    """Create a sandbox whose agent has gone; nobody watches it until somebody asks for it."""
    order = lab.order(**fields)
    first = lab.reopen()
    first.create(order)
    first.close()
    try:
        yield Box(lab, order)
    finally:
        lab.runtime.delete(order.sandbox_id)


@runsc_only
def test_exit_code_of_a_sandbox_that_ends_while_no_agent_runs(lab: Lab) -> None:
    with _without_agent(lab, command=["sh", "-c", f"{UNTIL_GO}; exit 7"]) as box:
        handle = os.pidfd_open(_pid(box, "runsc-sandbox"))
        box.go()
        assert readable(handle, 30)
        os.close(handle)

        death = lab.found(box.id).death  # type: ignore[union-attr]

        assert death is not None
        assert (death.reason, death.exit_code) == (DeathReason.EXITED, 7)


@runsc_only
@pytest.mark.parametrize("paused", [False, True])
def test_sandbox_that_is_killed_while_no_agent_runs(lab: Lab, paused: bool) -> None:
    with _without_agent(lab) as box:
        if paused:
            second = lab.reopen()
            second.pause(box.id)
            second.close()
        handle = os.pidfd_open(_pid(box, "runsc-sandbox"))
        _kill(box, "runsc-sandbox")
        if paused:
            Cgroup(lab.tag, box.id).thaw()
        assert readable(handle, 30)
        os.close(handle)

        death = lab.found(box.id).death  # type: ignore[union-attr]

        assert death is not None
        assert (death.reason, death.exit_code) == (DeathReason.EVICTED, None)
        _nothing_runs(lab, box)


def _kill(box: Box, name: str) -> None:
    os.kill(_pid(box, name), signal.SIGKILL)


def _pid(box: Box, name: str) -> int:
    """Return the host's number of the one process of that name that serves the sandbox."""
    (pid,) = _pids(box, name)
    return pid


def _pids(box: Box, name: str) -> list[int]:
    pids = Cgroup(box.lab.tag, box.id).pids()
    return [pid for pid in pids if _command(Path(f"/proc/{pid}")).startswith(name)]


def _nothing_runs(lab: Lab, box: Box) -> None:
    assert Cgroup(lab.tag, box.id).pids() == set()
    # The volume stays: it holds the workspace and the log.
    assert [path.name for path in mounts.mounted_below(lab.root) if box.id in str(path)] == ["volume"]
