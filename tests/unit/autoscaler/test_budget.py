"""The budget of calls: a cloud with the same bucket never has to refuse, and deletes always pass."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.budget import Metered, metered
from autoscaler.observe import Lasting
from providers.base import Applied, ErrorKind, ProviderError, Ref
from providers.testing.fake import FakeCloud, FakeProvider


class Counted(FakeProvider):
    caps = replace(FakeProvider.caps, calls_per_hour=60)


def test_only_what_a_cloud_counts_is_metered() -> None:
    free = FakeProvider(FakeCloud(), "d")
    free.caps = replace(FakeProvider.caps, calls_per_hour=None)  # type: ignore[misc]
    assert metered(free, lambda: 0.0) is free
    assert isinstance(metered(Counted(FakeCloud(), "d"), lambda: 0.0), Metered)


def test_optional_calls_end_first_and_deletes_never() -> None:
    provider = Metered(Counted(FakeCloud(), "d"), lambda: 0.0)
    for _ in range(45):
        provider.offers()
    with pytest.raises(ProviderError) as refused:
        provider.offers()
    assert (refused.value.kind, refused.value.applied) == (ErrorKind.RATE_LIMIT, Applied.NO)
    for _ in range(5):
        provider.list()
    with pytest.raises(ProviderError) as late:
        provider.list()
    assert late.value.retry_after == pytest.approx(60.0)
    for _ in range(10):
        provider.delete(Ref(name="x"))


@given(st.lists(st.tuples(st.sampled_from(["list", "offers"]), st.floats(0, 30)), max_size=300))
def test_a_cloud_with_this_bucket_never_refuses(calls: list[tuple[str, float]]) -> None:
    now = 0.0
    provider = Metered(Counted(FakeCloud(), "d"), lambda: now)
    left, at = 60.0, 0.0
    for method, pause in calls:
        now += pause
        left, at = min(60.0, left + (now - at) / 60.0), now
        try:
            getattr(provider, method)()
        except ProviderError:
            continue
        left -= 1
        assert left >= 9.99, "what is kept for deletes was touched"


def test_what_breaks_off_begins_anew() -> None:
    lasting = Lasting()
    assert lasting.seen("a", ["x"], 0.0) == {"x": 0.0}
    assert lasting.seen("a", ["x", "y"], 5.0) == {"x": 5.0, "y": 0.0}
    assert lasting.seen("a", ["y"], 6.0) == {"y": 1.0}
    assert lasting.seen("a", ["x"], 7.0) == {"x": 0.0}
