"""The fake is judged by the same suite as the real ones."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from providers.base import Caps, Instance, Inventory, Phase, Ref
from providers.testing.contract import DEPLOYMENT, Harness, ProviderContract
from providers.testing.fake import CAPS, FakeCloud, FakeProvider

OF_LABELS = replace(CAPS, unique_names=False, deleted_vanish=False, settle_seconds=10.0)


class FakeHarness(Harness):
    settings: Mapping[str, object] = {}

    def __init__(self, caps: Caps = CAPS) -> None:
        self.cloud = FakeCloud(caps=caps)

    def provider(self, deployment: str) -> FakeProvider:
        return FakeProvider(self.cloud, deployment)

    def settle(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            self.cloud.advance(1)
        raise TimeoutError("100 s of the cloud's time were not enough")

    def exhaust_rate(self) -> None:
        self.cloud.rate_exhausted = True

    def user_data_of(self, instance: Instance) -> str:
        return next(machine.user_data for machine in self.cloud.made if machine.instance.id == instance.id)


class TestFake(ProviderContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return FakeHarness()


class TestFakeWhereNamesAreLabelsAndTheGoneStay(ProviderContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return FakeHarness(OF_LABELS)


Stamps = Callable[[Instance, datetime], Instance]
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


class StampingProvider(FakeProvider):
    """Stamps progress and expiry as the test wants."""

    def __init__(self, cloud: FakeCloud, stamp: Stamps) -> None:
        super().__init__(cloud, DEPLOYMENT)
        self.stamp = stamp

    def list(self) -> Inventory:
        found = super().list()
        return replace(found, instances=tuple(self.stamp(each, found.taken_at) for each in found.instances))

    def get(self, ref: Ref) -> Instance | None:
        found = super().get(ref)
        return self.stamp(found, self.cloud.stamp()) if found is not None else None


def judged(stamp: Stamps) -> None:
    harness = FakeHarness()
    provider = StampingProvider(harness.cloud, stamp)
    ProviderContract().test_progress_and_expiry_follow_the_clouds_clock(provider, harness)


def test_progress_and_expiry_by_the_clouds_clock_are_accepted() -> None:
    judged(lambda each, at: replace(each, progress_at=at, expires_at=each.created_at + HOUR))


@pytest.mark.parametrize(
    "stamp",
    [
        lambda each, at: replace(each, progress_at=at + HOUR),
        lambda each, _: replace(each, progress_at=each.created_at - HOUR),
        lambda each, at: replace(each, progress_at=at.replace(tzinfo=None)),
        lambda each, _: replace(each, expires_at=each.created_at),
        lambda each, at: replace(each, expires_at=(at + HOUR).replace(tzinfo=None)),
        lambda each, _: replace(each, progress_at=each.created_at + SECOND * (each.phase is Phase.BOOTING)),
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
        judged(stamp)
