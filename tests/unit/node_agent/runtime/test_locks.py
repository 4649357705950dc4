"""Starts and deletes of one sandbox that meet."""

import gc
import threading

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.runtime.locks import SandboxLock, SandboxLocks


@pytest.fixture
def lock() -> SandboxLock:
    return SandboxLock("a")


def test_delete_makes_a_start_that_has_begun_give_up(lock: SandboxLock) -> None:
    with lock.attempt() as attempt:
        attempt.check()
        lock.overtake()

        assert attempt.overtaken
        with pytest.raises(RuntimeFailure) as failure:
            attempt.check()

    assert failure.value.code is ErrorCode.CONFLICT


def test_start_after_the_delete_goes_on(lock: SandboxLock) -> None:
    lock.overtake()

    with lock.attempt() as attempt:
        attempt.check()


def test_every_start_in_flight_gives_up(lock: SandboxLock) -> None:
    with lock.attempt() as first, lock.attempt() as second:
        lock.overtake()

        assert first.overtaken
        assert second.overtaken


def test_another_sandbox_is_not_touched() -> None:
    locks = SandboxLocks()
    with locks.of("a").attempt() as attempt:
        locks.of("b").overtake()

        attempt.check()


def test_delete_ends_the_wait_of_a_start_and_takes_its_turn_after_it(lock: SandboxLock) -> None:
    interrupted = threading.Event()
    order: list[str] = []

    def delete() -> None:
        lock.overtake()
        with lock.held():
            order.append("deleted")

    with lock.held(), lock.attempt() as attempt, attempt.interruptible(interrupted.set):
        thread = threading.Thread(target=delete)
        thread.start()
        assert interrupted.wait(10)
        order.append("gave up")
    thread.join(10)

    assert order == ["gave up", "deleted"]


def test_wait_that_begins_after_the_delete_is_refused(lock: SandboxLock) -> None:
    with lock.attempt() as attempt:
        lock.overtake()

        with pytest.raises(RuntimeFailure) as failure, attempt.interruptible(lambda: None):
            raise AssertionError("it waits for nothing that could end it")

    assert failure.value.code is ErrorCode.CONFLICT


def test_wait_that_is_over_is_not_interrupted(lock: SandboxLock) -> None:
    interrupted = threading.Event()
    with lock.attempt() as attempt:
        with attempt.interruptible(interrupted.set):
            pass
        lock.overtake()

    assert not interrupted.is_set()


def test_lock_that_cannot_be_had_in_time_is_busy(lock: SandboxLock) -> None:
    failures: list[RuntimeFailure] = []

    def try_it() -> None:
        try:
            with lock.held(0.01):
                pass
        except RuntimeFailure as failure:
            failures.append(failure)
        with lock.held_if_free() as held:
            assert not held

    with lock.held():
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join(10)

    assert [failure.code for failure in failures] == [ErrorCode.BUSY]
    with lock.held_if_free() as held:
        assert held


def test_change_wakes_those_that_wait_for_one(lock: SandboxLock) -> None:
    waiting, woken = threading.Event(), threading.Event()

    def wait() -> None:
        with lock.changed:
            waiting.set()
            lock.changed.wait()
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    assert waiting.wait(10)
    with lock.changing():
        pass

    assert woken.wait(10)


def test_nothing_is_kept_of_sandboxes_that_nobody_uses() -> None:
    locks = SandboxLocks()
    held = locks.of("a")
    assert locks.of("a") is held
    del held
    gc.collect()

    assert len(locks._locks) == 0
