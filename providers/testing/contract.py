"""The contract suite: what every provider must do, as a pytest class that an author subclasses.

    class TestMyCloud(ProviderContract):
        @pytest.fixture
        def harness(self):
            return MyHarness()

A `Harness` makes providers for one account and lets its time pass; the suite does the rest.  A test that does not apply
to a cloud of this kind is skipped with the reason (``pytest -rs``).
"""

# ruff: noqa: S101 - these are tests; they ship so that others can run them

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from providers.base import (
    OPERATION_LABEL,
    Applied,
    Billing,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Inventory,
    Phase,
    ProviderError,
    Ref,
    Scope,
    SettingsError,
)

DEPLOYMENT: Final = "contract"
LABELS: Final = {"fleet/pool": "cpu", "fleet/spec": "a1b2c3", "fleet/empty": "", "fleet/long": "x" * 63}
USER_DATA: Final = "#cloud-config\nfinal_message: 'naïve \\ $HOME %s'\n\n"
"""Stands in for user data where the harness has none: it ends in two line ends, and has more bytes than characters."""


class Harness(ABC):
    """One account of a cloud, real or emulated, and the time in it."""

    image: str = "any"
    """Of every order."""
    user_data: str = ""
    """Of every order.  Set it where the cloud takes only a certain form, to the least that it takes."""
    secrets: tuple[str, ...] = ()
    """What the provider was given and must never reveal: no ``repr``, error or log line holds one of these."""
    settings: Mapping[str, object] | None = None
    """A valid table of settings.  The suite adds a key that no provider knows, which must be refused."""
    environ: Mapping[str, str] = {}
    """The environment variables that ``settings`` name."""

    @abstractmethod
    def provider(self, deployment: str) -> ComputeProvider:
        """Return a provider for the same account; called several times."""

    @abstractmethod
    def settle(self, condition: Callable[[], bool]) -> None:
        """Let time pass until ``condition`` holds.

        Raises:
            TimeoutError: it never does.
        """

    def exhaust_rate(self) -> None:
        """Use up the calls of this hour; needed only where ``caps.calls_per_hour`` is set."""
        pytest.fail("caps.calls_per_hour is set, so the harness must have exhaust_rate, which uses them up")

    def user_data_of(self, instance: Instance) -> str:
        """Return the user data that the cloud holds for an instance, bypassing the provider.

        Optional: without it one test is skipped, and lost user data goes unnoticed.
        """
        pytest.skip("the harness has no user_data_of, so whether user data arrives is not tested")


