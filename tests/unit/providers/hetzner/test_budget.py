"""The reserve: what may still be asked when the budget runs low."""

import pytest

from providers.base import Applied, Deleted, ErrorKind, ProviderError, Ref
from providers.rate_limit import Budget, Need
from tests.unit.providers.hetzner.lab import Lab, order


@pytest.mark.parametrize(
    ("left", "open_"),
    [
        (1000, {Need.OPTIONAL, Need.CREATE, Need.LIST, Need.DELETE}),
        (700, {Need.CREATE, Need.LIST, Need.DELETE}),
        (400, {Need.LIST, Need.DELETE}),
        (100, {Need.DELETE}),
        (0, set()),
    ],
)
def test_what_matters_more_goes_on_longer(left: int, open_: set[Need]) -> None:
    budget = Budget(600, lambda: 0.0)
    budget.note({"RateLimit-Limit": "3600", "RateLimit-Remaining": str(left)})
    assert {need for need in Need if budget.wait(need) == 0} == open_


def test_the_wait_is_until_the_reserve_is_there_and_not_until_the_bucket_is_full() -> None:
    now = 0.0
    budget = Budget(600, lambda: now)
    budget.note({"RateLimit-Limit": "3600", "RateLimit-Remaining": "500", "RateLimit-Reset": "1900000000"})
    assert budget.wait(Need.CREATE) == pytest.approx(101)
    now = 100.0
    with pytest.raises(ProviderError) as caught:
        budget.require(Need.CREATE)
    assert caught.value.retry_after == pytest.approx(1)
    now = 101.0
    budget.require(Need.CREATE)


def test_nothing_is_refused_before_anything_is_known() -> None:
    budget = Budget(600, lambda: 0.0)
    budget.note({"RateLimit-Remaining": "many"})
    budget.require(Need.OPTIONAL)


def test_a_small_budget_keeps_a_quarter_at_most() -> None:
    budget = Budget(600, lambda: 0.0)
    budget.note({"RateLimit-Limit": "400", "RateLimit-Remaining": "150"})
    assert budget.wait(Need.CREATE) == 0
    assert budget.wait(Need.OPTIONAL) == pytest.approx(9)


def test_deletes_go_on_in_the_reserve(lab: Lab) -> None:
    provider = lab.provider()
    made = provider.create(order())
    lab.cloud.ask("budget", left=10)
    provider.list()
    before = lab.cloud.audit()["calls"]
    for call in (provider.offers, provider.list, lambda: provider.create(order(2)), lambda: provider.get(Ref(id="1"))):
        with pytest.raises(ProviderError) as caught:
            call()
        assert (caught.value.kind, caught.value.applied) == (ErrorKind.RATE_LIMIT, Applied.NO)
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 0
    assert lab.cloud.audit()["calls"] == before, "it asked all the same"
    assert provider.delete(Ref(id=made.id)) is Deleted.ACCEPTED


def test_the_budget_comes_back_with_time(lab: Lab) -> None:
    provider = lab.provider()
    lab.cloud.ask("budget", left=0)
    with pytest.raises(ProviderError) as caught:
        provider.create(order())
    assert caught.value.retry_after == pytest.approx(601)
    lab.advance(602)
    provider.create(order())


def test_looking_for_leftovers_waits_while_calls_are_scarce(lab: Lab) -> None:
    lab.cloud.ask("budget", left=800)
    provider = lab.provider()
    provider.list()
    before = lab.cloud.audit()["calls"]
    provider.list()
    assert lab.cloud.audit()["calls"] == before + 1
