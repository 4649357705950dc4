"""How long nothing is tried after a failure, and how far that reaches."""

import pytest

from autoscaler.core import backoff
from autoscaler.core.pools import OfferKey
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind
from providers.base import Applied, ErrorKind, ProviderError, Scope
from tests.unit.autoscaler.builders import NOW, offer_key

HERE = OfferKey("small", "here")
KEY = offer_key("small@here")
PROVIDER = BackOffKey(BackOffKind.PROVIDER, "cloud")


def failure(kind: ErrorKind, scope: Scope) -> ProviderError:
    return ProviderError("no", kind=kind, applied=Applied.NO, scope=scope)


def grown(previous: BackOff | None, now: float, least: float = 0.0) -> BackOff:
    return backoff.grown(previous, KEY, bounds=(10.0, 35.0), now=now, reason="r", least=least)


# -- how far ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scope", "key"),
    [
        (ErrorKind.CAPACITY, Scope.OFFER, KEY),
        (ErrorKind.CAPACITY, Scope.LOCATION, BackOffKey(BackOffKind.LOCATION, "cloud", "here")),
        (ErrorKind.QUOTA, Scope.OFFER, PROVIDER),
        (ErrorKind.AUTH, Scope.INSTANCE, PROVIDER),
        (ErrorKind.CONFIG, Scope.POOL, backoff.pool_key("cpu")),
        (ErrorKind.EXISTS, Scope.INSTANCE, backoff.pool_key("cpu")),
    ],
)
def test_a_failure_holds_back_as_far_as_it_reaches(kind: ErrorKind, scope: Scope, key: BackOffKey) -> None:
    assert backoff.key_of(failure(kind, scope), "cloud", "cpu", HERE) == key
    assert key in backoff.keys("cloud", "cpu", HERE)


@pytest.mark.parametrize(
    ("kind", "key", "bounds"),
    [
        (ErrorKind.QUOTA, PROVIDER, backoff.QUOTA_BOUNDS),
        (ErrorKind.AUTH, PROVIDER, backoff.BOUNDS[Scope.PROVIDER]),
        (ErrorKind.CAPACITY, KEY, backoff.BOUNDS[Scope.OFFER]),
    ],
)
def test_windows_go_by_what_is_held_back_and_are_longer_for_a_quota(
    kind: ErrorKind, key: BackOffKey, bounds: tuple[float, float]
) -> None:
    assert backoff.bounds_of(failure(kind, Scope.OFFER), key) == bounds


# -- how long ---------------------------------------------------------------------------------------------------------


def test_a_back_off_doubles_with_failed_windows_up_to_its_bound() -> None:
    first = grown(None, 0.0)
    second = grown(first, 11.0)
    third = grown(second, 40.0)
    assert [first.until, second.until - 11, third.until - 40] == [10.0, 20.0, 35.0]


def test_failures_inside_one_window_do_not_double_it() -> None:
    assert grown(grown(None, 0.0), 5.0).failures == 1


def test_three_quiet_hours_forget_a_failure() -> None:
    assert grown(grown(None, 0.0), 5.0 + backoff.FORGET_SECONDS).failures == 1


def test_what_the_provider_asked_for_is_the_least() -> None:
    assert grown(None, 0.0, least=100.0).until == 100.0


def test_jitter_shortens_a_window_but_never_below_a_quarter_or_what_was_asked_for() -> None:
    def until(chance: float, least: float = 0.0) -> float:
        return backoff.grown(None, KEY, bounds=(120.0, 1800.0), now=0, reason="", least=least, chance=chance).until

    assert [until(1.0), until(0.5), until(0.0), until(0.5, least=100.0)] == [120.0, 60.0, 30.0, 100.0]


def test_three_failed_boots_open_the_circuit() -> None:
    held: BackOff | None = None
    for number in range(3):
        held = backoff.failed_boot(held, "cpu", now=float(number), reason="late", chance=0.0)
    assert held is not None
    assert (held.key, held.failures, held.until - 2.0) == (backoff.pool_key("cpu"), 3, 300.0)
    assert backoff.failed_boot(held, "cpu", now=1000.0, reason="late", chance=1.0).until - 1000.0 == 1200.0


def test_endless_failures_wait_for_the_longest_window() -> None:
    many = BackOff(backoff.pool_key("cpu"), NOW - 1, 10_000, NOW - 2, "late")
    assert backoff.failed_boot(many, "cpu", now=NOW, reason="late", chance=1.0).until == NOW + 3600
    assert backoff.grown(many, many.key, bounds=(10.0, 300.0), now=NOW, reason="x").until == NOW + 300
    assert backoff.retry_after(10_000) == backoff.RETRY_MOST


def test_a_delete_that_goes_on_failing_is_sent_ever_more_rarely() -> None:
    waits = [backoff.delete_again_after(0.0, now, None) for now in (0.0, 60.0, 120.0, 4000.0)]
    assert waits == [2.0, 60.0, 120.0, 300.0]
    assert backoff.delete_again_after(0.0, 60.0, 7.0) == 7.0


# -- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name", "sentence"),
    [
        (backoff.CLOCK, "clock", "for 60 s: r"),
        (backoff.closing_key("cpu"), "scale-down of pool cpu", "nothing is closed for 60 s: r"),
        (backoff.sweep_key("cloud", "vm-1"), "delete of vm-1 at cloud", "its delete is not sent again for 60 s: r"),
        (backoff.pool_key("cpu"), "pool cpu", "nothing is created for 60 s: r"),
        (KEY, "offer small@here of cloud", "nothing is created for 60 s: r"),
    ],
)
def test_a_back_off_is_a_sentence_for_people(key: BackOffKey, name: str, sentence: str) -> None:
    assert str(key) == name
    assert backoff.describe(BackOff(key, 60.0, 1, 0.0, "r")) == sentence
