"""The suite finds what it is there for: each provider here has one fault, and the test that must find it does."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Self

import pytest

from providers import base
from providers.base import Applied, ErrorKind, Scope
from providers.testing import contract, fake
from providers.testing.contract import DEPLOYMENT, ProviderContract
from providers.testing.fake import FakeCloud, FakeProvider
from tests.contract.providers.harnesses import OF_LABELS, FakeHarness


class DropsUserData(FakeProvider):
    def create(self, want: base.Create) -> base.Instance:
        return super().create(replace(want, user_data=""))


class StripsUserData(FakeProvider):
    def create(self, want: base.Create) -> base.Instance:
        return super().create(replace(want, user_data=want.user_data.strip()))


class CountsCharacters(FakeProvider):
    def create(self, want: base.Create) -> base.Instance:
        if len(want.user_data) > fake.MAX_USER_DATA:
            raise self._refusal(ErrorKind.CONFIG, "too much user data", Scope.POOL)
        return super().create(replace(want, user_data=""))


class ForgetsTheGone(FakeProvider):
    def get(self, ref: base.Ref) -> base.Instance | None:
        found = super().get(ref)
        return found if found is not None and found.phase is not base.Phase.GONE else None


class EndsOneNamesake(FakeProvider):
    def delete(self, ref: base.Ref) -> base.Deleted:
        found = self.get(ref)
        return super().delete(base.Ref(id=found.id)) if found is not None else base.Deleted.GONE


class AdoptsByName(FakeProvider):
    def create(self, want: base.Create) -> base.Instance:
        there = self.get(base.Ref(name=want.name))
        return replace(there, adopted=True) if there is not None else super().create(want)


class TakesAnySetting(FakeProvider):
    """Beside the one that it needs; without that one it names all that it was given."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        if "path" not in settings:
            raise base.SettingsError(f"needs the key path; given: {sorted(settings)}")
        return cls(FakeCloud(), deployment)


class MisstatesCaps(FakeProvider):
    """Says of a cloud whose names are labels, and whose gone stay, that it is the other kind."""

    def __init__(self, cloud: FakeCloud, deployment: str) -> None:
        super().__init__(cloud, deployment)
        self.caps = replace(cloud.caps, unique_names=True, deleted_vanish=True)  # type: ignore[misc]


class HasNoGpu(FakeProvider):
    def offers(self) -> list[base.Offer]:
        return [offer for offer in super().offers() if not offer.resources.gpus]


class ListsNothingWhenTooManyCalls(FakeProvider):
    def list(self) -> base.Inventory:
        try:
            return super().list()
        except base.ProviderError:
            return base.Inventory((), self.cloud.stamp())


class NeedsPath(FakeHarness):
    settings: Mapping[str, object] = {"path": "/there"}


def judged(kind: type[FakeProvider], account: FakeHarness, test: str) -> None:
    """Run one test of the suite over one provider."""
    method = getattr(ProviderContract(), test)
    given = {"provider": kind(account.cloud, DEPLOYMENT), "harness": account}
    try:
        method(**{name: given[name] for name in inspect.signature(method).parameters})
    except pytest.skip.Exception as skipped:
        raise RuntimeError(f"{test} says nothing of this account: {skipped}") from skipped


