"""A prepared unit belongs to one sandbox id: claimed once, given back when the sandbox never ran, whatever dies."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
from sqlmodel import Session

from gateway.core.model import PreparedKind, Sandbox
from gateway.errors import ApiError
from gateway.services.assembly import build
from gateway.services.tasks import SystemClock
from gateway.store import sandboxes
from gateway.wire.capacity import Ceilings, PoolCeiling, PrepareRequest
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import SandboxState
from tests.scenario.gateway.world import Fleet, World, drop, refused, settings_for, spec, world

S = SandboxState
SMALL = {"cpus": 1.0, "memory_mb": 512, "disk_mb": 1024}
LARGE = Shape(cpus=1000, memory_mb=1 << 20, disk_mb=1 << 20, slots=1000)
PREPARED = 60
CREATES = 100


async def prepare(world: World, count: int, **fields: object) -> None:
    request = PrepareRequest.model_validate({"id": "burst", "count": count, **SMALL, **fields})
    await world.services.prepared.prepare(request)


async def unclaimed(world: World) -> int:
    return sum(item.count for item in (await world.services.capacity.demand()).prepared)


async def holders(world: World) -> set[str]:
    """Return the ids that have a unit, deleted ones included."""

    def fn(session: Session) -> list[Sandbox]:
        return sandboxes.in_states(session, set(SandboxState))

    return {sandbox.id for sandbox in await world.services.internals.db.read(fn) if sandbox.batch is not None}


async def create(world: World, sandbox_id: str = "a", **fields: object) -> ApiError | None:
    """Create a sandbox; return the refusal, if it was one."""
    try:
        await world.services.sandboxes.create(spec(sandbox_id, **{**SMALL, **fields}))
    except ApiError as error:
        return error
    return None


async def create_all(world: World, names: Iterable[str]) -> list[ApiError | None]:
    return await asyncio.gather(*(create(world, name) for name in names))


async def image_is_missing(world: World) -> None:
    await world.join()
    world.fleet.fail("create", ApiError(ErrorCode.IMAGE_ERROR, "no such image"))
    error = await create(world)
    assert error is not None and error.code is ErrorCode.IMAGE_ERROR
    await world.services.sandboxes.delete("a")


async def nobody_waits_any_longer(world: World) -> None:
    await waits_and_is_left(world)
    await world.pass_time(world.settings.pending_lease)
    await world.until("a", S.FAILED)
    await world.join()


async def deleted_while_it_waits(world: World) -> None:
    await waits_and_is_left(world)
    await world.services.sandboxes.delete("a")
    await world.join()


async def deleted_while_it_is_created(world: World) -> None:
    await world.join()
    gate = world.fleet.hold("create")
    made = asyncio.create_task(create(world))
    await world.fleet.arrived["create"].wait()
    await world.services.sandboxes.delete("a")
    gate.set()
    await made


async def waits_and_is_left(world: World) -> None:
    ceiling = PoolCeiling(pool="cpu", shape=LARGE, runtimes=["runsc"], isolations=["gvisor"], max_nodes=3)
    await world.services.capacity.set_ceilings(Ceilings(pools=[ceiling]))
    waiting = asyncio.create_task(create(world))
    await world.until("a", S.PENDING)
    assert await holders(world) == {"a"}
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


FAILURES = [image_is_missing, nobody_waits_any_longer, deleted_while_it_waits, deleted_while_it_is_created]


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_create_that_never_ran_gives_its_unit_back_and_takes_one_again(
    here: World, failure: Callable[[World], Awaitable[None]]
) -> None:
    await prepare(here, 2)
    await failure(here)
    assert (await unclaimed(here), await holders(here)) == (2, set())
    assert await create(here) is None
    assert (await unclaimed(here), await holders(here)) == (1, {"a"})


@pytest.mark.parametrize("image", ["busybox", "other"])
async def test_an_id_that_is_used_again_keeps_its_unit(here: World, image: str) -> None:
    await here.join()
    await prepare(here, 2)
    for _ in range(3):
        assert await create(here) is None
        await here.services.sandboxes.delete("a")
    assert await create(here, image=image) is None
    assert await unclaimed(here) == 1


async def test_an_id_that_is_used_again_for_another_shape_takes_another_unit(here: World) -> None:
    await here.join()
    await prepare(here, 2)
    await prepare(here, 2, id="larger", memory_mb=1024)
    assert await create(here) is None
    await here.services.sandboxes.delete("a")
    assert await create(here, memory_mb=1024) is None
    assert await unclaimed(here) == 2, "the unit of the first life was used, and stays used"


async def test_a_refusal_of_a_node_changes_no_unit(here: World) -> None:
    await here.join("vm-1")
    await here.join("vm-2")
    await prepare(here, 2)
    here.fleet.fail("create", ApiError(ErrorCode.NODE_REFUSED, "draining"))
    assert await create(here) is None
    assert (await unclaimed(here), await holders(here)) == (1, {"a"})


async def test_a_restart_that_fails_keeps_the_unit(here: World) -> None:
    await here.join()
    await prepare(here, 2)
    assert await create(here) is None
    here.fleet.fail("create", ApiError(ErrorCode.START_ERROR, "broken"))
    with refused(ErrorCode.START_ERROR):
        await here.services.sandboxes.restart("a")
    assert (await unclaimed(here), await holders(here)) == (1, {"a"})


@pytest.mark.parametrize("replaced", [True, False])
async def test_nothing_is_given_back_to_units_that_were_replaced_or_deleted(here: World, replaced: bool) -> None:
    await here.join()
    await prepare(here, 1)
    gate = here.fleet.hold("create")
    here.fleet.fail("create", ApiError(ErrorCode.START_ERROR, "broken"))
    made = asyncio.create_task(create(here))
    await here.fleet.arrived["create"].wait()
    if replaced:
        await prepare(here, 5)
    else:
        assert await here.services.prepared.delete(PreparedKind.SANDBOX, "burst") is None, "no unit was unclaimed"
    gate.set()
    assert await made is not None
    assert await unclaimed(here) == (5 if replaced else 0)


async def test_at_expiry_nothing_is_claimed_and_nothing_given_back(here: World) -> None:
    await here.join()
    await prepare(here, 3, ttl_seconds=10)
    gate = here.fleet.hold("create")
    here.fleet.fail("create", ApiError(ErrorCode.START_ERROR, "broken"))
    failing = asyncio.create_task(create(here))
    await here.fleet.arrived["create"].wait()
    here.manual_clock.advance(10)
    late = asyncio.create_task(create(here, "late"))
    await here.until("late", S.CREATING)
    gate.set()
    assert [(await failing) is None, (await late) is None] == [False, True]
    assert (await unclaimed(here), await holders(here)) == (0, set())


async def test_a_hundred_creates_claim_sixty_units_once(here: World) -> None:
    await here.join(total=LARGE)
    await prepare(here, PREPARED)
    names = [f"s{number}" for number in range(CREATES)]
    assert await create_all(here, names * 2) == [None] * 2 * CREATES
    assert (await unclaimed(here), len(await holders(here))) == (0, PREPARED)


async def test_two_gateways_claim_sixty_units_once(tmp_path: Path, database_url: str | None) -> None:
    url, fleet = database_url or f"sqlite:///{tmp_path / 'shared.db'}", Fleet()
    async with (
        world(settings_for(tmp_path / "1", url), fleet) as one,
        world(settings_for(tmp_path / "2", url), fleet) as two,
    ):
        await one.join(total=LARGE)
        await prepare(one, PREPARED)
        fleet.fail("create", *[ApiError(ErrorCode.START_ERROR, "broken")] * 30)
        names = [f"s{number}" for number in range(CREATES)]
        left, right = await asyncio.gather(create_all(one, names[::2]), create_all(two, names[1::2]))
        assert sum(error is not None for error in left + right) == 30
        held = len(await holders(one))
        assert held + await unclaimed(two) == PREPARED


async def test_units_are_counted_correctly_across_crashes(tmp_path: Path, database_url: str | None) -> None:
    """Gateways are dropped in the middle of a burst of which every third create fails at first."""
    settings, fleet = settings_for(tmp_path, database_url), Fleet()
    fleet.fail("create", *([ApiError(ErrorCode.START_ERROR, "broken"), "lost", "cut"] * 15))
    names = [f"s{number}" for number in range(CREATES)]
    for life in range(5):
        services = build(settings, fleet, SystemClock())
        await services.__aenter__()
        here = World(services, fleet, SystemClock(), settings)
        if life == 0:
            await here.join(total=LARGE)
            await prepare(here, PREPARED)
        else:
            assert await unclaimed(here) + len(await holders(here)) == PREPARED
        burst = [asyncio.create_task(create(here, name)) for name in names]
        done = 0
        while done < 15:
            finished, _ = await asyncio.wait([task for task in burst if not task.done()], return_when="FIRST_COMPLETED")
            done += len(finished)
        for task in burst:
            task.cancel()
        await asyncio.gather(*burst, return_exceptions=True)
        await drop(services)
    async with world(settings, fleet, SystemClock()) as here:
        for name, error in zip(names, await create_all(here, names), strict=True):
            if error is not None:
                await here.services.sandboxes.delete(name)
                assert await create(here, name) is None
        assert len(await holders(here)) == PREPARED
        assert await unclaimed(here) == 0
