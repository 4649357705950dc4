"""Capacity that is asked for ahead: demand that the right create claims, once, and that expires by itself."""

import asyncio

import pytest
from pydantic import ValidationError

from gateway.core.model import PreparedKind
from gateway.errors import ApiError
from gateway.wire import limits
from gateway.wire.capacity import BuilderPrepareRequest, Ceilings, Demand, PoolCeiling, PrepareRequest
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import SandboxState
from tests.scenario.gateway.world import (
    ROOM,
    World,
    settings_for,
    spec,
    world,
)

S = SandboxState
SMALL = {"cpus": 1.0, "memory_mb": 512, "disk_mb": 1024}


async def demand(world: World) -> Demand:
    return await world.services.capacity.demand()


async def prepare(world: World, count: int = 2, **fields: object) -> str:
    request = PrepareRequest.model_validate({"count": count, **SMALL, **fields})
    return (await world.services.prepared.prepare(request)).id


async def units(world: World) -> dict[str, int]:
    """Return the unclaimed units by id."""
    return {item.prepare_id: item.count for item in (await demand(world)).prepared}


async def allow(world: World) -> None:
    """Report a pool that could hold what the tests ask for."""
    reported = PoolCeiling(pool="cpu", shape=ROOM, runtimes=["runsc", "docker"], isolations=["gvisor"], max_nodes=3)
    await world.services.capacity.set_ceilings(Ceilings(pools=[reported]))


async def test_units_are_demand_until_creates_of_that_shape_claim_them(here: World) -> None:
    await here.join()
    prepare_id = await prepare(here)
    reported = await demand(here)
    assert (reported.prepared[0].count, reported.prepared_resources.memory_mb, reported.prepared_resources.slots) == (
        2,
        1024,
        2,
    )
    await here.services.sandboxes.create(spec("a", **SMALL))
    assert await units(here) == {prepare_id: 1}
    await here.services.sandboxes.create(spec("b", **SMALL))
    assert await units(here) == {}


async def test_a_unit_and_the_create_that_claimed_it_are_never_both_demand(here: World) -> None:
    await allow(here)
    prepare_id = await prepare(here, count=3)
    waiting = asyncio.create_task(here.services.sandboxes.create(spec("a", **SMALL)))
    await here.until("a", SandboxState.PENDING)
    reported = await demand(here)
    assert (reported.pending_count, await units(here)) == (1, {prepare_id: 2})
    assert reported.desired_resources.memory_mb == 3 * 512
    waiting.cancel()


async def test_the_same_create_again_claims_nothing(here: World) -> None:
    await here.join()
    prepare_id = await prepare(here)
    for _ in range(3):
        await here.services.sandboxes.create(spec("a", **SMALL))
    assert await units(here) == {prepare_id: 1}


@pytest.mark.parametrize(
    "other",
    [
        {"memory_mb": 513},
        {"cpus": 2.0},
        {"disk_mb": 2048},
        {"image": "other"},
        {"runtime": "docker"},
    ],
)
async def test_another_create_claims_nothing(here: World, other: dict[str, object]) -> None:
    await allow(here)
    prepare_id = await prepare(here, image="busybox", runtime="runsc")
    waiting = asyncio.create_task(here.services.sandboxes.create(spec("a", **{**SMALL, **other})))
    await here.until("a", SandboxState.PENDING)
    assert await units(here) == {prepare_id: 2}
    waiting.cancel()


async def test_what_expires_first_is_claimed_first(here: World) -> None:
    await here.join()
    late, soon = await prepare(here, ttl_seconds=600), await prepare(here, ttl_seconds=60)
    await here.services.sandboxes.create(spec("a", **SMALL))
    assert await units(here) == {late: 2, soon: 1}


async def test_units_expire(here: World) -> None:
    await here.join()
    await prepare(here, ttl_seconds=60)
    here.manual_clock.advance(60)
    reported = await demand(here)
    assert (reported.prepared, reported.prepared_resources.memory_mb, reported.desired_resources.memory_mb) == (
        [],
        0,
        0,
    )


async def test_preparing_the_same_id_again_replaces_it_and_keeps_its_creation_time(here: World) -> None:
    await here.join()
    first = await here.services.prepared.prepare(PrepareRequest.model_validate({"id": "burst", "count": 5, **SMALL}))
    here.manual_clock.advance(10)
    again = await here.services.prepared.prepare(PrepareRequest.model_validate({"id": "burst", "count": 7, **SMALL}))
    assert await units(here) == {"burst": 7}
    assert (again.created_at, again.updated_at) == (first.created_at, here.clock.now())


async def test_delete_returns_what_was_prepared_and_is_idempotent(here: World) -> None:
    await here.join()
    prepare_id = await prepare(here)
    gone = await here.services.prepared.delete(PreparedKind.SANDBOX, prepare_id)
    assert gone is not None and gone.count == 2
    assert await here.services.prepared.delete(PreparedKind.SANDBOX, prepare_id) is None
    assert await units(here) == {}


