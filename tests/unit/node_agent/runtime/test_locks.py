"""Creates and deletes of one sandbox."""

import threading

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.runtime.docker_engine.locks import Slots


def test_a_delete_makes_a_create_that_had_begun_give_up() -> None:
    slots = Slots()
    with slots.creating("a") as (ticket, _):
        ticket.check()
        with slots.deleting("a"):
            pass
        with pytest.raises(RuntimeFailure) as failure:
            ticket.check()

    assert failure.value.code is ErrorCode.CONFLICT


def test_a_create_after_the_delete_goes_on() -> None:
    slots = Slots()
    with slots.deleting("a"):
        pass
    with slots.creating("a") as (ticket, _):
        ticket.check()


def test_another_sandbox_is_not_touched() -> None:
    slots = Slots()
    with slots.creating("a") as (ticket, _), slots.deleting("b"):
        ticket.check()


def test_a_delete_ends_the_wait_of_a_create_and_takes_its_turn_after_it() -> None:
    slots = Slots()
    cancelled = threading.Event()
    order: list[str] = []

    def delete() -> None:
        with slots.deleting("a"):
            order.append("deleted")

    with slots.creating("a") as (ticket, lock), lock, ticket.waiting(cancelled.set):
        thread = threading.Thread(target=delete)
        thread.start()
        assert cancelled.wait(10)
        order.append("gave up")
    thread.join(10)

    assert order == ["gave up", "deleted"]


def test_nothing_is_kept_of_sandboxes_that_nobody_uses() -> None:
    slots = Slots()
    with slots.changing("a"):
        pass

    assert slots._slots == {}
