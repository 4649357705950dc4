"""Packing against first fit one by one, against the best there is, and inside `plan`."""

import copy
import itertools
import math
import os
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core import packing
from autoscaler.core.actions import Boot
from autoscaler.core.packing import Bin, Group, Vector, fits, grouped, items, largest, largest_first, pack, vector
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy, OfferKey, PoolPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import DemandItem, Intent, ProviderView, World
from gateway.wire.resources import Shape
from providers.base import Offer, Resources
from tests.unit.autoscaler.builders import CAPS, NOW, ONE

EXAMPLES = int(os.environ.get("SANDBOXES_SOAK_EXAMPLES", "300"))
RUNSC, BOTH = frozenset({"runsc"}), frozenset({"runsc", "docker"})
GVISOR = frozenset({"gvisor"})

amounts = st.tuples(
    st.integers(0, 32).map(lambda n: n / 4), st.integers(0, 40), st.integers(0, 9), st.integers(0, 2), st.integers(1, 5)
)
shapes = st.builds(
    lambda cpus, memory, gpus: Shape(cpus=cpus / 4, memory_mb=memory, disk_mb=1, gpus=gpus, slots=1),
    st.integers(1, 16),
    st.integers(1, 20),
    st.sampled_from([0, 0, 0, 1]),
)
waitings = st.builds(
    DemandItem,
    shapes,
    runtime=st.sampled_from([None, None, "runsc", "docker"]),
    count=st.integers(1, 6),
    pool=st.sampled_from([None, None, "p"]),
)
bins = st.builds(
    Bin,
    name=st.just("n"),
    free=amounts,
    runtimes=st.sampled_from([RUNSC, BOTH]),
    isolations=st.just(GVISOR),
    pool=st.sampled_from(["p", "q"]),
)


def one_by_one(groups: list[Group], row: list[Bin]) -> list[int]:
    """Pack first fit, a sandbox at a time, and return how many of each group are left."""
    kinds = list(dict.fromkeys((each.free[3] > 0, each.runtimes, each.pool) for each in row))
    kinds.sort(key=lambda kind: kind[0])
    ordered = sorted(row, key=lambda each: kinds.index((each.free[3] > 0, each.runtimes, each.pool)))
    left = []
    for group in groups:
        placed = 0
        for _ in range(group.count):
            taker = next((b for b in ordered if b.welcomes(group.item) and fits(group.need, b.free)), None)
            if taker is None:
                break
            taker.put(group.need, 1)
            placed += 1
        left.append(group.count - placed)
    return left


@pytest.mark.parametrize("levels", [1, 2, packing.LEVELS])
@given(waiting=st.lists(waitings, max_size=12), row=st.lists(bins, max_size=8))
def test_packing_matches_one_by_one_first_fit(levels: int, waiting: list[DemandItem], row: list[Bin]) -> None:
    groups = largest_first(grouped(waiting), largest(each.free for each in row))
    plain, before = copy.deepcopy(row), copy.deepcopy(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LEVELS", levels)
        left = pack(groups, row)
    expected = [(g.item, count) for g, count in zip(groups, one_by_one(groups, plain), strict=True) if count]
    assert [(group.item, group.count) for group in left] == expected, "what is left is left in the same order"
    for packed, other in zip(row, plain, strict=True):
        assert packed.free == pytest.approx(other.free)
        assert packed.taken == other.taken
        assert min(packed.free) >= 0
    _add_up(groups, left, before, row)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("levels", [1, 3, packing.LEVELS])
@settings(max_examples=10 * EXAMPLES, deadline=None)
@given(waiting=st.lists(waitings, max_size=40), row=st.lists(bins, max_size=30))
def test_packing_matches_one_by_one_first_fit_for_long(levels: int, waiting: list[DemandItem], row: list[Bin]) -> None:
    test_packing_matches_one_by_one_first_fit.hypothesis.inner_test(levels, waiting, row)  # type: ignore[attr-defined]


def _add_up(groups: list[Group], left: list[Group], before: list[Bin], after: list[Bin]) -> None:
    """Check that what was taken from the bins is what was put into them."""
    remaining = {id(group.item): group.count for group in left}
    for resource in range(5):
        put = sum(group.need[resource] * (group.count - remaining.get(id(group.item), 0)) for group in groups)
        taken = sum(a.free[resource] - b.free[resource] for a, b in zip(before, after, strict=True))
        assert taken == pytest.approx(put)


def fewest(sizes: list[int], room: int) -> int:
    """Return the fewest bins, by trying every way."""
    best = len(sizes)

    def place(rest: list[int], free: list[int]) -> None:
        nonlocal best
        if len(free) >= best:
            return
        if not rest:
            best = len(free)
            return
        for at in {have: place_ for place_, have in enumerate(free) if have >= rest[0]}.values():
            place(rest[1:], [have - rest[0] if each == at else have for each, have in enumerate(free)])
        place(rest[1:], [*free, room - rest[0]])

    place(sorted(sizes, reverse=True), [])
    return best


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=9))
def test_packing_stays_within_the_bound_of_first_fit_decreasing(sizes: list[int]) -> None:
    """Hold the known bound of first fit decreasing on one resource: 11/9 of the best and 6/9."""
    room = 30
    row = [Bin(f"n{n}", _only(room), RUNSC, GVISOR) for n in range(len(sizes))]
    waiting = [DemandItem(Shape(cpus=0.1, memory_mb=size, slots=1)) for size in sizes]
    assert not pack(largest_first(grouped(waiting), largest(each.free for each in row)), row)
    assert sum(each.used for each in row) <= math.floor(11 / 9 * fewest(sizes, room) + 6 / 9)


