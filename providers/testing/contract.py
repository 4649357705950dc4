"""What every provider must do, as a pytest class that an author subclasses.

    class TestMyCloud(ProviderContract):
        @pytest.fixture
        def harness(self):
            return MyHarness()

A `Harness` makes providers for one account and lets its time pass; the suite does the rest.  Every field of `Caps` is
tested against what the cloud really does.  `pytest.register_assert_rewrite("providers.testing")` in a
``conftest.py`` shows what was compared when a test fails.
"""

# ruff: noqa: S101 - these are tests; they ship so that others can run them

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from providers.base import (
    Billing,
    ComputeProvider,
    Deleted,
    ErrorKind,
    Instance,
    Phase,
    Ref,
    Scope,
    SettingsError,
)
from providers.testing.harness import DEPLOYMENT as DEPLOYMENT
from providers.testing.harness import LABELS as LABELS
from providers.testing.harness import Harness as Harness
from providers.testing.harness import names as names
from providers.testing.harness import refusal as refusal
from providers.testing.harness import want as want


class ProviderContract:
    """Subclass it and give it a ``harness`` fixture."""

    @pytest.fixture
    def harness(self) -> Harness:
        """The author's own."""
        raise AssertionError("override the fixture 'harness' in the subclass")

    @pytest.fixture
    def provider(self, harness: Harness) -> ComputeProvider:
        """A provider of the deployment under test."""
        return harness.provider(DEPLOYMENT)

    # -- create -------------------------------------------------------------------------------------------------------

    def test_create_answers_at_once_with_a_booting_instance(self, provider: ComputeProvider, harness: Harness) -> None:
        order = want(provider, harness)
        made = provider.create(order)
        assert (made.name, made.type, made.location) == (order.name, order.type, order.location)
        assert made.phase is Phase.BOOTING
        assert not made.adopted
        assert made.created_at.tzinfo is not None

    def test_booting_becomes_running(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        harness.settle(lambda: self.phase(provider, made) is Phase.RUNNING)

    def test_creating_twice_makes_one_instance(self, provider: ComputeProvider, harness: Harness) -> None:
        order = want(provider, harness)
        first, second = provider.create(order), provider.create(order)
        assert first.id == second.id
        assert second.adopted
        assert [instance.id for instance in provider.list().instances] == [first.id]

    def test_creating_again_after_it_runs_adopts_it(self, provider: ComputeProvider, harness: Harness) -> None:
        order = want(provider, harness)
        first = provider.create(order)
        harness.settle(lambda: self.phase(provider, first) is Phase.RUNNING)
        again = harness.provider(DEPLOYMENT).create(order)
        assert (again.id, again.adopted) == (first.id, True)

    def test_a_name_taken_by_another_operation_exists(self, provider: ComputeProvider, harness: Harness) -> None:
        provider.create(want(provider, harness))
        other = want(provider, harness, operation_id="op2")
        if not provider.caps.unique_names:
            assert provider.create(other).labels["fleet/pool"] == "cpu"
            return
        refusal(lambda: provider.create(other), ErrorKind.EXISTS)
        assert len(provider.list().instances) == 1

    def test_a_name_taken_by_another_deployment_exists(self, provider: ComputeProvider, harness: Harness) -> None:
        provider.create(want(provider, harness))
        foreign = harness.provider("other")
        order = replace(want(provider, harness), deployment="other")
        if not provider.caps.unique_names:
            assert foreign.create(order).name == order.name
            return
        refusal(lambda: foreign.create(order), ErrorKind.EXISTS)

    def test_an_unknown_type_is_refused_for_good(self, provider: ComputeProvider, harness: Harness) -> None:
        order = want(provider, harness, type="no-such-type")
        error = refusal(lambda: provider.create(order), ErrorKind.CONFIG, ErrorKind.DEPRECATED)
        assert error.scope is not Scope.INSTANCE
        assert provider.list().instances == ()

    def test_labels_come_back_as_they_were_given(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        (listed,) = provider.list().instances
        got = provider.get(Ref(id=made.id))
        assert got is not None
        for seen in (made, listed, got):
            assert LABELS.items() <= seen.labels.items()

    def test_a_name_of_63_characters_comes_back_whole(self, provider: ComputeProvider, harness: Harness) -> None:
        name = f"contract-cpu-{'x' * 49}0"
        made = provider.create(want(provider, harness, name=name))
        assert (len(name), made.name, names(provider.list())) == (63, name, {name})
        assert provider.get(Ref(name=name)) is not None

    # -- list and get -------------------------------------------------------------------------------------------------

    def test_a_listing_sees_only_its_own_deployment(self, provider: ComputeProvider, harness: Harness) -> None:
        foreign = harness.provider("other")
        provider.create(want(provider, harness, 1))
        theirs = foreign.create(replace(want(provider, harness, 2), deployment="other"))
        assert names(provider.list()) == {"contract-cpu-op1"}
        assert names(foreign.list()) == {"contract-cpu-op2"}
        assert provider.get(Ref(id=theirs.id)) is None
        assert provider.delete(Ref(id=theirs.id)) is Deleted.GONE
        assert names(foreign.list()) == {"contract-cpu-op2"}

    def test_get_finds_by_id_by_name_and_by_both(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        for ref in (Ref(id=made.id), Ref(name=made.name), Ref(id=made.id, name=made.name)):
            found = provider.get(ref)
            assert found is not None
            assert found.id == made.id

    def test_get_of_an_absent_instance_is_none(self, provider: ComputeProvider) -> None:
        assert provider.get(Ref(name="contract-cpu-absent")) is None

    @pytest.mark.parametrize("id", ["absent", "0", "-1", "9" * 30, "a/../b", "² "])
    def test_an_id_that_nobody_has_is_none_and_gone(self, provider: ComputeProvider, harness: Harness, id: str) -> None:
        provider.create(want(provider, harness))
        assert provider.get(Ref(id=id)) is None
        assert provider.delete(Ref(id=id)) is Deleted.GONE
        assert names(provider.list()) == {"contract-cpu-op1"}

    def test_an_id_and_a_name_must_agree(self, provider: ComputeProvider, harness: Harness) -> None:
        one, two = (provider.create(want(provider, harness, number)) for number in (1, 2))
        assert provider.get(Ref(id=one.id, name=two.name)) is None
        assert provider.delete(Ref(id=one.id, name=two.name)) is Deleted.GONE
        assert names(provider.list()) == {one.name, two.name}

    def test_a_listing_tells_the_same_as_a_look_at_each(self, provider: ComputeProvider, harness: Harness) -> None:
        orders = {order.name: order for order in (want(provider, harness, number) for number in (1, 2, 3))}
        made = {name: provider.create(order) for name, order in orders.items()}
        assert len({instance.id for instance in made.values()}) == len(orders)
        for listed in provider.list().instances:
            got, order, born = provider.get(Ref(id=listed.id)), orders[listed.name], made[listed.name]
            assert got is not None
            for seen in (listed, got, born):
                assert (seen.id, seen.type, seen.location) == (born.id, order.type, order.location)
                assert seen.created_at.tzinfo is not None
                assert abs(seen.created_at - born.created_at) < timedelta(seconds=2)
            assert got.labels == listed.labels

    def test_two_of_one_name_are_told_apart_by_their_ids(self, provider: ComputeProvider, harness: Harness) -> None:
        if provider.caps.unique_names:
            return
        one, two = (provider.create(want(provider, harness, operation_id=operation)) for operation in ("op1", "op2"))
        provider.delete(Ref(id=one.id, name=one.name))
        harness.settle(lambda: self.phase(provider, one) is Phase.GONE)
        assert names(provider.list()) == {two.name}
        left = provider.get(Ref(name=two.name))
        assert left is not None
        assert left.id == two.id

    def test_another_thread_may_call_it(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        with ThreadPoolExecutor(max_workers=1) as pool:
            assert names(pool.submit(provider.list).result()) == {made.name}

    def test_a_listing_knows_its_time(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        first, second = provider.list().taken_at, provider.list().taken_at
        assert first.tzinfo is not None
        assert first <= second
        assert timedelta(seconds=-2) <= first - made.created_at < timedelta(minutes=10)

    def test_steps_and_ends_are_told_by_its_own_clock(self, provider: ComputeProvider, harness: Harness) -> None:
        """A step lies between the order and the listing that tells of it, and an end after the order."""
        made = provider.create(want(provider, harness))
        listings = [provider.list()]
        harness.settle(lambda: self.phase(provider, made) is Phase.RUNNING)
        listings.append(provider.list())
        seen = [(listing.taken_at, instance) for listing in listings for instance in listing.instances]
        assert len(seen) == len(listings)
        slack = timedelta(seconds=2)
        for taken_at, instance in seen:
            step, end = instance.progress_at, instance.expires_at
            assert step is None or instance.created_at - slack <= step <= taken_at + slack
            assert end is None or end > instance.created_at
        steps = [instance.progress_at for _, instance in seen if instance.progress_at is not None]
        assert steps == sorted(steps)
        got = provider.get(Ref(id=made.id))
        assert got is not None
        assert got.expires_at == seen[-1][1].expires_at

    def test_what_another_provider_object_made_is_seen(self, provider: ComputeProvider, harness: Harness) -> None:
        made = harness.provider(DEPLOYMENT).create(want(provider, harness))
        assert names(provider.list()) == {made.name}

    # -- delete -------------------------------------------------------------------------------------------------------

    def test_deleting_an_unknown_instance_says_gone(self, provider: ComputeProvider) -> None:
        assert provider.delete(Ref(name="contract-cpu-absent")) is Deleted.GONE

    def test_a_deleted_instance_goes_and_stays_gone(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        harness.settle(lambda: self.phase(provider, made) is Phase.RUNNING)
        assert provider.delete(Ref(id=made.id)) in set(Deleted)
        assert self.phase(provider, made) in {Phase.STOPPING, Phase.GONE}
        harness.settle(lambda: self.phase(provider, made) is Phase.GONE)
        assert provider.delete(Ref(id=made.id)) is Deleted.GONE
        assert provider.list().leftovers == ()

    def test_deleting_twice_at_once_is_fine(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        provider.delete(Ref(name=made.name))
        provider.delete(Ref(name=made.name))
        harness.settle(lambda: self.phase(provider, made) is Phase.GONE)

    def test_deleting_while_it_boots_leaves_nothing(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        provider.delete(Ref(id=made.id))
        harness.settle(lambda: self.phase(provider, made) is Phase.GONE)
        assert names(provider.list()) == set()

    # -- how to reach it ----------------------------------------------------------------------------------------------

    def test_connect_answers_at_once_for_what_boots_what_runs_and_what_is_gone(
        self, provider: ComputeProvider, harness: Harness
    ) -> None:
        made = provider.create(want(provider, harness))
        early = provider.connect(made)
        harness.settle(lambda: self.phase(provider, made) is Phase.RUNNING)
        running = provider.get(Ref(id=made.id))
        assert running is not None
        accesses = [early, provider.connect(running)]
        provider.delete(Ref(id=made.id))
        harness.settle(lambda: self.phase(provider, made) is Phase.GONE)
        for access in (*accesses, provider.connect(running)):
            assert access is None or (access.host and 0 < access.port < 65536 and access.user)

    # -- settings and secrets -----------------------------------------------------------------------------------------

    def test_an_unknown_setting_is_refused_by_its_name(self, provider: ComputeProvider) -> None:
        with pytest.raises(SettingsError, match="no_such_setting"):
            type(provider).from_settings({"no_such_setting": 1}, deployment=DEPLOYMENT, environ={})

    def test_no_secret_is_told(
        self, provider: ComputeProvider, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor the user data: it holds a join token."""
        caplog.set_level("DEBUG")
        order = want(provider, harness)
        made = provider.create(order)
        bad = refusal(lambda: provider.create(replace(order, name="contract-cpu-x", operation_id="x", type="none")),
                      ErrorKind.CONFIG, ErrorKind.DEPRECATED)  # fmt: skip
        provider.delete(Ref(id=made.id))
        told = [repr(provider), str(provider), repr(bad), str(bad), str(bad.details), repr(made), caplog.text]
        for secret in (*harness.secrets, *filter(None, [harness.user_data])):
            assert not any(secret in each for each in told), "a secret was told"

    # -- offers -------------------------------------------------------------------------------------------------------

    def test_offers_are_sane(self, provider: ComputeProvider) -> None:
        offers = provider.offers()
        assert offers
        assert len({(offer.type, offer.location) for offer in offers}) == len(offers)
        for offer in offers:
            resources = offer.resources
            assert min(resources.cpus, resources.memory_mb, resources.disk_mb) > 0
            assert resources.gpus >= 0
            assert offer.price_per_hour is None or offer.price_per_hour >= Decimal(0)
            assert offer.gone_after is None or offer.gone_after.tzinfo is not None

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
        harness.settle(lambda: self.phase(provider, made) is Phase.GONE)
        left = [instance.phase for instance in provider.list().instances]
        assert left == ([] if provider.caps.deleted_vanish else [Phase.GONE])

    def test_caps_max_user_data(self, provider: ComputeProvider, harness: Harness) -> None:
        bound = provider.caps.max_user_data
        if bound is None:
            provider.create(want(provider, harness, user_data=self.padded(harness, 256 * 1024)))
            return
        order = want(provider, harness, user_data=self.padded(harness, bound + 1))
        refusal(lambda: provider.create(order), ErrorKind.CONFIG)
        assert provider.list().instances == ()
        provider.create(want(provider, harness, user_data=self.padded(harness, bound)))

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

        assert all(stays <= listing for listing in self.listings_during(provider, harness, churn))

    def test_caps_list_is_atomic(self, provider: ComputeProvider, harness: Harness) -> None:
        """A snapshot never shows a later instance without an earlier one; a listing that is none may."""
        orders = [want(provider, harness, number) for number in range(10, 16)]
        in_order = [order.name for order in orders]

        def fill(other: ComputeProvider) -> None:
            for order in orders:
                other.create(order)

        for listing in self.listings_during(provider, harness, fill):
            assert listing <= set(in_order)
            assert not provider.caps.list_is_atomic or listing == set(in_order[: len(listing)])
        assert names(provider.list()) == set(in_order)

    @staticmethod
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

    @staticmethod
    def padded(harness: Harness, size: int) -> str:
        """The harness's user data, padded with blanks to ``size`` bytes."""
        return harness.user_data + " " * (size - len(harness.user_data.encode()))

    @staticmethod
    def phase(provider: ComputeProvider, made: Instance) -> Phase:
        """Where an instance stands, by the listing and by ``get``, which must agree once it is gone."""
        listed = [instance for instance in provider.list().instances if instance.id == made.id]
        if listed:
            return listed[0].phase
        got = provider.get(Ref(id=made.id))
        return got.phase if got is not None else Phase.GONE
