"""One rule for every pool: whoever holds little gets in, whatever the others do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.shares import RESERVE, FairPace, FairPool, Holder, ShareOf


def fill(pool: FairPool, holder: Holder) -> int:
    """Take until the pool refuses; return how much that was."""
    taken = 0
    while pool.take(holder) is None:
        taken += 1
    return taken


def test_one_holder_alone_gets_half_of_what_is_not_reserved() -> None:
    assert fill(FairPool(400), Holder("greedy")) == 150
    assert fill(FairPool(400), Holder("greedy", "box")) == 56


@given(st.integers(8, 500), st.integers(1, 3))
def test_greedy_tenants_never_shut_a_newcomer_out(capacity: int, least: int) -> None:
    pool = FairPool(capacity, least)
    for number in range(capacity // RESERVE // least):
        for sandbox in range(3):
            fill(pool, Holder(f"greedy-{number}", f"box-{sandbox}"))
        newcomer = Holder("newcomer", "box")
        assert [pool.take(newcomer) for _ in range(least)] == [None] * least
        pool.give(newcomer, least)


def test_a_greedy_sandbox_never_shuts_its_tenants_others_out() -> None:
    pool = FairPool(400)
    for number in range(30):
        fill(pool, Holder("tenant", f"greedy-{number}"))

    assert pool.take(Holder("tenant", "newcomer")) is None


def test_a_refusal_tells_whose_share_is_used_up() -> None:
    pool = FairPool(8)
    fill(pool, Holder("a", "1"))
    assert pool.take(Holder("a", "1")) is ShareOf.SANDBOX
    fill(pool, Holder("a", "2"))
    fill(pool, Holder("a", "3"))
    assert pool.take(Holder("a", "4")) is ShareOf.TENANT
    for number in range(8):
        fill(pool, Holder(f"t{number}"))
    assert pool.take(Holder("z")) is ShareOf.POOL


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12"), st.integers(1, 40)), max_size=60), st.data())
def test_what_is_taken_is_within_the_pool_and_comes_back(
    wishes: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    pool = FairPool(100, 5)
    taken: list[tuple[Holder, int]] = []
    for tenant, sandbox, units in wishes:
        holder = Holder(tenant, sandbox)
        if pool.take(holder, units) is None:
            taken.append((holder, units))
        if taken and data.draw(st.booleans()):
            pool.give(*taken.pop())
        assert pool.total == sum(units for _, units in taken) <= 100
        assert pool.held(holder) == sum(units for other, units in taken if other == holder)
    for holder, units in taken:
        pool.give(holder, units)
    assert (pool.total, pool.largest()) == (0, None)


@pytest.mark.parametrize("units", [1, 30])
def test_the_largest_is_found(units: int) -> None:
    pool = FairPool(1000)
    pool.take(Holder("a", "1"), 40)
    pool.take(Holder("b", "1"), 30)
    pool.take(Holder("b", "2"), 30 + units)

    assert pool.largest() == Holder("b", "2")


def test_who_is_fast_pauses_and_others_do_not() -> None:
    pace = FairPace(rate=10, burst=20)
    fast, slow = Holder("fast"), Holder("slow")

    assert [pace.pause(fast, 10, 100.0) for _ in range(4)] == [0.0, 0.0, 1.0, 2.0]
    assert pace.pause(slow, 10, 100.0) == 0.0
    assert pace.pause(fast, 10, 105.0) == 0.0
