"""The part of the suite that holds a provider to its `Caps`, and to what hangs on them."""

# ruff: noqa: S101 - these are tests; they ship so that others can run them

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from providers.base import Billing, ComputeProvider, ErrorKind, Phase, Ref, Scope
from providers.testing.harness import DEPLOYMENT, USER_DATA, Harness, names, padded, phase, refusal, want


class CapsContract:
    """One half of `ProviderContract`, which has the fixtures."""

    # -- names --------------------------------------------------------------------------------------------------------

    def test_a_unique_name_is_refused_to_another_operation(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(provider.caps.unique_names, "names are not unique")
        first = provider.create(want(provider, harness))
        other = want(provider, harness, operation_id="op2")
        refusal(lambda: provider.create(other), ErrorKind.EXISTS)
        assert [instance.id for instance in provider.list().instances] == [first.id]

    def test_a_unique_name_is_refused_to_another_deployment(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(provider.caps.unique_names, "names are not unique")
        provider.create(want(provider, harness))
        foreign, order = harness.provider("other"), replace(want(provider, harness), deployment="other")
        refusal(lambda: foreign.create(order), ErrorKind.EXISTS)

    def test_a_name_that_is_not_unique_serves_each_operation(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(not provider.caps.unique_names, "names are unique")
        one, two = (provider.create(want(provider, harness, operation_id=operation)) for operation in ("op1", "op2"))
        foreign = harness.provider("other")
        third = foreign.create(replace(want(provider, harness), deployment="other"))
        assert len({one.id, two.id, third.id}) == 3
        assert {instance.id for instance in provider.list().instances} == {one.id, two.id}

    def test_two_of_one_name_are_told_apart_by_their_ids(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(not provider.caps.unique_names, "names are unique")
        one, two = (provider.create(want(provider, harness, operation_id=operation)) for operation in ("op1", "op2"))
        provider.delete(Ref(id=one.id, name=one.name))
        harness.settle(lambda: phase(provider, one) is Phase.GONE)
        assert names(provider.list()) == {two.name}
        left = provider.get(Ref(name=two.name))
        assert left is not None
        assert left.id == two.id

    def test_a_delete_by_name_ends_all_that_carry_it(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(not provider.caps.unique_names, "names are unique")
        made = [provider.create(want(provider, harness, operation_id=operation)) for operation in ("op1", "op2")]
        provider.delete(Ref(name=made[0].name))
        left = {each.id: phase(provider, each) for each in made}
        assert set(left.values()) <= {Phase.STOPPING, Phase.GONE}, f"a delete by name left {left}"
        harness.settle(lambda: all(phase(provider, each) is Phase.GONE for each in made))

    # -- caps ---------------------------------------------------------------------------------------------------------

    def test_caps_has_gpu(self, provider: ComputeProvider) -> None:
        assert any(offer.resources.gpus for offer in provider.offers()) is provider.caps.has_gpu

    def test_caps_billing(self, provider: ComputeProvider) -> None:
        assert provider.caps.billing in set(Billing)

    def test_caps_settle_seconds(self, provider: ComputeProvider) -> None:
        """Without unique names nothing but time keeps an order that is sent again from being a second one."""
        caps = provider.caps
        assert caps.settle_seconds >= 0
        assert caps.unique_names or caps.settle_seconds > 0

    def test_caps_deleted_vanish(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        provider.delete(Ref(id=made.id))
        harness.settle(lambda: phase(provider, made) is Phase.GONE)
        left, found = [instance.phase for instance in provider.list().instances], provider.get(Ref(id=made.id))
        assert left == ([] if provider.caps.deleted_vanish else [Phase.GONE])
        if not provider.caps.deleted_vanish:
            assert found is not None, "a final row is listed, and get finds nothing under its id"
            assert found.phase is Phase.GONE

    def test_user_data_arrives_byte_for_byte(self, provider: ComputeProvider, harness: Harness) -> None:
        order = want(provider, harness, user_data=harness.user_data or USER_DATA)
        made = provider.create(order)
        assert harness.user_data_of(made) == order.user_data

    def test_caps_max_user_data(self, provider: ComputeProvider, harness: Harness) -> None:
        bound = provider.caps.max_user_data
        if bound is None:
            provider.create(want(provider, harness, user_data=padded(harness, 256 * 1024)))
            return
        for filler in (" ", "é"):  # the second has two bytes for one character
            order = want(provider, harness, user_data=padded(harness, bound + 1, filler))
            refusal(lambda: provider.create(order), ErrorKind.CONFIG)  # noqa: B023 - called within its own round
        assert provider.list().instances == ()
        provider.create(want(provider, harness, user_data=padded(harness, bound)))

    def test_caps_calls_per_hour(self, provider: ComputeProvider, harness: Harness) -> None:
        if provider.caps.calls_per_hour is None:
            for _ in range(100):
                provider.list()
            return
        assert provider.caps.calls_per_hour > 0
        order = want(provider, harness)
        harness.exhaust_rate()
        # A listing that may not be asked for is no empty one.
        for call in (lambda: provider.create(order), provider.list, lambda: provider.get(Ref(name=order.name))):
            error = refusal(call, ErrorKind.RATE_LIMIT)
            assert error.retry_after is not None
            assert error.scope is Scope.PROVIDER

    def test_a_listing_misses_nothing_while_others_come_and_go(
        self, provider: ComputeProvider, harness: Harness
    ) -> None:
        stays = {provider.create(want(provider, harness, number)).name for number in (1, 2, 3)}
        orders = [want(provider, harness, number) for number in range(10, 14)]

        def churn(other: ComputeProvider) -> None:
            for order in orders:
                other.create(order)
            for order in orders:
                other.delete(Ref(name=order.name))

        assert all(stays <= listing for listing in listings_during(provider, harness, churn))

    def test_caps_list_is_atomic(self, provider: ComputeProvider, harness: Harness) -> None:
        """A snapshot never shows a later instance without an earlier one; a listing that is none may."""
        orders = [want(provider, harness, number) for number in range(10, 16)]
        in_order = [order.name for order in orders]

        def fill(other: ComputeProvider) -> None:
            for order in orders:
                other.create(order)

        for listing in listings_during(provider, harness, fill):
            assert listing <= set(in_order)
            assert not provider.caps.list_is_atomic or listing == set(in_order[: len(listing)])
        assert names(provider.list()) == set(in_order)


def only_where(holds: bool, otherwise: str) -> None:
    """Skips a test that says nothing of a cloud of this kind."""
    if not holds:
        pytest.skip(otherwise)


def listings_during(
    provider: ComputeProvider, harness: Harness, work: Callable[[ComputeProvider], None]
) -> list[set[str]]:
    """What listings showed while ``work`` ran beside them."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(work, harness.provider(DEPLOYMENT))
        seen = [names(provider.list())]
        while not running.done():
            seen.append(names(provider.list()))
        running.result()
    return seen
