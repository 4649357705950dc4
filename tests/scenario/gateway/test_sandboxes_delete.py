"""Deletes: legal in every state, and stronger than whatever is in flight."""

import asyncio

import pytest

from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import DeathReason, SandboxState
from tests.scenario.gateway.world import World, older, refused, spec

S = SandboxState


async def test_a_deleted_sandbox_is_gone_from_its_node_and_keeps_its_reason(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    record = await here.services.sandboxes.delete("a")
    assert record is not None
    assert (record.state, record.reason) == (S.DELETED, DeathReason.DELETED)
    assert node.have == {}
    assert (await here.services.sandboxes.get("a")).state is S.DELETED
    assert (await here.services.sandboxes.page()).sandboxes == []
    assert [found.id for found in (await here.services.sandboxes.page(state=S.DELETED)).sandboxes] == ["a"]
    assert (await here.services.nodes.all()).nodes[0].reserved == Shape()


async def test_the_second_delete_and_an_unknown_id_find_nothing(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    await here.services.sandboxes.delete("a")
    assert await here.services.sandboxes.delete("a") is None
    assert await here.services.sandboxes.delete("never-was") is None


async def test_a_delete_wins_over_a_create_in_flight(here: World) -> None:
    node = await here.join()
    here.fleet.hold("create")
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.fleet.arrived["create"].wait()
    record = await here.services.sandboxes.delete("a")
    assert record is not None
    assert record.state is S.DELETED
    with pytest.raises(ApiError) as caught:
        await create
    assert (caught.value.code, caught.value.details["reason"]) == (ErrorCode.SANDBOX_NOT_RUNNING, "deleted")
    assert node.have == {}


async def test_a_delete_ends_a_wait(here: World) -> None:
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.until("a", S.PENDING)
    record = await here.services.sandboxes.delete("a")
    assert record is not None
    assert record.state is S.DELETED
    with refused(ErrorCode.SANDBOX_NOT_RUNNING):
        await create
    assert here.fleet.log == []


async def test_a_delete_that_the_node_does_not_confirm_continues_after_its_answer(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    node.dead = True
    delete = asyncio.create_task(here.services.sandboxes.delete("a"))
    await here.manual_clock.someone_sleeps(here.settings.delete_wait)
    here.manual_clock.advance(here.settings.delete_wait)
    record = await delete
    assert record is not None
    assert record.state is S.DELETING
    node.dead = False
    delays = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    gone = asyncio.create_task(here.until("a", S.DELETED))
    for delay in delays:
        if gone.done():
            break
        here.manual_clock.advance(delay)
        await asyncio.wait({gone}, timeout=0.05)
    await gone
    assert node.have == {}


async def test_concurrent_deletes_give_one_order_and_one_answer(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    answers = await asyncio.gather(*(here.services.sandboxes.delete("a") for _ in range(8)))
    assert {answer.state for answer in answers if answer is not None} == {S.DELETED}
    assert here.fleet.count("delete") == 1


async def test_a_create_of_an_id_that_is_being_deleted_waits_and_is_the_next_generation(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    gate = here.fleet.hold("delete")
    delete = asyncio.create_task(here.services.sandboxes.delete("a"))
    await here.fleet.arrived["delete"].wait()
    create = asyncio.create_task(here.services.sandboxes.create(spec(memory_mb=512)))
    await here.manual_clock.someone_sleeps(here.settings.create_wait)
    gate.set()
    record = (await create).sandbox
    assert (record.state, record.generation, record.spec.memory_mb) == (S.RUNNING, 2, 512)
    deleted = await delete
    assert deleted is not None
    assert (deleted.state, deleted.generation) == (S.DELETED, 1)


async def test_what_an_older_generation_left_on_a_node_is_removed(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    stale = older(node)
    await here.services.sandboxes.delete("a")
    node.have = stale.have  # a late create of the old order came through
    answer = await here.beat(node)
    assert [(removal.sandbox_id, removal.generation) for removal in answer.remove] == [("a", 1)]
    assert node.have == {}


async def test_the_first_cause_of_death_stays(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    here.die(node, "a", DeathReason.OOM, 137)
    await here.beat(node)
    record = await here.services.sandboxes.delete("a")
    assert record is not None
    assert (record.state, record.reason, record.exit_code) == (S.DELETED, DeathReason.OOM, 137)
