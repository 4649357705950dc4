"""What a new process knows of the clocks of the one before."""

from pathlib import Path

import pytest

from autoscaler.clock import ClockAnchor, ClockGuard, DaemonClock

GRACE = 100.0


class HandClock(DaemonClock):
    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 500.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


class Machine:
    """One machine on which processes come and go."""

    def __init__(self, directory: Path) -> None:
        self.clock = HandClock()
        self.path = directory / "clock.json"
        self.boot_id = directory / "boot_id"
        self.jumps: list[float] = []
        self.boot("one")

    def boot(self, name: str) -> None:
        self.boot_id.write_text(f"{name}\n")

    def process(self) -> ClockGuard:
        return ClockGuard(self.clock, GRACE, self.jumps.append, ClockAnchor(self.path, self.boot_id))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    guard = made.process()
    assert guard.check()
    guard.save()
    return made


@pytest.mark.parametrize("jump", [-3600.0, 31.0])
def test_a_jump_while_nobody_lived_is_seen_by_the_next_process(machine: Machine, jump: float) -> None:
    machine.clock.pass_by(5000.0)
    machine.clock.wall += jump
    guard = machine.process()
    assert not guard.check()
    assert machine.jumps == [jump]
    guard.save()
    machine.clock.pass_by(GRACE)
    assert guard.check()
    assert machine.process().check(), "it is told once; the journal holds for how long ages prove nothing"


def test_what_was_not_kept_is_seen_again(machine: Machine) -> None:
    machine.clock.wall += 60
    assert not machine.process().check()
    assert not machine.process().check()


def test_the_file_is_its_owners(machine: Machine) -> None:
    assert {each.stat().st_mode & 0o777 for each in machine.path.parent.glob("clock*")} == {0o600}


def test_time_that_passes_is_no_jump(machine: Machine) -> None:
    machine.clock.pass_by(100_000.0)
    assert machine.process().check()
    assert machine.jumps == []


def test_a_small_drift_is_kept_and_never_adds_up(machine: Machine) -> None:
    for _ in range(100):
        guard = machine.process()
        assert guard.check()
        machine.clock.wall += 5
        assert guard.check()
        guard.save()
    assert machine.jumps == []


@pytest.mark.parametrize("words", ["", "{", "[]", '{"boot": "one"}', '{"boot": "one", "offset": "x"}'])
def test_a_broken_file_is_as_none(machine: Machine, words: str, caplog: pytest.LogCaptureFixture) -> None:
    machine.path.write_text(words)
    machine.clock.wall += 3600
    guard = machine.process()
    assert guard.check()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    guard.save()
    machine.clock.wall += 3600
    assert not machine.process().check()


def test_after_a_boot_monotonic_time_is_another(machine: Machine) -> None:
    machine.boot("two")
    machine.clock.steady = 3.0
    assert machine.process().check()
    assert machine.jumps == []


def test_a_disk_that_takes_nothing_ends_nothing(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.path.unlink()
    machine.path.mkdir()
    guard = machine.process()
    guard.save()
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert guard.check()
