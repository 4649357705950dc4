"""The autoscaler dies at every commit and every call of a whole life, and a new one goes on from the journal."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaler.clock import ClockAnchor, ClockGuard
from providers.testing.fake import SimulatedCrash
from tests.scenario.autoscaler.fleet import Fleet, pool
from tests.scenario.autoscaler.worlds import Audited, World

TICK = 5.0
LOOKS = {
    "call list",
    "answer list",
    "call offers",
    "answer offers",
    "call gateway.nodes",
    "call gateway.demand",
    "call gateway.put_ceilings",
}
"""Steps that change nothing: dying there is dying between two ticks."""


class Steps:
    """Counts what a fleet does; dies at one of them."""

    def __init__(self, die_at: int | None) -> None:
        self.seen: list[str] = []
        self._die_at = die_at

    def __call__(self, step: str) -> None:
        self.seen.append(step)
        if len(self.seen) - 1 == self._die_at:
            raise SimulatedCrash(step)


def life(fleet: Fleet) -> int:
    """Let one sandbox come and go, and the node with it; return how often the autoscaler died."""
    deaths = 0

    def until(condition: Callable[[], bool]) -> None:
        nonlocal deaths
        for _ in range(400):
            if condition():
                return
            deaths += fleet.crashing_tick(TICK)
        raise AssertionError(f"no end; rows: {fleet.journal.open_intents()}, calls: {fleet.cloud.calls[-20:]}")

    fleet.cloud.boot_seconds = fleet.cloud.stop_seconds = TICK
    (sandbox,) = fleet.ask()
    until(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    until(lambda: not fleet.cloud.machines and not fleet.states() and not fleet.gateway.records)
    return deaths


def steps_of_a_life(directory: Path) -> list[str]:
    fleet, steps = Fleet(directory, pool(boot_seconds=60.0, idle_seconds=10.0)), Steps(None)
    fleet.watch(steps)
    life(fleet)
    fleet.journal.close()
    return steps.seen


def test_dying_at_any_step_makes_one_instance_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    seen = steps_of_a_life(tmp_path / "whole")
    looks = {"call list", "answer list", "call offers", "answer offers", "call gateway.nodes", "call gateway.demand"}
    points = [number for number, step in enumerate(seen) if step not in looks]
    assert {"after add", "call create", "answer create", "before move", "answer delete", "answer gateway.drain"} <= {
        *seen
    }
    for number in points:
        directory = tmp_path / str(number)
        directory.mkdir()
        fleet = Fleet(directory, pool(boot_seconds=60.0, idle_seconds=10.0))
        fleet.watch(Steps(number))
        deaths = life(fleet)
        assert deaths == 1, f"did not die at {number} ({seen[number]})"
        assert len(fleet.cloud.created) == 1, f"died at {number} ({seen[number]}): {fleet.cloud.created}"
        fleet.journal.close()


@pytest.mark.parametrize("seed", range(8))
def test_dying_again_and_again_still_ends(tmp_path: Path, seed: int) -> None:
    fleet = Fleet(tmp_path, pool(boot_seconds=600.0, idle_seconds=10.0))
    chance = random.Random(seed)

    def step(name: str) -> None:
        if name not in LOOKS and chance.random() < 0.15:
            raise SimulatedCrash(name)

    fleet.watch(step)
    assert life(fleet) > 0
    assert len(fleet.cloud.created) == 1
    fleet.journal.close()


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_jump_of_the_clock_while_it_is_dead_deletes_nothing(tmp_path: Path, jump: float) -> None:
    fleet = Fleet(tmp_path, pool(min=1, max=2))
    live(fleet)
    fleet.until(lambda: fleet.states() == ["ready"])
    fleet.ask(5)
    fleet.until(lambda: "booting" in fleet.states())
    fleet.clock.skew = jump
    for _ in range(40):
        fleet.restart()  # and it dies again after every tick
        live(fleet)
        fleet.tick()
    assert len(fleet.cloud.created) == 2
    assert fleet.states() == ["ready", "ready"]
    assert "delete" not in fleet.cloud.calls


def live(fleet: Fleet) -> None:
    """Give the process the memory of clocks that a real one has."""
    anchor = ClockAnchor(Path(fleet.url.removeprefix("sqlite:///")).with_name("clock.json"))
    fleet.reconciler._observer._guard = ClockGuard(fleet.clock, 600.0, lambda _jump: None, anchor)


def test_five_hundred_deaths_during_creates_and_deletes(tmp_path: Path) -> None:
    """Die at every commit and call in turn, under the audit: one machine an operation, none forgotten."""
    chance, deaths, lives = random.Random(4), 0, 0
    while deaths < 500:
        fleet = Audited(tmp_path)
        left = lives % 40

        def step(name: str, fleet: Audited = fleet) -> None:
            nonlocal left
            if name in LOOKS:
                return
            left -= 1
            if left < 0:
                left = chance.randint(0, 40)
                raise SimulatedCrash(name)

        fleet.watch(fleet.audit)
        fleet.audit.step = step
        sandboxes = fleet.ask(1 + lives % 12)
        for _ in range(25):
            deaths += fleet.crashing_tick(TICK)
        for sandbox in sandboxes:
            fleet.gateway.finish(sandbox)
        for _ in range(25):
            deaths += fleet.crashing_tick(TICK)
        World(fleet).calm()
        World(fleet).rest(2500)
        fleet.close()
        lives += 1
    assert lives > 10
