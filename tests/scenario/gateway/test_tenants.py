"""What one tenant has is not another's, and no tenant gets more than its quota, however many ask at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.policy import Quota
from gateway.errors import ApiError
from gateway.services.scheduler import CreateTerms
from gateway.wire.capacity import BuilderPrepareRequest, PrepareRequest
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import DeathReason, SandboxState
from tests.scenario.gateway.world import Fleet, ManualClock, World, refused, settings_for, spec, world

S = SandboxState
ROOMY = Shape(cpus=1000, memory_mb=1 << 20, disk_mb=1 << 24, slots=1000)
SMALL = {"cpus": 1.0, "memory_mb": 512, "disk_mb": 1024}


def terms(tenant: str = "acme", wait_seconds: float = 0.0, **quota: float) -> CreateTerms:
    return CreateTerms(tenant=tenant, wait_seconds=wait_seconds, quota=Quota.model_validate(quota))


async def create(world: World, name: str, given: CreateTerms, **fields: object) -> ErrorCode | None:
    """Create a sandbox, waiting for nothing; return the code of the refusal, if it was one."""
    try:
        await world.services.sandboxes.create(spec(name, **{**SMALL, **fields}), given)
    except ApiError as error:
        return error.code
    return None


async def names(world: World, tenant: str | None = None) -> list[str]:
    page = await world.services.sandboxes.page(tenant=tenant)
    return [record.id for record in page.sandboxes]


async def test_two_tenants_use_the_same_ids(here: World) -> None:
    node = await here.join(total=ROOMY)
    for tenant in ("default", "acme", "beta"):
        answer = await here.services.sandboxes.create(spec(labels={"k": "v"}), CreateTerms(tenant=tenant))
        assert (answer.sandbox.tenant, answer.recovered) == (tenant, False)
    assert set(node.have) == {"a", "acme..a", "beta..a"}
    assert sorted(await names(here)) == ["a", "acme..a", "beta..a"]
    assert await names(here, "acme") == ["acme..a"]
    record = await here.services.sandboxes.delete("acme..a")
    assert record is not None
    assert set(node.have) == {"a", "beta..a"}
    assert await here.state("beta..a") is S.RUNNING


async def test_only_its_own_tenant_claims_a_prepared_unit(here: World) -> None:
    await here.join(total=ROOMY)
    request = PrepareRequest.model_validate({"id": "burst", "count": 2, **SMALL})
    for tenant in ("acme", "beta"):
        await here.services.prepared.prepare(request, tenant)
    await create(here, "a", CreateTerms(tenant="acme", wait_seconds=1))
    await create(here, "a", CreateTerms(tenant="gamma", wait_seconds=1))
    assert [one.count for one in (await here.services.capacity.demand("acme")).prepared] == [1]
    assert [one.count for one in (await here.services.capacity.demand("beta")).prepared] == [2]
    assert (await here.services.capacity.demand("gamma")).prepared == []


async def test_demand_of_a_tenant_is_its_own(here: World) -> None:
    for tenant in ("default", "acme"):
        assert await create(here, "a", terms(tenant)) is ErrorCode.NO_ROOM
    assert [one.sandbox_id for one in (await here.services.capacity.demand("acme")).waiting] == ["acme..a"]
    assert (await here.services.capacity.demand()).pending_count == 2


@pytest.mark.parametrize(
    ("key", "limit"), [("sandboxes", 2), ("cpus", 2.5), ("memory_mb", 1100), ("disk_mb", 2048), ("gpus", 2)]
)
async def test_a_standing_limit_counts_what_waits_too(here: World, key: str, limit: float) -> None:
    given = {"gpus": 1} if key == "gpus" else {}
    quota = {key: limit}
    codes = [await create(here, name, terms(**quota), **given) for name in "abc"]
    assert codes == [ErrorCode.NO_ROOM, ErrorCode.NO_ROOM, ErrorCode.QUOTA_EXCEEDED]
    assert await create(here, "a", terms(**quota), **given) is ErrorCode.NO_ROOM  # the same again asks for nothing more
    assert await create(here, "c", terms("beta", **quota), **given) is ErrorCode.NO_ROOM
    assert await create(here, "c", CreateTerms(tenant="acme", wait_seconds=0), **given) is ErrorCode.NO_ROOM
    await here.services.sandboxes.delete("acme..a")
    await here.services.sandboxes.delete("acme..b")
    assert await create(here, "d", terms(**quota), **given) is ErrorCode.NO_ROOM


async def test_all_gpus_of_an_unknown_node_are_more_than_any_quota(here: World) -> None:
    assert await create(here, "a", terms(gpus=8), gpus="all") is ErrorCode.QUOTA_EXCEEDED
    assert await create(here, "a", terms(gpus=8), gpus="device=all") is ErrorCode.QUOTA_EXCEEDED


async def test_all_gpus_count_while_they_are_waited_for_as_when_they_were_asked_for(here: World) -> None:
    assert await create(here, "a", terms(gpus=64), gpus="all") is ErrorCode.NO_ROOM
    assert await create(here, "b", terms(gpus=64), gpus=1) is ErrorCode.QUOTA_EXCEEDED


async def test_the_refusal_names_limit_use_and_place(here: World) -> None:
    quota = Quota().overridden({"sandboxes": 1}, "policy.toml", "tenants.acme.quota")
    given = CreateTerms(tenant="acme", wait_seconds=0, quota=quota)
    await create(here, "a", given)
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.create(spec("b"), given)
    error = caught.value
    assert (error.code, error.status, error.retryable) == (ErrorCode.QUOTA_EXCEEDED, 429, False)
    (field,) = error.details["fields"]
    assert (field.field, field.allowed) == ("sandboxes", "1")
    assert field.where == "policy.toml [tenants.acme.quota] sandboxes"


async def test_an_ended_sandbox_counts_its_disk_alone_and_restarts_within_the_quota(here: World) -> None:
    node = await here.join(total=ROOMY)
    quota = Quota(sandboxes=1, disk_mb=2048)
    assert await create(here, "a", terms(wait_seconds=1, sandboxes=1)) is None
    here.die(node, "acme..a", DeathReason.EXITED, 0)
    await here.beat(node)
    assert await create(here, "b", CreateTerms(tenant="acme", quota=quota)) is None
    with refused(ErrorCode.QUOTA_EXCEEDED):
        await here.services.sandboxes.restart("acme..a", quota)
    assert await create(here, "c", CreateTerms(tenant="acme", quota=Quota(disk_mb=2048))) is ErrorCode.QUOTA_EXCEEDED
    await here.services.sandboxes.delete("acme..b")
    assert (await here.services.sandboxes.restart("acme..a", quota)).state is S.RUNNING


async def test_creates_per_second_are_an_average_with_one_second_at_once(here: World) -> None:
    given = terms(creates_per_second=2)
    codes = [await create(here, name, given) for name in "abc"]
    assert codes == [ErrorCode.NO_ROOM, ErrorCode.NO_ROOM, ErrorCode.QUOTA_EXCEEDED]
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.create(spec("c"), given)
    assert caught.value.retryable
    assert caught.value.retry_after == pytest.approx(0.5)
    assert await create(here, "a", given) is ErrorCode.NO_ROOM
    assert await create(here, "c", terms("beta", creates_per_second=2)) is ErrorCode.NO_ROOM
    here.manual_clock.advance(0.5)
    assert await create(here, "c", given) is ErrorCode.NO_ROOM
    assert await create(here, "d", given) is ErrorCode.QUOTA_EXCEEDED
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.create(spec("e"), terms("none", creates_per_second=0))
    assert not caught.value.retryable


async def test_prepared_units_of_both_kinds_are_bounded_together(here: World) -> None:
    quota = Quota(prepared_units=3)
    units = PrepareRequest.model_validate({"id": "burst", "count": 2, **SMALL})
    await here.join(total=ROOMY)
    await here.services.prepared.prepare(units, "acme", quota)
    await here.services.prepared.prepare(units, "acme", quota)  # in the place of the first
    with refused(ErrorCode.QUOTA_EXCEEDED):
        await here.services.prepared.prepare_builders(BuilderPrepareRequest(count=2), "acme", quota)
    await here.services.prepared.prepare_builders(BuilderPrepareRequest(count=1), "acme", quota)
    await here.services.prepared.prepare_builders(BuilderPrepareRequest(count=3), "beta", quota)


@pytest.fixture
async def gateways(tmp_path: Path, database_url: str | None) -> AsyncIterator[list[World]]:
    """Two gateways where the database serves several, or one."""
    fleet, clock = Fleet(), ManualClock()
    async with world(settings_for(tmp_path / "1", database_url), fleet, clock) as one:
        if database_url is None:
            yield [one]
            return
        async with world(settings_for(tmp_path / "2", database_url), fleet, clock) as two:
            yield [one, two]


async def test_many_creates_at_once_never_exceed(gateways: list[World]) -> None:
    given = terms(sandboxes=7, creates_per_second=9)
    codes = await asyncio.gather(
        *(create(gateways[number % len(gateways)], f"s{number}", given) for number in range(40))
    )
    assert codes.count(ErrorCode.NO_ROOM) == 7
    assert codes.count(ErrorCode.QUOTA_EXCEEDED) == 33
    assert len(await names(gateways[0], "acme")) == 7
    paced = await asyncio.gather(
        *(
            create(gateways[number % len(gateways)], f"p{number}", terms("beta", creates_per_second=9))
            for number in range(40)
        )
    )
    assert paced.count(ErrorCode.NO_ROOM) == 9