@pytest.mark.parametrize(
    ("broken", "caps", "test"),
    [
        (DropsUserData, fake.CAPS, "test_user_data_arrives_byte_for_byte"),
        (StripsUserData, fake.CAPS, "test_user_data_arrives_byte_for_byte"),
        (CountsCharacters, fake.CAPS, "test_caps_max_user_data"),
        (ForgetsTheGone, OF_LABELS, "test_caps_deleted_vanish"),
        (MisstatesCaps, OF_LABELS, "test_caps_deleted_vanish"),
        (MisstatesCaps, OF_LABELS, "test_a_unique_name_is_refused_to_another_operation"),
        (MisstatesCaps, OF_LABELS, "test_a_unique_name_is_refused_to_another_deployment"),
        (EndsOneNamesake, OF_LABELS, "test_a_delete_by_name_ends_all_that_carry_it"),
        (AdoptsByName, OF_LABELS, "test_a_shared_name_serves_each_operation"),
        (HasNoGpu, fake.CAPS, "test_caps_has_gpu"),
        (ListsNothingWhenTooManyCalls, fake.CAPS, "test_caps_calls_per_hour"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (value if isinstance(value, str) else ""),
)
def test_a_planted_fault_is_found(broken: type[FakeProvider], caps: base.Caps, test: str) -> None:
    if broken is not MisstatesCaps:
        judged(FakeProvider, FakeHarness(caps), test)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        judged(broken, FakeHarness(caps), test)


def test_an_unknown_setting_beside_right_ones_is_found() -> None:
    test = "test_an_unknown_setting_is_refused_by_its_name"
    with pytest.raises(pytest.fail.Exception, match=r"took no_such_setting beside \['path'\]"):
        judged(TakesAnySetting, NeedsPath(), test)


def test_a_refusal_that_does_not_come_says_what_was_expected() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"expected a ProviderError of kind quota or config.*succeeded"):
        contract.refusal(lambda: None, ErrorKind.QUOTA, ErrorKind.CONFIG)


@pytest.mark.parametrize(
    ("kind", "applied", "words"),
    [
        (ErrorKind.BUG, Applied.NO, "expected a ProviderError of kind quota; its kind is bug: why"),
        (ErrorKind.QUOTA, Applied.MAYBE, "expected applied=no of a ProviderError of kind quota; it is maybe: why"),
    ],
)
def test_another_refusal_says_what_was_expected(kind: ErrorKind, applied: Applied, words: str) -> None:
    def refused() -> None:
        raise base.ProviderError("why", kind=kind, applied=applied, scope=Scope.POOL)

    with pytest.raises(AssertionError, match=words):
        contract.refusal(refused, ErrorKind.QUOTA)


def test_a_failed_assertion_shows_what_it_compared() -> None:
    with pytest.raises(AssertionError, match="GONE"):
        judged(MisstatesCaps, FakeHarness(OF_LABELS), "test_caps_deleted_vanish")


# -- progress and expiry ----------------------------------------------------------------------------------------------

Stamps = Callable[[base.Instance, datetime], base.Instance]
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


class StampingProvider(FakeProvider):
    """Stamps progress and expiry as the test wants."""

    def __init__(self, cloud: FakeCloud, stamp: Stamps) -> None:
        super().__init__(cloud, DEPLOYMENT)
        self.stamp = stamp

    def list(self) -> base.Inventory:
        found = super().list()
        return replace(found, instances=tuple(self.stamp(each, found.taken_at) for each in found.instances))

    def get(self, ref: base.Ref) -> base.Instance | None:
        found = super().get(ref)
        return self.stamp(found, self.cloud.stamp()) if found is not None else None


def judge_stamps(stamp: Stamps) -> None:
    harness = FakeHarness()
    provider = StampingProvider(harness.cloud, stamp)
    ProviderContract().test_progress_and_expiry_follow_the_clouds_clock(provider, harness)


def test_progress_and_expiry_by_the_clouds_clock_are_accepted() -> None:
    judge_stamps(lambda each, at: replace(each, progress_at=at, expires_at=each.created_at + HOUR))


@pytest.mark.parametrize(
    "stamp",
    [
        lambda each, at: replace(each, progress_at=at + HOUR),
        lambda each, _: replace(each, progress_at=each.created_at - HOUR),
        lambda each, at: replace(each, progress_at=at.replace(tzinfo=None)),
        lambda each, _: replace(each, expires_at=each.created_at),
        lambda each, at: replace(each, expires_at=(at + HOUR).replace(tzinfo=None)),
        lambda each, _: replace(each, progress_at=each.created_at + SECOND * (each.phase is base.Phase.BOOTING)),
    ],
    ids=[
        "progress in the future",
        "progress before the order",
        "naive progress",
        "expiry at once",
        "naive expiry",
        "progress backwards",
    ],
)
def test_progress_or_expiry_off_the_clouds_clock_is_found(stamp: Stamps) -> None:
    with pytest.raises((AssertionError, TypeError)):
        judge_stamps(stamp)
