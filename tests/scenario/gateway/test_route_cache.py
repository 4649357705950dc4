"""Calls over cached routes: no read of the store, and never the wrong sandbox."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway.core.model import Route
from gateway.errors import ApiError
from gateway.services import route_cache
from gateway.services.assembly import build
from gateway.store.calls import BoundedCalls
from gateway.store.db import Database
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import JoinTokenRequest
from gateway.wire.states import DeathReason, SandboxState
from tests.scenario.gateway.world import (
    FakeNode,
    Fleet,
    ManualClock,
    World,
    refused,
    registration,
    settings_for,
    spec,
    world,
)

T = TypeVar("T")
S = SandboxState


class WatchedDatabase(Database):
    """A real database that counts what is asked of it, and whose answers can be held back."""

    transactions = 0
    held: asyncio.Event | None = None
    answered: asyncio.Event | None = None

    async def _run(self, threads: BoundedCalls, fn: Callable[[Any], T], reserved: bool = False) -> T:
        self.transactions += 1
        held, self.held = self.held, None
        answer = await super()._run(threads, fn, reserved)
        if held is not None:
            assert self.answered is not None
            self.answered.set()
            await held.wait()
        return answer


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncIterator[tuple[World, WatchedDatabase]]:
    settings, fleet, clock = settings_for(tmp_path), Fleet(), ManualClock()
    async with build(settings, fleet, clock, open_database=WatchedDatabase.open) as services:
        db = services.internals.db
        assert isinstance(db, WatchedDatabase)
        yield World(services, fleet, clock, settings), db


def sender(world: World, sent: list[Route] | None = None) -> Callable[[Route], Awaitable[int]]:
    """Return a call to the node of a route, which answers as a node agent does: with the generation that did it."""

    async def send(route: Route) -> int:
        if sent is not None:
            sent.append(route)
        item = world.fleet.nodes[route.node.node_id].have.get(route.sandbox_id)
        if item is None or item.generation < route.generation:
            raise ApiError(ErrorCode.SANDBOX_NOT_FOUND, "not on this node")
        if item.generation > route.generation:
            raise ApiError(ErrorCode.CONFLICT, "a newer generation is here")
        if item.state is not S.RUNNING:
            raise ApiError(ErrorCode.SANDBOX_NOT_RUNNING, "paused, or over")
        return item.generation

    return send


async def call(world: World, **fields: Any) -> int:
    return await world.services.sandboxes.call("a", sender(world), **fields)


async def test_only_the_first_call_reads_the_store_until_the_route_expires(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, db):
        await here.join()
        await here.services.sandboxes.create(spec())
        await call(here)
        before = db.transactions
        assert [await call(here) for _ in range(50)] == [1] * 50
        assert db.transactions == before
        here.manual_clock.advance(route_cache.TTL)
        await call(here)
        assert db.transactions == before + 1


async def test_calls_over_cached_routes_count_as_activity(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec(idle_seconds=3))
    await call(here)
    here.manual_clock.advance(1.5)
    await call(here)
    here.manual_clock.advance(2)
    await here.beat(node)
    assert await here.state("a") is S.RUNNING


async def paused(here: World, node: FakeNode) -> int:
    await here.services.sandboxes.pause("a")
    return 1


async def restarted(here: World, node: FakeNode) -> int:
    await here.services.sandboxes.restart("a")
    return 2


async def recreated(here: World, node: FakeNode) -> int:
    await here.services.sandboxes.delete("a")
    await here.services.sandboxes.create(spec())
    return 2


async def moved_node(here: World, node: FakeNode) -> int:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance=node.instance, pool="cpu"))
    request = registration(node).model_copy(update={"node_url": "http://127.0.0.2:9999"})
    await here.services.nodes.register(token.token, request)
    return 1


@pytest.mark.parametrize("change", [paused, restarted, recreated, moved_node])
async def test_after_a_change_the_first_call_takes_the_right_route(
    here: World, change: Callable[[World, FakeNode], Awaitable[int]]
) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await call(here)
    expected = await change(here, node)
    sent: list[Route] = []
    assert await here.services.sandboxes.call("a", sender(here, sent)) == expected
    assert len(sent) == 1, "nothing outdated was tried first"
    assert sent[0] == await here.services.sandboxes.route("a")


@pytest.mark.parametrize("end", ["deleted", "died", "node removed"])
async def test_after_its_end_the_first_call_is_refused_with_the_reason(here: World, end: str) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await call(here)
    if end == "deleted":
        await here.services.sandboxes.delete("a")
    elif end == "died":
        here.die(node, "a", DeathReason.OOM, 137)
        await here.beat(node)
    else:
        here.die(node, "a", DeathReason.OOM, 137)
        await here.beat(node)
        await here.services.nodes.remove(node.node_id)
    sent: list[Route] = []
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.call("a", sender(here, sent))
    assert sent == []
    expected = ErrorCode.SANDBOX_NOT_FOUND if end == "deleted" else ErrorCode.SANDBOX_NOT_RUNNING
    assert caught.value.code is expected
    assert caught.value.details["reason"] == ("deleted" if end == "deleted" else "oom")


async def test_a_session_of_an_earlier_generation_is_refused_despite_a_cached_route(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    await here.services.sandboxes.restart("a")
    assert await call(here, generation=2) == 2
    with pytest.raises(ApiError) as caught:
        await call(here, generation=1)
    assert caught.value.code is ErrorCode.EXEC_LOST


async def test_what_was_read_before_a_change_is_not_kept_after_it(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, db):
        await here.join()
        await here.services.sandboxes.create(spec())
        db.held, db.answered = asyncio.Event(), asyncio.Event()
        held = db.held
        reading = asyncio.create_task(here.services.sandboxes.route("a"))
        await db.answered.wait()
        await here.services.sandboxes.restart("a")
        held.set()
        assert (await reading).generation == 1, "it was right when it was read"
        sent: list[Route] = []
        assert await here.services.sandboxes.call("a", sender(here, sent)) == 2
        assert [route.generation for route in sent] == [2]


async def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_cache, "MAX_ROUTES", 2)
    async with watched(tmp_path) as (here, db):
        await here.join()
        for name in ("a", "b", "c"):
            await here.services.sandboxes.create(spec(name))
            await here.services.sandboxes.call(name, sender(here))
        before = db.transactions
        for name in ("c", "b"):
            await here.services.sandboxes.call(name, sender(here))
        assert db.transactions == before
        await here.services.sandboxes.call("a", sender(here))
        assert db.transactions == before + 1


async def test_a_call_whose_outcome_is_unknown_is_not_sent_again(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    await call(here)
    sent: list[Route] = []

    async def send(route: Route) -> None:
        sent.append(route)
        raise ApiError(ErrorCode.NODE_UNREACHABLE, "the connection broke", retryable=False)

    with refused(ErrorCode.NODE_UNREACHABLE):
        await here.services.sandboxes.call("a", send)
    assert len(sent) == 1


async def test_a_refusal_over_a_correct_route_is_passed_on(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await call(here)
    del node.have["a"]
    sent: list[Route] = []
    with refused(ErrorCode.SANDBOX_NOT_FOUND):
        await here.services.sandboxes.call("a", sender(here, sent))
    assert len(set(sent)) == 1


@pytest.mark.parametrize("change", [paused, restarted, recreated])
async def test_a_change_by_another_gateway_costs_at_most_one_refused_call(
    tmp_path: Path, database_url: str | None, change: Callable[[World, FakeNode], Awaitable[int]]
) -> None:
    url, fleet, clock = database_url or f"sqlite:///{tmp_path / 'shared.db'}", Fleet(), ManualClock()
    async with (
        world(settings_for(tmp_path / "1", url), fleet, clock) as one,
        world(settings_for(tmp_path / "2", url), fleet, clock) as two,
    ):
        node = await one.join("vm-1")
        await one.services.sandboxes.create(spec())
        assert await call(one) == 1
        await one.join("vm-2")
        await one.services.nodes.drain(node.node_id, draining=True)
        expected = await change(two, node)
        sent: list[Route] = []
        assert await one.services.sandboxes.call("a", sender(one, sent)) == expected
        # On PostgreSQL the notice of the other gateway may be quicker.
        assert len(sent) == 2 or (database_url is not None and len(sent) == 1)
        assert await call(one) == expected
