"""The supervisor with real processes: it keeps them alive, reports why they died, and leaves none behind."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import ClickException

from sandboxes.local import supervisor as module
from sandboxes.local.supervisor import (
    LOG_BYTES,
    Child,
    ProcessSupervisor,
    StopRequested,
    ended,
    restart_delay,
    tail,
    trim,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(said: list[str]) -> Iterator[ProcessSupervisor]:
    made = ProcessSupervisor(said.append)
    yield made
    made.stop_all()


def shell(tmp_path: Path, script: str, *, name: str = "child", **fields: object) -> Child:
    return Child(name=name, argv=["sh", "-c", script], log=tmp_path / f"{name}.log", **fields)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def await_death(pid: int) -> None:
    """Wait for a process to end; fail the test when it does not within 20 s."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 20)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def test_delays_grow_and_are_bounded() -> None:
    assert [restart_delay(n) for n in (1, 2, 3, 4, 20)] == [0.5, 1.0, 2.0, 4.0, 30.0]


def test_start_returns_when_the_child_is_ready(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    supervisor.start(shell(tmp_path, f"touch {flag}; exec sleep 60", ready=flag.exists), within=20)
    pid = supervisor.pid("child")
    assert pid is not None
    assert alive(pid)


def test_child_that_dies_while_starting_is_an_error_with_its_log(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    child = shell(tmp_path, "echo cannot listen on port 1 >&2; exit 3", ready=lambda: False)
    with pytest.raises(ClickException, match="cannot listen on port 1"):
        supervisor.start(child, within=20)
    assert supervisor.pid("child") is None


def test_only_what_this_start_wrote_is_shown(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("error: the policy file was wrong yesterday\n")
    child = shell(tmp_path, "echo starting; echo 'error: port 1 is taken' >&2; exit 1", ready=lambda: False)
    with pytest.raises(ClickException) as caught:
        supervisor.start(child, within=20)
    assert caught.value.message.endswith("while starting: port 1 is taken")


def test_another_childs_death_ends_a_start(supervisor: ProcessSupervisor, said: list[str], tmp_path: Path) -> None:
    supervisor.start(shell(tmp_path, "sleep 0.3; echo 'error: broken' >&2; exit 1", name="first"), within=5)
    with pytest.raises(ClickException, match=r"first .* broken"):
        supervisor.start(shell(tmp_path, "exec sleep 60", name="second", ready=lambda: False), within=20)
    assert said == []


def test_death_is_an_error_where_nothing_is_to_be_restarted(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    supervisor.start(shell(tmp_path, "echo 'error: broken' >&2; exit 1"), within=5)
    with pytest.raises(ClickException, match="broken"):
        supervisor.wait(20, restart=False)


def test_child_that_never_gets_ready_is_ended(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    child = shell(tmp_path, f"echo $$ > {pids}; exec sleep 60", ready=lambda: False)
    with pytest.raises(ClickException):
        supervisor.start(child, within=1)
    await_death(int(pids.read_text()))


def test_missing_program_is_an_error(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    child = Child(name="x", argv=["/no/such/program"], log=tmp_path / "x.log", ready=lambda: False, dies_with_us=False)
    with pytest.raises(ClickException):
        supervisor.start(child, within=5)


def test_dead_child_is_restarted(
    supervisor: ProcessSupervisor, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    supervisor.start(shell(tmp_path, "exec sleep 60"), within=5)
    first = supervisor.pid("child")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    for _ in range(200):
        supervisor.wait(0.05)
        if supervisor.pid("child") not in {None, first}:
            break
    second = supervisor.pid("child")
    assert second is not None
    assert alive(second)
    assert len(said) == 1 and "SIGKILL" in said[0]


def test_stop_kills_what_ignores_sigterm(supervisor: ProcessSupervisor, said: list[str], tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    script = f"trap '' TERM; touch {flag}; while :; do sleep 0.05; done"
    supervisor.start(shell(tmp_path, script, ready=flag.exists, stop_seconds=0.2), within=20)
    pid = supervisor.pid("child")
    assert pid is not None
    supervisor.stop_all()
    assert not alive(pid)
    assert len(said) == 1


def test_children_end_in_the_opposite_order(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    order = tmp_path / "order"
    for name in ("first", "second"):
        flag = tmp_path / f"{name}.ready"
        script = f"trap 'echo {name} >> {order}; exit' TERM; touch {flag}; while :; do sleep 0.05; done"
        supervisor.start(shell(tmp_path, script, name=name, ready=flag.exists), within=20)
    supervisor.stop_all()
    assert order.read_text().split() == ["second", "first"]


@pytest.mark.parametrize(("sighup", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_sighup_stays_ignored_under_nohup(sighup: signal.Handlers, stops: bool) -> None:
    before = signal.signal(signal.SIGHUP, sighup)
    try:
        assert (signal.SIGHUP in module.stop_signals()) is stops
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_ends_the_wait(supervisor: ProcessSupervisor) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        supervisor.catch_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        assert supervisor.wait(20) == StopRequested(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_no_child_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from sandboxes.local.supervisor import Child, ProcessSupervisor
        supervisor = ProcessSupervisor(print)
        supervisor.start(Child("c", ["sleep", "60"], Path({str(tmp_path / "c.log")!r})), within=5)
        print(supervisor.pid("c"), flush=True)
        supervisor.wait(60)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid = int(parent.stdout.readline())
        # The line comes after the fork and maybe before `setpriv` has become `sleep`; only then is the guard set.
        while Path(f"/proc/{pid}/comm").read_text().strip() != "sleep":
            pass
        parent.kill()
        await_death(pid)


def test_end_of_a_process_is_described() -> None:
    assert ended(0) == "ended with exit code 0"
    assert ended(-9) == "was killed by SIGKILL"
    assert ended(-64) == "was killed by SIGRTMAX"
    assert ended(-99) == "was killed by signal 99"


def test_log_stays_bounded_and_keeps_its_end(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    trim(log)
    log.write_bytes(b"a" * LOG_BYTES)
    trim(log)
    assert log.stat().st_size == LOG_BYTES
    with log.open("ab") as writer:
        writer.write(b"end")
        writer.flush()
        trim(log)
        writer.write(b"next")
    assert log.read_bytes() == b"next"
    assert log.with_name("x.log.1").read_bytes()[-4:] == b"aend"


def test_tail_is_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert tail(log) == "it wrote nothing"
    log.write_text("\n".join(f"line {n}" for n in range(9)))
    assert tail(log) == "line 4 | line 5 | line 6 | line 7 | line 8"


# -- commands that are run to their end -------------------------------------------------------------------------------


def test_run_command_returns_the_output() -> None:
    assert module.run_command("--version").startswith("sandboxes ")


def test_run_command_that_fails_names_command_and_reason() -> None:
    with pytest.raises(ClickException, match="'sandboxes token revoke'"):
        module.run_command("token", "revoke", "x", "--state-dir", "/proc/none")


def test_run_command_kills_what_takes_too_long() -> None:
    with pytest.raises(ClickException, match="'sandboxes --version'"):
        module.run_command("--version", within=0.001)


def test_run_command_may_be_allowed_to_fail() -> None:
    assert module.run_command("token", "revoke", "x", "--state-dir", "/proc/none", may_fail=True) == ""


def test_what_an_earlier_supervisor_started_is_replaced_when_it_dies(
    supervisor: ProcessSupervisor, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "restart_delay", lambda failures: 0.0)
    foreign = subprocess.Popen(["sleep", "600"])
    supervisor.take_over(shell(tmp_path, "sleep 600", name="engine"), foreign.pid)
    assert supervisor.pid("engine") == foreign.pid
    foreign.kill()
    foreign.wait()
    while supervisor.pid("engine") in {foreign.pid, None}:
        supervisor.wait(0.05)
    assert len(said) == 1


def test_what_was_taken_over_and_is_gone_already_is_replaced(
    supervisor: ProcessSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "restart_delay", lambda failures: 0.0)
    foreign = subprocess.Popen(["true"])
    foreign.wait()
    supervisor.take_over(shell(tmp_path, "sleep 600", name="engine"), foreign.pid)
    while supervisor.pid("engine") in {foreign.pid, None}:
        supervisor.wait(0.05)


def test_stop_leaves_alone_what_was_taken_over(supervisor: ProcessSupervisor, tmp_path: Path) -> None:
    foreign = subprocess.Popen(["sleep", "600"])
    supervisor.take_over(shell(tmp_path, "sleep 600", name="engine"), foreign.pid)
    supervisor.stop("engine")
    try:
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
