"""The reserve of calls: what may still be asked when few are left."""

import pytest

from providers.base import Applied, ErrorKind, ProviderError, Scope
from providers.rate_limit import Priority, RateLimit


def limit(reserve: int = 600, **headers: str) -> RateLimit:
    """Return a limit that has noted these headers, and whose clock stands still."""
    made = RateLimit(reserve, kind="unit", monotonic=lambda: 0.0)
    made.note({f"RateLimit-{name.capitalize()}": value for name, value in headers.items()})
    return made


@pytest.mark.parametrize(
    ("left", "open_"),
    [
        (1000, {Priority.OPTIONAL, Priority.CREATE, Priority.LIST, Priority.DELETE}),
        (700, {Priority.CREATE, Priority.LIST, Priority.DELETE}),
        (400, {Priority.LIST, Priority.DELETE}),
        (100, {Priority.DELETE}),
        (0, set()),
    ],
)
def test_lower_priorities_are_refused_first(left: int, open_: set[Priority]) -> None:
    bucket = limit(limit="3600", remaining=str(left))
    assert {priority for priority in Priority if bucket.wait(priority) == 0} == open_


def test_a_delete_is_never_refused_here() -> None:
    """The cloud may have calls again: another client of the account may have stopped."""
    bucket = limit(limit="3600", remaining="0")
    bucket.require(Priority.DELETE)
    for priority in set(Priority) - {Priority.DELETE}:
        with pytest.raises(ProviderError) as caught:
            bucket.require(priority)
        error = caught.value
        assert (error.kind, error.applied, error.scope) == (ErrorKind.RATE_LIMIT, Applied.NO, Scope.PROVIDER)


def test_the_wait_ends_when_the_reserve_is_whole_not_when_the_bucket_is_full() -> None:
    now = 0.0
    bucket = RateLimit(600, kind="unit", monotonic=lambda: now)
    bucket.note({"RateLimit-Limit": "3600", "RateLimit-Remaining": "500", "RateLimit-Reset": "1900000000"})
    assert bucket.wait(Priority.CREATE) == pytest.approx(101)
    now = 100.0
    with pytest.raises(ProviderError) as caught:
        bucket.require(Priority.CREATE)
    assert caught.value.retry_after == pytest.approx(1)
    now = 101.0
    bucket.require(Priority.CREATE)


def test_a_refusal_empties_the_bucket_whatever_its_headers_say() -> None:
    bucket = limit(limit="3600", remaining="3000")
    bucket.note({"RateLimit-Limit": "3600", "RateLimit-Remaining": "3000"}, refused=True)
    assert bucket.wait(Priority.LIST) == pytest.approx(301)


def test_nothing_is_refused_before_anything_is_known() -> None:
    limit(remaining="many").require(Priority.OPTIONAL)


def test_a_small_bucket_keeps_a_quarter_at_most() -> None:
    bucket = limit(limit="400", remaining="150")
    assert bucket.wait(Priority.CREATE) == 0
    assert bucket.wait(Priority.OPTIONAL) == pytest.approx(9)
