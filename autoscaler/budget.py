"""The hourly budget of calls that a cloud grants, kept on this side: optional calls end first, deletes never."""

import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

from providers.base import (
    Access,
    Applied,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Inventory,
    Offer,
    ProviderError,
    Ref,
    Scope,
    SettingsError,
)

HOUR: Final = 3600.0
DELETE_SHARE: Final = 1 / 6
"""Of an hour's calls, kept for deletes; Hetzner Cloud's 3600 leave 600."""
OPTIONAL_SHARE: Final = 1 / 4
"""Below this share nothing is looked up that can wait: the catalogue."""


class Metered(ComputeProvider):
    """A provider whose calls are counted; refuses them as the cloud itself would, before it has to.

    A bucket of one hour's calls that refills evenly.  What a call costs the cloud beyond one request, such as further
    pages, only the provider knows, and it may keep a stricter budget of its own.

    Args:
        provider: has `Caps.calls_per_hour`.
        monotonic: seconds that only grow.
    """

    def __init__(self, provider: ComputeProvider, monotonic: Callable[[], float]) -> None:
        self._provider = provider
        self._monotonic = monotonic
        self.kind = provider.kind  # type: ignore[misc]  # of the one that it stands for
        self.caps = provider.caps  # type: ignore[misc]
        self._most = float(provider.caps.calls_per_hour or 0)
        self._left = self._most
        self._at = monotonic()
        self._lock = threading.Lock()

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        """Refused: it stands for a provider that is made already."""
        raise SettingsError("a metered provider is made from another provider")

    def offers(self) -> list[Offer]:
        self._spend(OPTIONAL_SHARE)
        return self._provider.offers()

    def list(self) -> Inventory:
        self._spend(DELETE_SHARE)
        return self._provider.list()

    def get(self, ref: Ref) -> Instance | None:
        self._spend(DELETE_SHARE)
        return self._provider.get(ref)

    def create(self, want: Create) -> Instance:
        self._spend(DELETE_SHARE)
        return self._provider.create(want)

    def delete(self, ref: Ref) -> Deleted:
        self._spend(0.0)
        return self._provider.delete(ref)

    def connect(self, instance: Instance) -> Access | None:
        return self._provider.connect(instance)

    def _spend(self, reserve: float) -> None:
        """Counts one call.

        Raises:
            ProviderError: less than ``reserve`` of an hour's calls would be left.
        """
        with self._lock:
            now = self._monotonic()
            self._left = min(self._most, self._left + (now - self._at) * self._most / HOUR)
            self._at = now
            lacking = 1 + reserve * self._most - self._left
            if lacking <= 0:
                self._left -= 1
                return
        raise ProviderError(
            f"the budget of {self._most:.0f} calls an hour is nearly used up; the rest is kept for deletes",
            kind=ErrorKind.RATE_LIMIT,
            applied=Applied.NO,
            scope=Scope.PROVIDER,
            retry_after=lacking * HOUR / self._most,
            code="budget",
        )


def metered(provider: ComputeProvider, monotonic: Callable[[], float]) -> ComputeProvider:
    """The provider, metered where its cloud counts calls."""
    return Metered(provider, monotonic) if provider.caps.calls_per_hour else provider
