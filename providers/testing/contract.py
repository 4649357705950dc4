"""What every provider must do, as a pytest class that an author subclasses.

    class TestMyCloud(ProviderContract):
        @pytest.fixture
        def harness(self):
            return MyHarness()

A `Harness` makes providers for one account and lets its time pass; the suite does the rest.  A test that says nothing
of a cloud of this kind is skipped, and says why (``pytest -rs``).
"""

# ruff: noqa: S101 - these are tests; they ship so that others can run them

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from providers.base import ComputeProvider, Deleted, ErrorKind, Phase, Ref, Scope, SettingsError
from providers.testing.caps import CapsContract
from providers.testing.harness import DEPLOYMENT as DEPLOYMENT
from providers.testing.harness import LABELS as LABELS
from providers.testing.harness import Harness as Harness
from providers.testing.harness import names as names
from providers.testing.harness import phase as phase
from providers.testing.harness import refusal as refusal
from providers.testing.harness import want as want


class ProviderContract(CapsContract):
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
        harness.settle(lambda: phase(provider, made) is Phase.RUNNING)

    def test_creating_twice_makes_one_instance(self, provider: ComputeProvider, harness: Harness) -> None:
        order = want(provider, harness)
        first, second = provider.create(order), provider.create(order)
        assert first.id == second.id
        assert second.adopted
        assert [instance.id for instance in provider.list().instances] == [first.id]

    def test_creating_again_after_it_runs_adopts_it(self, provider: ComputeProvider, harness: Harness) -> None:
        order = want(provider, harness)
        first = provider.create(order)
        harness.settle(lambda: phase(provider, first) is Phase.RUNNING)
        again = harness.provider(DEPLOYMENT).create(order)
        assert (again.id, again.adopted) == (first.id, True)

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
        harness.settle(lambda: phase(provider, made) is Phase.RUNNING)
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
        harness.settle(lambda: phase(provider, made) is Phase.RUNNING)
        assert provider.delete(Ref(id=made.id)) in set(Deleted)
        assert phase(provider, made) in {Phase.STOPPING, Phase.GONE}
        harness.settle(lambda: phase(provider, made) is Phase.GONE)
        assert provider.delete(Ref(id=made.id)) is Deleted.GONE
        assert provider.list().leftovers == ()

    def test_deleting_twice_at_once_is_fine(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        provider.delete(Ref(name=made.name))
        provider.delete(Ref(name=made.name))
        harness.settle(lambda: phase(provider, made) is Phase.GONE)

    def test_deleting_while_it_boots_leaves_nothing(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        provider.delete(Ref(id=made.id))
        harness.settle(lambda: phase(provider, made) is Phase.GONE)
        assert names(provider.list()) == set()

    # -- how to reach it ----------------------------------------------------------------------------------------------

    def test_connect_answers_at_once_for_what_boots_what_runs_and_what_is_gone(
        self, provider: ComputeProvider, harness: Harness
    ) -> None:
        made = provider.create(want(provider, harness))
        early = provider.connect(made)
        harness.settle(lambda: phase(provider, made) is Phase.RUNNING)
        running = provider.get(Ref(id=made.id))
        assert running is not None
        accesses = [early, provider.connect(running)]
        provider.delete(Ref(id=made.id))
        harness.settle(lambda: phase(provider, made) is Phase.GONE)
        for access in (*accesses, provider.connect(running)):
            assert access is None or (access.host and 0 < access.port < 65536 and access.user)

    # -- settings and secrets -----------------------------------------------------------------------------------------

    def test_an_unknown_setting_is_refused_by_its_name(self, provider: ComputeProvider, harness: Harness) -> None:
        """Alone, and beside settings that are right, where the harness has some."""
        build, settings = type(provider).from_settings, harness.settings
        if settings is not None:
            build(settings, deployment=DEPLOYMENT, environ=harness.environ)
        for known in ({}, settings or {}):
            given = {**known, "no_such_setting": 1}
            try:
                build(given, deployment=DEPLOYMENT, environ=harness.environ)
            except SettingsError as error:
                assert "no_such_setting" in str(error), f"the error names another key: {error}"
            else:
                pytest.fail(f"expected a SettingsError; from_settings took no_such_setting beside {sorted(known)}")

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
