"""What instances cost."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

from autoscaler.core import cost
from autoscaler.core.states import IntentState
from tests.unit.autoscaler.builders import an_intent


def test_a_started_hour_counts_in_full_and_only_of_this_month() -> None:
    noon = datetime(2030, 5, 1, 12, tzinfo=UTC).timestamp()
    row = an_intent(IntentState.READY, price=Decimal(1), created_at=noon - 86_400)
    assert cost.cost(row, noon) == 12
    assert cost.cost(replace(row, created_at=noon - 10), noon) == 1


def test_what_was_never_made_costs_nothing() -> None:
    row = an_intent(IntentState.CALLING, price=Decimal(1), instance_id=None)
    assert cost.cost(row, row.created_at + 10) == 0


def test_one_unknown_price_makes_the_rate_unknown() -> None:
    rows = [an_intent(IntentState.READY, number, price=Decimal("0.5")) for number in (1, 2)]
    assert cost.rate(rows) == 1
    assert cost.rate([*rows, an_intent(IntentState.READY, 3)]) is None