class ProviderContract:
    """The suite; subclass it and give it a ``harness`` fixture."""

    @pytest.fixture
    def harness(self) -> Harness:
        """Return the author's harness; the subclass overrides this."""
        raise AssertionError("override the fixture 'harness' in the subclass")

    @pytest.fixture
    def provider(self, harness: Harness) -> ComputeProvider:
        """Return a provider of the deployment under test."""
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
        assert (second.id, second.adopted) == (first.id, True)
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
        assert (names(provider.list()), names(foreign.list())) == ({"contract-cpu-op1"}, {"contract-cpu-op2"})
        assert provider.get(Ref(id=theirs.id)) is None
        assert provider.delete(Ref(id=theirs.id)) is Deleted.GONE
        assert names(foreign.list()) == {"contract-cpu-op2"}

    def test_get_finds_by_id_by_name_and_by_both(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        by_id, by_name = Ref(id=made.id), Ref(name=made.name)
        for ref in (by_id, by_name, replace(by_id, name=made.name), replace(by_name, operation_id="op1")):
            assert (found := provider.get(ref)) is not None
            assert found.id == made.id

    @pytest.mark.parametrize("id", ["absent", "0", "-1", "9" * 30, "a/../b", "² "])
    def test_an_unknown_id_is_none_and_gone(self, provider: ComputeProvider, harness: Harness, id: str) -> None:
        provider.create(want(provider, harness))
        assert (provider.get(Ref(id=id)), provider.delete(Ref(id=id))) == (None, Deleted.GONE)
        assert names(provider.list()) == {"contract-cpu-op1"}

    def test_an_id_and_a_name_must_agree(self, provider: ComputeProvider, harness: Harness) -> None:
        one, two = (provider.create(want(provider, harness, number)) for number in (1, 2))
        assert provider.get(Ref(id=one.id, name=two.name)) is None
        assert provider.delete(Ref(id=one.id, name=two.name)) is Deleted.GONE
        assert names(provider.list()) == {one.name, two.name}

    def test_list_and_get_agree(self, provider: ComputeProvider, harness: Harness) -> None:
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

    def test_a_listing_is_dated_by_the_clouds_clock(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        first, second = provider.list().taken_at, provider.list().taken_at
        assert first.tzinfo is not None
        assert first <= second
        assert timedelta(seconds=-2) <= first - made.created_at < timedelta(minutes=10)

    def test_progress_and_expiry_follow_the_clouds_clock(self, provider: ComputeProvider, harness: Harness) -> None:
        """Progress lies between the order and the listing that shows it, and expiry after the order."""
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

    def test_an_instance_of_another_provider_object_is_seen(self, provider: ComputeProvider, harness: Harness) -> None:
        made = harness.provider(DEPLOYMENT).create(want(provider, harness))
        assert names(provider.list()) == {made.name}

    # -- delete -------------------------------------------------------------------------------------------------------

    def test_an_unknown_name_is_none_and_gone(self, provider: ComputeProvider) -> None:
        absent = Ref(name="contract-cpu-absent")
        assert (provider.get(absent), provider.delete(absent)) == (None, Deleted.GONE)

    def test_a_deleted_instance_goes_and_stays_gone(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        harness.settle(lambda: phase(provider, made) is Phase.RUNNING)
        assert provider.delete(Ref(id=made.id)) in set(Deleted)
        assert phase(provider, made) in {Phase.STOPPING, Phase.GONE}
        harness.settle(lambda: phase(provider, made) is Phase.GONE)
        assert provider.delete(Ref(id=made.id)) is Deleted.GONE
        assert provider.list().leftovers == ()

    def test_deleting_twice_while_it_boots_leaves_nothing(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        provider.delete(Ref(name=made.name))
        provider.delete(Ref(id=made.id))
        harness.settle(lambda: phase(provider, made) is Phase.GONE)
        assert names(provider.list()) == set()

    # -- how to reach it ----------------------------------------------------------------------------------------------

    def test_connect_answers_for_booting_running_and_gone(self, provider: ComputeProvider, harness: Harness) -> None:
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

    def test_no_secret_is_revealed(
        self, provider: ComputeProvider, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        """User data counts as one: it holds a join token."""
        caplog.set_level("DEBUG")
        order = want(provider, harness)
        made = provider.create(order)
        bad = refusal(lambda: provider.create(replace(order, name="contract-cpu-x", operation_id="x", type="none")),
                      ErrorKind.CONFIG, ErrorKind.DEPRECATED)  # fmt: skip
        provider.delete(Ref(id=made.id))
        shown = [repr(provider), str(provider), repr(bad), str(bad), str(bad.details), repr(made), caplog.text]
        for secret in (*harness.secrets, *filter(None, [harness.user_data])):
            assert not any(secret in each for each in shown), "a secret was revealed"

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

    # -- names ---------------------------------------------------------------------------------------------------------

    def test_a_unique_name_is_refused_to_another_operation(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(provider.caps.unique_names, "does not apply: names are not unique")
        first, other = provider.create(want(provider, harness)), want(provider, harness, operation_id="op2")
        refusal(lambda: provider.create(other), ErrorKind.EXISTS)
        assert [instance.id for instance in provider.list().instances] == [first.id]

    def test_a_unique_name_is_refused_to_another_deployment(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(provider.caps.unique_names, "does not apply: names are not unique")
        provider.create(want(provider, harness))
        foreign, order = harness.provider("other"), replace(want(provider, harness), deployment="other")
        refusal(lambda: foreign.create(order), ErrorKind.EXISTS)

    def test_a_shared_name_serves_each_operation(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(not provider.caps.unique_names, "does not apply: names are unique")
        one, two = (provider.create(want(provider, harness, operation_id=operation)) for operation in ("op1", "op2"))
        foreign = harness.provider("other")
        third = foreign.create(replace(want(provider, harness), deployment="other"))
        assert len({one.id, two.id, third.id}) == 3
        assert {instance.id for instance in provider.list().instances} == {one.id, two.id}

    def test_namesakes_are_distinguished_by_id(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(not provider.caps.unique_names, "does not apply: names are unique")
        one, two = (provider.create(want(provider, harness, operation_id=operation)) for operation in ("op1", "op2"))
        provider.delete(Ref(id=one.id, name=one.name))
        harness.settle(lambda: phase(provider, one) is Phase.GONE)
        assert names(provider.list()) == {two.name}
        assert getattr(provider.get(Ref(name=two.name)), "id", None) == two.id

    def test_a_delete_by_name_ends_all_that_carry_it(self, provider: ComputeProvider, harness: Harness) -> None:
        only_where(not provider.caps.unique_names, "does not apply: names are unique")
        made = [provider.create(want(provider, harness, operation_id=operation)) for operation in ("op1", "op2")]
        provider.delete(Ref(name=made[0].name))
        left = {each.id: phase(provider, each) for each in made}
        assert set(left.values()) <= {Phase.STOPPING, Phase.GONE}, f"a delete by name left {left}"
        harness.settle(lambda: all(phase(provider, each) is Phase.GONE for each in made))

    def test_a_name_with_an_operation_spares_a_namesake(self, provider: ComputeProvider, harness: Harness) -> None:
        made = provider.create(want(provider, harness))
        assert provider.delete(Ref(name=made.name, operation_id="op2")) is Deleted.GONE
        assert phase(provider, made) not in (Phase.STOPPING, Phase.GONE)

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


def want(provider: ComputeProvider, harness: Harness, number: int = 1, **changes: Any) -> Create:
    """Return an order for the first available offer, which the provider should accept unless ``changes`` spoil it."""
    offer = next(offer for offer in provider.offers() if offer.available)
    operation = changes.get("operation_id", f"op{number}")
    order = Create(
        name=f"contract-cpu-op{number}",
        operation_id=operation,
        deployment=DEPLOYMENT,
        pool="cpu",
        type=offer.type,
        location=offer.location,
        image=harness.image,
        user_data=harness.user_data,
        labels=LABELS | {OPERATION_LABEL: operation},
    )
    return replace(order, **changes)


def refusal(call: Callable[[], object], *kinds: ErrorKind, applied: Applied = Applied.NO) -> ProviderError:
    """Return the error of a call that must fail with one of these kinds, its fields checked."""
    wanted = f"a ProviderError of kind {' or '.join(kinds)}"
    try:
        answer = call()
    except ProviderError as caught:
        error = caught
    else:
        pytest.fail(f"expected {wanted}; the call succeeded with {answer!r}")
    assert error.kind in kinds, f"expected {wanted}; its kind is {error.kind}: {error}"
    assert error.applied is applied, f"expected applied={applied} of {wanted}; it is {error.applied}: {error}"
    assert isinstance(error.scope, Scope)
    assert error.retry_after is None or error.retry_after >= 0
    assert str(error)
    assert all(isinstance(word, str) for item in error.details.items() for word in item)
    return error


def names(inventory: Inventory) -> set[str]:
    """Return the names of everything listed that is not gone."""
    return {instance.name for instance in inventory.instances if instance.phase is not Phase.GONE}


def phase(provider: ComputeProvider, made: Instance) -> Phase:
    """Return the phase of an instance by the listing, and by ``get`` once it is no longer listed."""
    listed = [instance for instance in provider.list().instances if instance.id == made.id]
    if listed:
        return listed[0].phase
    got = provider.get(Ref(id=made.id))
    return got.phase if got is not None else Phase.GONE


def padded(harness: Harness, size: int, filler: str = " ") -> str:
    """Return the harness's user data, padded to ``size`` bytes, or less than one ``filler`` beyond."""
    missing = size - len(harness.user_data.encode())
    return harness.user_data + filler * -(-missing // len(filler.encode()))


def only_where(holds: bool, otherwise: str) -> None:
    """Skip a test that does not apply to a cloud of this kind."""
    if not holds:
        pytest.skip(otherwise)


def listings_during(
    provider: ComputeProvider, harness: Harness, work: Callable[[ComputeProvider], None]
) -> list[set[str]]:
    """Return the names in each listing taken while ``work`` ran beside them."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(work, harness.provider(DEPLOYMENT))
        seen = [names(provider.list())]
        while not running.done():
            seen.append(names(provider.list()))
        running.result()
    return seen