async def test_builders_are_listed_apart_from_sandboxes(here: World) -> None:
    made = await here.services.prepared.prepare_builders(BuilderPrepareRequest(count=2))
    reported = await demand(here)
    assert (reported.prepared, reported.prepared_builder_count, reported.desired_builders) == ([], 2, 2)
    assert await here.services.prepared.delete(PreparedKind.SANDBOX, made.id) is None
    with pytest.raises(ApiError) as caught:
        await prepare(here, id=made.id)
    assert caught.value.code in {ErrorCode.CONFLICT, ErrorCode.NEVER_FITS}
    assert await here.services.prepared.delete(PreparedKind.BUILDER, made.id) == made


async def test_builders_prepared_again_are_counted_once_and_expire(here: World) -> None:
    async def count() -> tuple[int, int]:
        reported = await demand(here)
        return len(reported.prepared_builders), reported.prepared_builder_count

    async def lease(**fields: object) -> None:
        await here.services.prepared.prepare_builders(BuilderPrepareRequest.model_validate(fields))

    await lease(id="ci", count=2, ttl_seconds=60)
    here.manual_clock.advance(59)
    await lease(id="ci", count=2, ttl_seconds=60)
    assert await count() == (1, 2)
    await lease(id="nightly", count=3, ttl_seconds=600)
    assert await count() == (2, 5)
    here.manual_clock.advance(59)
    await lease(id="ci", count=1, ttl_seconds=60)
    assert await count() == (2, 4)
    here.manual_clock.advance(60)
    assert await count() == (1, 3)
    here.manual_clock.advance(600)
    assert await count() == (0, 0)


async def test_a_sandbox_claims_no_builder_and_builders_add_no_resources(here: World) -> None:
    await here.join()
    await here.services.prepared.prepare_builders(BuilderPrepareRequest(count=2))
    await here.services.sandboxes.create(spec("a", **SMALL))
    reported = await demand(here)
    assert (reported.prepared_builder_count, reported.desired_resources.slots) == (2, 0)


async def test_builders_and_sandboxes_share_ids_and_the_limit(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PREPARED", 1)
    await here.join()
    await prepare(here, count=1, id="x")
    for name, code in (("x", ErrorCode.CONFLICT), ("y", ErrorCode.NO_ROOM)):
        with pytest.raises(ApiError) as caught:
            await here.services.prepared.prepare_builders(BuilderPrepareRequest(id=name))
        assert caught.value.code is code
    await here.services.sandboxes.create(spec("a", **SMALL))
    await here.services.prepared.prepare_builders(BuilderPrepareRequest(id="x"))
    assert (await demand(here)).prepared_builder_count == 1


@pytest.mark.parametrize(
    "body", [{"count": 0}, {"count": 101}, {"count": "1"}, {"ttl_seconds": 0}, {"id": "a/b"}, {"cpus": 1}, {"x": 1}]
)
def test_an_invalid_request_for_builders_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BuilderPrepareRequest.model_validate(body)


async def test_a_shape_that_nothing_could_hold_is_refused_at_once(here: World) -> None:
    await allow(here)
    with pytest.raises(ApiError) as caught:
        await prepare(here, memory_mb=ROOM.memory_mb + 1)
    assert caught.value.code is ErrorCode.NEVER_FITS
    assert caught.value.details["maximum_resources"].memory_mb == ROOM.memory_mb


async def test_requests_are_limited_in_number(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PREPARED", 2)
    await here.join()
    first = await prepare(here)
    await prepare(here)
    with pytest.raises(ApiError) as caught:
        await prepare(here)
    assert caught.value.code is ErrorCode.NO_ROOM
    await prepare(here, id=first)


@pytest.mark.parametrize("body", [{"count": 0, **SMALL}, {"count": 101, **SMALL}, {"count": 1}, {"count": 1, "x": 1}])
def test_an_invalid_request_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PrepareRequest.model_validate(body)


async def test_concurrent_creates_claim_one_unit_each(here: World) -> None:
    await here.join()
    prepare_id = await prepare(here, count=5)
    await asyncio.gather(*(here.services.sandboxes.create(spec(f"s{number}", **SMALL)) for number in range(4)))
    assert await units(here) == {prepare_id: 1}


async def test_units_survive_a_restart_of_the_gateway(here: World, database_url: str | None) -> None:
    await here.join()
    prepare_id = await prepare(here)
    here.services.internals.lock.close()
    async with world(settings_for(here.settings.state_dir, database_url), here.fleet, here.clock) as next_life:
        assert await units(next_life) == {prepare_id: 2}


async def test_ceilings_decide_what_never_fits(here: World) -> None:
    big = PoolCeiling(
        pool="cpu", shape=Shape(cpus=32, memory_mb=65536, disk_mb=1 << 20, slots=100), runtimes=["runsc"],
        isolations=["gvisor"], max_nodes=3,
    )  # fmt: skip
    await here.join()
    await here.services.capacity.set_ceilings(Ceilings(pools=[big]))
    create = asyncio.create_task(here.services.sandboxes.create(spec(memory_mb=60_000)))
    await here.until("a", S.PENDING)
    await here.services.capacity.set_ceilings(Ceilings(pools=[]))
    with pytest.raises(ApiError) as caught:
        await create
    assert caught.value.code is ErrorCode.NEVER_FITS
