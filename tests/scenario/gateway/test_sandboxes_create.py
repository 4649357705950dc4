"""Creating sandboxes: idempotent, patient, never twice, never more than there is."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import ApiError
from gateway.services.scheduler import CreateTerms
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxEnvelope
from gateway.wire.states import DeathReason, SandboxState
from tests.scenario.gateway.world import Fleet, World, settings_for, spec, world

S = SandboxState
HUGE = Shape(cpus=64, memory_mb=262144, disk_mb=1 << 20, slots=1000)


async def refused(world: World, **fields: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await world.services.sandboxes.create(spec(**fields))
    return caught.value


async def test_a_sandbox_runs_on_the_node(here: World) -> None:
    node = await here.join()
    answer = await here.services.sandboxes.create(spec(labels={"team": "x"}))
    assert not answer.recovered
    record = answer.sandbox
    assert (record.state, record.node_id, record.generation) == (S.RUNNING, node.node_id, 1)
    assert (record.runtime, record.isolation) == ("runsc", "gvisor")
    assert here.fleet.log == [("create", node.node_id, "a", 1)]


async def test_sixteen_concurrent_creates_make_one_sandbox(here: World) -> None:
    await here.join()
    answers = await asyncio.gather(*(here.services.sandboxes.create(spec()) for _ in range(16)))
    assert len({answer.sandbox.operation_id for answer in answers}) == 1
    assert sorted(answer.recovered for answer in answers) == [False] + [True] * 15
    assert here.fleet.count("create") == 1


async def test_another_spec_of_the_same_id_conflicts(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    error = await refused(here, memory_mb=2048)
    assert (error.code, error.status) == (ErrorCode.SPEC_CONFLICT, 409)


async def test_a_shape_above_every_node_never_fits_and_leaves_nothing(here: World) -> None:
    node = await here.join()
    error = await refused(here, memory_mb=100_000)
    assert error.code is ErrorCode.NEVER_FITS
    assert error.details["maximum_resources"] == node.total
    assert error.details["requested_resources"].memory_mb == 100_000
    assert (await here.services.sandboxes.page()).sandboxes == []


async def test_a_create_without_nodes_waits_and_runs_once_one_joins(here: World) -> None:
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.until("a", S.PENDING)
    demand = await here.services.capacity.demand()
    assert [waiting.sandbox_id for waiting in demand.waiting] == ["a"]
    await here.join()
    assert (await create).sandbox.state is S.RUNNING
    assert (await here.services.capacity.demand()).pending_count == 0


async def test_a_create_sent_again_while_it_waits_gets_the_ttl_that_was_set_since(here: World) -> None:
    for ttl in (None, 3600):
        with pytest.raises(ApiError) as caught:
            await here.services.sandboxes.create(spec(), CreateTerms(default_ttl=ttl, wait_seconds=0))
        assert caught.value.code is ErrorCode.NO_ROOM
    assert (await here.services.sandboxes.get("a")).expires_at == here.clock.now() + timedelta(seconds=3600)


async def test_a_refusal_tells_of_nothing_that_others_wait_for(here: World) -> None:
    for tenant, cpus in (("acme", 3), ("beta", 2)):
        with pytest.raises(ApiError) as caught:
            await here.services.sandboxes.create(spec(cpus=cpus), CreateTerms(tenant=tenant, wait_seconds=0))
        assert caught.value.details["pending_resources"] == spec(cpus=cpus).shape


async def test_a_wait_that_is_too_long_answers_no_room_and_continues(here: World) -> None:
    node = await here.join(total=Shape(cpus=1, memory_mb=1024, disk_mb=8192, slots=8))
    await here.services.sandboxes.create(spec("first"))
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.manual_clock.someone_sleeps(here.settings.create_wait)
    here.manual_clock.advance(here.settings.create_wait)
    with pytest.raises(ApiError) as caught:
        await create
    error = caught.value
    assert (error.code, error.retryable, error.retry_after) == (ErrorCode.NO_ROOM, True, 2)
    assert error.details["pending_resources"] == spec().shape
    assert "cpus 0 of 1" in error.details["reasons"][0]
    await here.beat(node)
    await here.services.sandboxes.delete("first")
    await here.until("a", S.RUNNING)
    again = await here.services.sandboxes.create(spec())
    assert again.recovered
    assert again.sandbox.state is S.RUNNING


async def test_a_slow_create_answers_in_progress_and_continues(here: World) -> None:
    await here.join()
    gate = here.fleet.hold("create")
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.fleet.arrived["create"].wait()
    here.manual_clock.advance(here.settings.create_wait)
    with pytest.raises(ApiError) as caught:
        await create
    assert (caught.value.code, caught.value.retryable) == (ErrorCode.CREATE_IN_PROGRESS, True)
    gate.set()
    assert (await here.services.sandboxes.create(spec())).sandbox.state is S.RUNNING
    assert here.fleet.count("create") == 1


async def test_a_caller_that_leaves_stops_nothing(here: World) -> None:
    await here.join()
    gate = here.fleet.hold("create")
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.fleet.arrived["create"].wait()
    create.cancel()
    gate.set()
    await here.until("a", S.RUNNING)


async def test_a_lost_answer_is_asked_for_again_on_the_same_node(here: World) -> None:
    first, second = await here.join("vm-1"), await here.join("vm-2")
    here.fleet.fail("create", "lost", "cut")
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    for delay in (0.1, 0.2):
        await here.manual_clock.someone_sleeps(delay)
        here.manual_clock.advance(delay)
    record = (await create).sandbox
    assert (record.state, record.generation) == (S.RUNNING, 1)
    assert {entry[1] for entry in here.fleet.log} == {record.node_id}
    assert record.node_id in {first.node_id, second.node_id}
    assert list(here.fleet.placed()) == ["a"]


async def test_a_heartbeat_settles_a_create_whose_answer_was_lost(here: World) -> None:
    node = await here.join()
    here.fleet.fail("create", "lost")
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.manual_clock.someone_sleeps(0.1)
    await here.beat(node)
    assert (await create).sandbox.state is S.RUNNING
    assert here.fleet.count("create") == 1


async def test_a_node_that_refuses_is_left_for_another(here: World) -> None:
    await here.join("vm-1")
    await here.join("vm-2")
    here.fleet.fail("create", ApiError(ErrorCode.NODE_REFUSED, "draining"))
    record = (await here.services.sandboxes.create(spec())).sandbox
    assert (record.state, record.generation) == (S.RUNNING, 2)
    assert len(here.fleet.log) == 1


async def test_a_refusing_node_is_asked_again_after_its_next_heartbeat(here: World) -> None:
    node = await here.join()
    here.fleet.fail("create", ApiError(ErrorCode.NODE_REFUSED, "full"))
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.until("a", S.PENDING)
    await here.beat(node)
    assert (await create).sandbox.state is S.RUNNING


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR),
        (ErrorCode.START_ERROR, DeathReason.START_ERROR),
        (ErrorCode.CAPACITY, DeathReason.START_ERROR),
        (ErrorCode.DISK_FULL, DeathReason.DISK_FULL),
    ],
)
async def test_a_sandbox_that_cannot_run_fails_with_the_nodes_error(
    here: World, code: ErrorCode, reason: DeathReason
) -> None:
    await here.join()
    here.fleet.fail("create", ApiError(code, "no such thing"))
    first = await refused(here)
    again = await refused(here)
    assert (first.code, first.message) == (again.code, again.message) == (code, "no such thing")
    record = await here.services.sandboxes.get("a")
    assert (record.state, record.reason, record.detail) == (S.FAILED, reason, "no such thing")
    load = (await here.services.nodes.all()).nodes[0]
    assert (load.reserved, load.sandboxes) == (Shape(), 0)


async def test_concurrent_creates_never_take_more_than_a_node_has(here: World) -> None:
    node = await here.join(total=Shape(cpus=64, memory_mb=65536, disk_mb=1 << 20, slots=5))
    creates = [asyncio.create_task(here.services.sandboxes.create(spec(f"s{index}"))) for index in range(12)]
    await asyncio.gather(*(here.until(f"s{index}", S.PENDING, S.RUNNING) for index in range(12)))
    while len([create for create in creates if create.done()]) < 5:
        await asyncio.wait([create for create in creates if not create.done()], return_when=asyncio.FIRST_COMPLETED)
    assert len(node.have) == 5
    assert (await here.services.nodes.all()).nodes[0].reserved.slots == 5
    for create in creates:
        create.cancel()
    await asyncio.gather(*creates, return_exceptions=True)


async def test_deleted_room_goes_to_those_who_wait_oldest_first(here: World) -> None:
    await here.join(total=Shape(cpus=1, memory_mb=1024, disk_mb=8192, slots=8))
    await here.services.sandboxes.create(spec("first"))
    waiting: list[asyncio.Task[SandboxEnvelope]] = []
    for name in ("b", "a"):
        here.manual_clock.advance(0.01)
        waiting.append(asyncio.create_task(here.services.sandboxes.create(spec(name))))
        await here.until(name, S.PENDING)
    await here.services.sandboxes.delete("first")
    assert (await waiting[0]).sandbox.state is S.RUNNING
    assert await here.state("a") is S.PENDING
    waiting[1].cancel()


async def test_a_sandbox_that_ended_at_once_is_reported_as_ended(here: World) -> None:
    node = await here.join()
    gate = here.fleet.hold("create")
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.fleet.arrived["create"].wait()
    order_id = (await here.services.sandboxes.get("a")).operation_id
    gate.set()
    answer = await create
    here.die(node, "a", DeathReason.EXITED, 0)
    await here.beat(node)
    record = await here.services.sandboxes.get("a")
    assert (record.state, record.reason, record.exit_code) == (S.EXITED, DeathReason.EXITED, 0)
    assert answer.sandbox.operation_id == order_id


async def test_two_gateways_on_one_database_never_take_more_than_a_node_has(
    tmp_path: Path, database_url: str | None
) -> None:
    url, fleet = database_url or f"sqlite:///{tmp_path / 'shared.db'}", Fleet()
    async with (
        world(settings_for(tmp_path / "1", url), fleet) as one,
        world(settings_for(tmp_path / "2", url), fleet) as two,
    ):
        node = await one.join(total=Shape(cpus=64, memory_mb=65536, disk_mb=1 << 20, slots=5))
        names = [f"s{index}" for index in range(12)]
        creates = [
            asyncio.create_task(here.services.sandboxes.create(spec(name))) for name in names for here in (one, two)
        ]
        while len({create.result().sandbox.id for create in creates if create.done()}) < 5:
            await asyncio.wait([create for create in creates if not create.done()], return_when=asyncio.FIRST_COMPLETED)
        while (await one.services.capacity.demand()).pending_count < 7:
            await asyncio.sleep(0)
        assert len(node.have) == 5
        assert (await two.services.nodes.all()).nodes[0].reserved.slots == 5
        for create in creates:
            create.cancel()
        ended = await asyncio.gather(*creates, return_exceptions=True)
        assert not [error for error in ended if isinstance(error, Exception)]


async def test_a_full_queue_refuses_creates_and_leaves_nothing(tmp_path: Path) -> None:
    async with world(settings_for(tmp_path, max_pending=1)) as here:
        create = asyncio.create_task(here.services.sandboxes.create(spec()))
        await here.until("a", S.PENDING)
        with pytest.raises(ApiError) as caught:
            await here.services.sandboxes.create(spec("b"))
        assert (caught.value.code, caught.value.retryable) == (ErrorCode.NO_ROOM, True)
        with pytest.raises(ApiError):
            await here.services.sandboxes.get("b")
        create.cancel()
