"""Deadlines, background tasks and waits."""

import asyncio

import pytest

from gateway.services.tasks import DEADLINE_RETRY, Background, Deadlines, wait_for_event
from tests.scenario.gateway.world import ManualClock


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.due: asyncio.Queue[str] = asyncio.Queue()
        self.break_next = False
        self.deadlines = Deadlines(self.clock, self._take)

    async def _take(self, key: str) -> None:
        await self.due.put(key)
        if self.break_next:
            self.break_next = False
            raise RuntimeError("broken")

    def at(self, seconds: float) -> float:
        return self.clock.monotonic() + seconds


async def test_deadlines_come_in_order_and_may_be_moved_or_forgotten() -> None:
    rig = Rig()
    task = asyncio.create_task(rig.deadlines.run())
    for key, seconds in {"c": 3, "a": 1, "b": 2, "never": 2}.items():
        rig.deadlines.set(key, rig.at(seconds))
    rig.deadlines.set("c", rig.at(0.5))
    rig.deadlines.clear("never")
    assert "never" not in rig.deadlines
    await rig.clock.someone_sleeps(0.5)
    rig.clock.advance(5)
    assert [await rig.due.get() for _ in range(3)] == ["c", "a", "b"]
    assert rig.due.empty()
    task.cancel()


async def test_a_deadline_that_fails_is_tried_again_and_delays_no_other() -> None:
    rig = Rig()
    task = asyncio.create_task(rig.deadlines.run())
    rig.break_next = True
    rig.deadlines.set("a", rig.at(0))
    rig.deadlines.set("b", rig.at(0))
    assert {await rig.due.get(), await rig.due.get()} == {"a", "b"}
    await rig.clock.someone_sleeps(DEADLINE_RETRY)
    rig.clock.advance(DEADLINE_RETRY)
    assert await rig.due.get() == "a"
    task.cancel()


async def test_moving_one_deadline_many_times_costs_no_memory() -> None:
    rig = Rig()
    for index in range(10_000):
        rig.deadlines.set("a", rig.at(index))
    assert len(rig.deadlines._heap) < 200


async def test_a_loop_that_fails_is_begun_again() -> None:
    clock, begun = ManualClock(), asyncio.Queue[int]()
    background = Background(clock)

    async def loop() -> None:
        await begun.put(1)
        raise RuntimeError("broken")

    background.keep(loop, "loop")
    await begun.get()
    await clock.someone_sleeps(1.0)
    clock.advance(1)
    await begun.get()
    await background.stop()


async def test_work_is_finished_when_its_caller_leaves() -> None:
    background, gate, done = Background(ManualClock()), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.set()

    caller = asyncio.create_task(background.finish(work(), "work"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    await done.wait()


async def test_a_wait_ends_by_event_or_by_time() -> None:
    clock, event = ManualClock(), asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, clock, clock.monotonic() + 5))
    await clock.someone_sleeps(5)
    clock.advance(5)
    assert await waiting is False
    event.set()
    assert await wait_for_event(event, clock, clock.monotonic() - 1) is True
