"""The lower bound: right where it can be computed by hand, and proved by its own certificate everywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.bound import best_worth
from simulator.trace import Amounts


def worth_of(work: Amounts, worth: Amounts) -> float:
    return sum(each * amount for each, amount in zip(work, worth, strict=True))


@pytest.mark.parametrize(
    ("gives", "prices", "work", "least"),
    [
        ([(4.0, 8.0)], [1.0], (4.0, 4.0), 1.0),  # the scarce resource decides
        ([(4.0, 8.0)], [1.0], (2.0, 8.0), 1.0),
        ([(4.0, 8.0), (8.0, 16.0)], [1.0, 1.5], (8.0, 16.0), 1.5),  # the cheaper offer for its size
        ([(4.0, 2.0), (2.0, 4.0)], [1.0, 1.0], (6.0, 6.0), 2.0),  # one of each
        ([(4.0, 8.0)], [1.0], (0.0, 0.0), 0.0),
    ],
)
def test_the_bound_is_the_cheapest_fractional_fleet(
    gives: list[Amounts], prices: list[float], work: Amounts, least: float
) -> None:
    assert worth_of(work, best_worth(gives, prices, work)) == pytest.approx(least)


def test_work_that_no_offer_can_do_has_no_bound() -> None:
    with pytest.raises(ValueError, match="no offer gives"):
        best_worth([(4.0, 0.0)], [1.0], (1.0, 1.0))


amount = st.floats(min_value=0.5, max_value=1e6)
price = st.floats(min_value=0.01, max_value=10)


@settings(deadline=None)
@given(
    offers=st.lists(st.tuples(st.tuples(amount, amount, amount), price), min_size=1, max_size=6),
    bought=st.lists(st.floats(min_value=0, max_value=100), min_size=6, max_size=6),
    used=st.tuples(*[st.floats(min_value=0, max_value=1)] * 3),
)
def test_no_fleet_is_cheaper_than_the_bound(
    offers: list[tuple[Amounts, float]], bought: list[float], used: Amounts
) -> None:
    """Whatever is bought, and whatever part of it is used: the bill is not below the bound of the work done."""
    gives, prices = [row for row, _ in offers], [cost for _, cost in offers]
    hours = bought[: len(offers)]
    work = tuple(used[r] * sum(h * row[r] for h, row in zip(hours, gives, strict=True)) for r in range(3))
    worth = best_worth(gives, prices, work)
    assert all(each >= 0 for each in worth)
    for row, cost in offers:
        assert worth_of(row, worth) <= cost * (1 + 1e-6), "an instance is worth more than it costs: no proof"
    assert worth_of(work, worth) <= sum(h * cost for h, cost in zip(hours, prices, strict=True)) * (1 + 1e-6) + 1e-9
