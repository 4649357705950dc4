"""How long nothing is created after a failure, and how far that reaches.

Doubles with every failed window, not with every failure inside one, and is forgotten after three quiet hours; the
bounds are those of the cluster autoscaler, split by what failed.
"""

from typing import Final

from autoscaler.core.pools import OfferKey
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind
from providers.base import ErrorKind, ProviderError, Scope

CLOCK: Final = BackOffKey(BackOffKind.CLOCK)
"""Key under which it is kept until when ages prove nothing, so that a new process knows of a jump before its start."""
FORGET_SECONDS: Final = 3 * 3600.0
BOUNDS: Final[dict[Scope, tuple[float, float]]] = {
    Scope.INSTANCE: (10.0, 300.0),
    Scope.OFFER: (120.0, 1800.0),
    Scope.LOCATION: (1800.0, 6 * 3600.0),
    Scope.POOL: (60.0, 3600.0),
    Scope.PROVIDER: (30.0, 3600.0),
}
SWEEP_BOUNDS: Final = (60.0, 1800.0)
"""Between two deletes of one thing without a row."""
QUOTA_BOUNDS: Final = (300.0, 3600.0)
"""A limit of an account is raised by people, or by instances that go."""
BREAKER_FAILURES: Final = 3
"""Failed boots in a row that open the circuit of a pool: then one probe a window, the first of `BREAKER_SECONDS`."""
BREAKER_SECONDS: Final = 600.0
DEPRECATED_SECONDS: Final = 30 * 86_400.0
"""An offer that was withdrawn comes back with new settings, not with time."""
CLOSING_SECONDS: Final = 180.0
"""A pool closes no node for so long after a delete of it failed: what cannot be deleted is not to become more."""
DOUBT_SECONDS: Final = 600.0
"""For so long `sandboxes autoscaler status` shows what was left out, unless it is understood before."""
RETRY_FIRST: Final = 2.0
RETRY_MOST: Final = 60.0


def pool_key(pool: str) -> BackOffKey:
    """Return the key of a pool whose instances do not become nodes, or whose settings are refused."""
    return BackOffKey(BackOffKind.POOL, pool)


def closing_key(pool: str) -> BackOffKey:
    """Return the key of a pool that is not scaled down."""
    return BackOffKey(BackOffKind.CLOSING, pool)


def sweep_key(provider: str, thing: str) -> BackOffKey:
    """Return the key of something without a row whose delete was sent and has to have its time."""
    return BackOffKey(BackOffKind.SWEEP, provider, thing)


def doubt_key(subject: str) -> BackOffKey:
    """Return the key of something that is left out because it is not understood."""
    return BackOffKey(BackOffKind.DOUBT, subject)


def offer_keys(provider: str, offer: OfferKey) -> tuple[BackOffKey, ...]:
    """Return all keys of a provider under which a create of this offer can be held back."""
    return (
        BackOffKey(BackOffKind.PROVIDER, provider),
        BackOffKey(BackOffKind.LOCATION, provider, offer.location),
        BackOffKey(BackOffKind.OFFER, provider, str(offer)),
    )


def keys(provider: str, pool: str, offer: OfferKey) -> tuple[BackOffKey, ...]:
    """Return all keys under which a create of this offer for this pool can be held back, the widest first."""
    return (*offer_keys(provider, offer), pool_key(pool))


def key_of(error: ProviderError, provider: str, pool: str, offer: OfferKey) -> BackOffKey:
    """Return the key that a failed create holds back."""
    whole, location, one = offer_keys(provider, offer)
    if error.kind in (ErrorKind.QUOTA, ErrorKind.AUTH, ErrorKind.RATE_LIMIT):
        return whole  # the next offer shares the limit, whatever scope the provider gave
    by_scope = {Scope.PROVIDER: whole, Scope.LOCATION: location, Scope.OFFER: one}
    return by_scope.get(error.scope, pool_key(pool))


def bounds_of(error: ProviderError, key: BackOffKey) -> tuple[float, float]:
    """Return the seconds of the first window and of the longest after a failed create that holds back ``key``."""
    if error.kind is ErrorKind.QUOTA:
        return QUOTA_BOUNDS
    return BOUNDS[Scope.PROVIDER if key.kind is BackOffKind.PROVIDER else error.scope]


def grown(
    previous: BackOff | None,
    key: BackOffKey,
    *,
    bounds: tuple[float, float],
    now: float,
    reason: str,
    least: float = 0.0,
    chance: float = 1.0,
) -> BackOff:
    """Return the back-off after one more failure.

    Args:
        previous: what was stored under ``key``.
        bounds: seconds of the first window and of the longest.
        least: seconds that the provider asked for.
        chance: a random number below 1, so that many who failed together do not come back together (full jitter).
            A quarter of the first window is waited in any case: an instant retry would teach nothing.
    """
    if previous is not None and now < previous.until:
        failures = previous.failures
    elif previous is None or now - previous.failed_at > FORGET_SECONDS:
        failures = 1
    else:
        failures = previous.failures + 1
    first, most = bounds
    window = _doubled(first, most, failures - 1)
    seconds = max(least, first / 4, window * chance)
    until = max(now + seconds, previous.until if previous is not None else 0.0)
    return BackOff(key, until, failures, now, reason)


def failed_boot(previous: BackOff | None, pool: str, *, now: float, reason: str, chance: float) -> BackOff:
    """Return the back-off of a pool after an instance that did not become a node.

    Every failed boot counts, inside one window too: each has cost money.
    """
    recent = previous is not None and now - previous.failed_at <= FORGET_SECONDS
    failures = previous.failures + 1 if previous is not None and recent else 1
    first, most = BOUNDS[Scope.POOL]
    window = _doubled(first, most, failures - 1)
    seconds = max(first / 4, window * chance)
    if failures >= BREAKER_FAILURES:
        window = _doubled(BREAKER_SECONDS, most, failures - BREAKER_FAILURES)
        seconds = window / 2 + window * chance / 2
        reason = f"{failures} boots in a row have failed, so one is tried at a time: {reason}"
    until = max(now + seconds, previous.until if previous is not None else 0.0)
    return BackOff(pool_key(pool), until, failures, now, reason)


def retry_after(attempts: int) -> float:
    """Return the seconds until a call whose outcome is unknown is made again."""
    return _doubled(RETRY_FIRST, RETRY_MOST, attempts)


def _doubled(first: float, most: float, times: int) -> float:
    """Return ``first``, doubled so many times, and ``most`` at the most."""
    return min(most, first * 2.0 ** min(times, 32))  # failures of a month have no float


def failed_delete(pool: str, *, now: float, reason: str) -> BackOff:
    """Return what holds a pool back from closing more nodes."""
    return BackOff(closing_key(pool), now + CLOSING_SECONDS, 1, now, reason)


def delete_again_after(since: float, now: float, retry_after: float | None) -> float:
    """Return the seconds until a delete that failed is sent again: as long as it has failed already, within bounds.

    Args:
        since: when it was first sent.
        now: when it failed.
        retry_after: what the provider asked for.
    """
    if retry_after is not None:
        return retry_after
    return min(BOUNDS[Scope.INSTANCE][1], max(RETRY_FIRST, now - since))


def describe(held: BackOff) -> str:
    """Return a sentence for people about a back-off."""
    what = {
        BackOffKind.CLOCK: "for",
        BackOffKind.SWEEP: "its delete is not sent again for",
        BackOffKind.CLOSING: "nothing is closed for",
        BackOffKind.DOUBT: "it is left out for",
    }.get(held.key.kind, "nothing is created for")
    return f"{what} {held.until - held.failed_at:.0f} s: {held.reason}"