def _only(memory: int) -> Vector:
    return vector(Shape(cpus=1000, memory_mb=memory, disk_mb=0, slots=1000))


# -- single rules -----------------------------------------------------------------------------------------------------


def packed(waiting: list[DemandItem], row: list[Bin]) -> list[DemandItem]:
    return items(pack(largest_first(grouped(waiting), largest(each.free for each in row)), row))


def a_bin(name: str = "n", **shape: float) -> Bin:
    return Bin(name, vector(Shape.model_validate(shape)), RUNSC, GVISOR)


def test_packing_takes_the_largest_first_and_all_resources_count() -> None:
    big = DemandItem(Shape(cpus=3, memory_mb=10, slots=1))
    small = DemandItem(Shape(cpus=1, memory_mb=1, slots=1))
    room = a_bin(cpus=4, memory_mb=100, slots=2)
    assert packed([small, small, big], [room]) == [small]
    assert room.used


def test_a_runtime_that_was_asked_for_must_be_there() -> None:
    assert packed([DemandItem(Shape(cpus=1, slots=1), runtime="docker")], [a_bin(cpus=4, memory_mb=100, slots=2)])


def test_many_equal_ones_are_put_in_at_once_and_gpus_stay_free_for_who_needs_them() -> None:
    gpu = a_bin("gpu", cpus=8, memory_mb=8192, disk_mb=99_999, gpus=1, slots=9)
    plain = a_bin("plain", cpus=8, memory_mb=8192, disk_mb=99_999, slots=9)
    left = pack(grouped([DemandItem(ONE, count=8)]), [gpu, plain])
    assert (left, plain.free[0], gpu.used) == ([], 0.0, False)
    assert items(pack(grouped([DemandItem(ONE, count=9)]), [gpu])) == [DemandItem(ONE, count=1)]


# -- inside a plan ----------------------------------------------------------------------------------------------------

OFFERS = (
    Offer("small", "here", Resources(4, 24, 12), Decimal("0.01"), available=True),
    Offer("large", "here", Resources(8, 40, 12), Decimal("0.02"), available=True),
    Offer("gpu", "here", Resources(8, 40, 12, gpus=2), Decimal("0.5"), available=True),
)


def a_pool(name: str, *types: str, most: int = 100) -> PoolPolicy:
    return PoolPolicy(
        name=name,
        provider="cloud",
        role="sandbox",
        min=0,
        max=most,
        offers=tuple(OfferKey(each, "here") for each in types),
        max_in_flight=100,
        cpu_overcommit=1.0,
        reserve_memory_mb=0,
        reserve_disk_mb=0,
    )


POLICY = FleetPolicy(
    "t", (a_pool("p", "small", "large"), a_pool("q", "large"), a_pool("gpus", "gpu")), creates_per_tick=100
)


def a_world(waiting: list[DemandItem]) -> World:
    view = ProviderView(CAPS, (), taken_at=NOW, offers=OFFERS)
    return World(providers={"cloud": view}, nodes=(), waiting=tuple(waiting))


def applied(world: World, boots: list[Boot], ids: "itertools.count[int]") -> World:
    """Return the world in which these were ordered and are on their way."""
    rows = []
    for each in boots:
        operation = f"op{next(ids):06d}"
        row = Intent(
            operation_id=operation,
            pool=each.pool,
            provider="cloud",
            name=operation,
            type=each.offer.type,
            location=each.offer.location,
            state=IntentState.BOOTING,
            created_at=NOW,
            changed_at=NOW,
            deadline=NOW + 300,
        )
        rows.append(row)
    return replace(world, intents=(*world.intents, *rows))


def boots_of(world: World, policy: FleetPolicy = POLICY) -> list[Boot]:
    return [action for action in plan(world, policy, NOW).actions if isinstance(action, Boot)]


@settings(max_examples=200)
@given(waiting=st.lists(waitings, max_size=10))
def test_a_plan_is_the_same_every_time(waiting: list[DemandItem]) -> None:
    first, second = (plan(a_world(each), POLICY, NOW) for each in (waiting, copy.deepcopy(waiting)))
    assert repr(first) == repr(second), "reasons included"


@settings(max_examples=200)
@given(waiting=st.lists(waitings, max_size=10))
def test_one_plan_orders_enough(waiting: list[DemandItem]) -> None:
    """Carry a plan out: the next one orders nothing."""
    policy = replace(POLICY, pools=POLICY.pools[:1])
    world = a_world(waiting)
    after = applied(world, boots_of(world, policy), itertools.count())
    assert boots_of(after, policy) == []


@pytest.mark.parametrize("creates", [2, 100])
@settings(max_examples=100)
@given(waiting=st.lists(waitings, min_size=1, max_size=10))
def test_plans_come_to_an_end(creates: int, waiting: list[DemandItem]) -> None:
    """Plan on and on, in several pools: in the end nothing is ordered, and never more than one node a sandbox.

    One plan is not always enough: what is on its way is packed pool by pool, what is new in the order of its need.
    """
    policy, ids = replace(POLICY, creates_per_tick=creates), itertools.count()
    world = a_world(waiting)
    while boots := boots_of(world, policy):
        world = applied(world, boots, ids)
        assert len(world.intents) <= sum(each.count for each in waiting)
