"""The clock guard: jumps that one process sees, and jumps between two processes."""

from pathlib import Path

import pytest

from autoscaler.clock import ClockAnchor, ClockGuard
from tests.unit.autoscaler.clocks import HandClock

GRACE = 100.0


@pytest.mark.parametrize("jump", [-3600.0, 31.0])
def test_ages_are_not_trusted_for_the_grace_after_a_jump(jump: float) -> None:
    clock, jumps = HandClock(), list[float]()
    guard = ClockGuard(clock, GRACE, jumps.append)
    clock.pass_by(5000.0)
    assert guard.check()
    clock.wall += jump
    assert not guard.check()
    clock.pass_by(99.0)
    assert not guard.check()
    clock.pass_by(1.0)
    assert guard.check()
    assert jumps == [jump]


def test_slow_drift_is_trusted() -> None:
    clock, jumps = HandClock(), list[float]()
    guard = ClockGuard(clock, GRACE, jumps.append)
    for _ in range(100):
        clock.pass_by(10.0)
        clock.wall += 1.0
        assert guard.check()
    assert jumps == []


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
def test_a_jump_between_two_processes_is_noticed_by_the_next(machine: Machine, jump: float) -> None:
    machine.clock.pass_by(5000.0)
    machine.clock.wall += jump
    guard = machine.process()
    assert not guard.check()
    assert machine.jumps == [jump]
    guard.save()
    machine.clock.pass_by(GRACE)
    assert guard.check()
    assert machine.process().check(), "it is reported once; the journal holds for how long ages prove nothing"


def test_a_jump_that_was_not_saved_is_noticed_again(machine: Machine) -> None:
    machine.clock.wall += 60
    assert not machine.process().check()
    assert not machine.process().check()


def test_only_its_owner_may_read_the_anchor(machine: Machine) -> None:
    assert {each.stat().st_mode & 0o777 for each in machine.path.parent.glob("clock*")} == {0o600}


def test_time_that_passes_is_no_jump(machine: Machine) -> None:
    machine.clock.pass_by(100_000.0)
    assert machine.process().check()
    assert machine.jumps == []


def test_small_drift_is_saved_and_never_adds_up(machine: Machine) -> None:
    for _ in range(100):
        guard = machine.process()
        assert guard.check()
        machine.clock.wall += 5
        assert guard.check()
        guard.save()
    assert machine.jumps == []


@pytest.mark.parametrize("words", ["", "{", "[]", '{"boot": "one"}', '{"boot": "one", "offset": "x"}'])
def test_a_broken_anchor_is_ignored(machine: Machine, words: str, caplog: pytest.LogCaptureFixture) -> None:
    machine.path.write_text(words)
    machine.clock.wall += 3600
    guard = machine.process()
    assert guard.check()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    guard.save()
    machine.clock.wall += 3600
    assert not machine.process().check()


def test_an_anchor_of_an_earlier_boot_is_ignored(machine: Machine) -> None:
    machine.boot("two")
    machine.clock.steady = 3.0
    assert machine.process().check()
    assert machine.jumps == []


def test_an_anchor_that_cannot_be_written_stops_nothing(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.path.unlink()
    machine.path.mkdir()
    guard = machine.process()
    guard.save()
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert guard.check()
