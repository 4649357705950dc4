"""What the suite needs of an author: an account of the cloud, and the time in it; and what it says with that."""

# ruff: noqa: S101 - these are for tests; they ship so that others can run them

from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest

from providers.base import Applied, ComputeProvider, Create, ErrorKind, Inventory, Phase, ProviderError, Scope

DEPLOYMENT = "contract"
LABELS = {"fleet/pool": "cpu", "fleet/spec": "a1b2c3", "fleet/empty": "", "fleet/long": "x" * 63}


class Harness(ABC):
    """One account of a cloud, real or emulated, and the time in it."""

    image: str = "any"
    user_data: str = ""
    secrets: tuple[str, ...] = ()
    """What the provider was given and must never tell: no ``repr``, error or log line holds one of these."""

    @abstractmethod
    def provider(self, deployment: str) -> ComputeProvider:
        """A provider for the same account; called several times."""

    @abstractmethod
    def settle(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until ``condition`` holds; raises `TimeoutError` when it will not."""

    def exhaust_rate(self) -> None:
        """Uses up the calls of this hour; needed only where ``caps.calls_per_hour`` is set."""
        raise AssertionError("caps.calls_per_hour is set, so the harness must be able to use them up")


def want(
    provider: ComputeProvider,
    harness: Harness,
    number: int = 1,
    *,
    operation_id: str | None = None,
    type: str | None = None,
    user_data: str | None = None,
    name: str | None = None,
) -> Create:
    """An order that the provider should accept, for its first available offer, unless a field says otherwise."""
    offer = next(offer for offer in provider.offers() if offer.available)
    return Create(
        name=name or f"contract-cpu-op{number}",
        operation_id=operation_id or f"op{number}",
        deployment=DEPLOYMENT,
        pool="cpu",
        type=type or offer.type,
        location=offer.location,
        image=harness.image,
        user_data=harness.user_data if user_data is None else user_data,
        labels=LABELS,
    )


def refusal(call: Callable[[], object], *kinds: ErrorKind, applied: Applied = Applied.NO) -> ProviderError:
    """The error of a call that must fail with one of these kinds; its fields are what the caller decides by."""
    with pytest.raises(ProviderError) as caught:
        call()
    error = caught.value
    assert (error.kind in kinds, error.applied) == (True, applied), f"{error.kind}, {error.applied}: {error}"
    assert isinstance(error.scope, Scope)
    assert error.retry_after is None or error.retry_after >= 0
    assert str(error)
    assert all(isinstance(word, str) for item in error.details.items() for word in item)
    return error


def names(inventory: Inventory) -> set[str]:
    """Names of everything listed that is not gone."""
    return {instance.name for instance in inventory.instances if instance.phase is not Phase.GONE}
