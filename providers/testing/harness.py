"""What the suite needs of an author: an account of the cloud, and the time in it; and what it says with that."""

# ruff: noqa: S101 - these are for tests; they ship so that others can run them

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from providers.base import (
    Applied,
    ComputeProvider,
    Create,
    ErrorKind,
    Instance,
    Inventory,
    Phase,
    ProviderError,
    Ref,
    Scope,
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
    """What the provider was given and must never tell: no ``repr``, error or log line holds one of these."""
    settings: Mapping[str, object] | None = None
    """A valid table of settings.  The suite adds a key that no provider knows, which must be refused."""
    environ: Mapping[str, str] = {}
    """What ``settings`` name of the environment."""

    @abstractmethod
    def provider(self, deployment: str) -> ComputeProvider:
        """A provider for the same account; called several times."""

    @abstractmethod
    def settle(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until ``condition`` holds; raises `TimeoutError` when it will not."""

    def exhaust_rate(self) -> None:
        """Uses up the calls of this hour; needed only where ``caps.calls_per_hour`` is set."""
        pytest.fail("caps.calls_per_hour is set, so the harness must have exhaust_rate, which uses them up")

    def user_data_of(self, instance: Instance) -> str:
        """The user data that the cloud really has of an instance, past the provider.

        Optional: without it one test is skipped, and user data that gets lost is found by nobody.
        """
        pytest.skip("the harness has no user_data_of, so nobody sees whether user data arrives")


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
    """Names of everything listed that is not gone."""
    return {instance.name for instance in inventory.instances if instance.phase is not Phase.GONE}


def padded(harness: Harness, size: int, filler: str = " ") -> str:
    """The harness's user data, filled up to ``size`` bytes, or less than one ``filler`` beyond."""
    missing = size - len(harness.user_data.encode())
    return harness.user_data + filler * -(-missing // len(filler.encode()))


def phase(provider: ComputeProvider, made: Instance) -> Phase:
    """Where an instance stands, by the listing and by ``get``, which must agree once it is gone."""
    listed = [instance for instance in provider.list().instances if instance.id == made.id]
    if listed:
        return listed[0].phase
    got = provider.get(Ref(id=made.id))
    return got.phase if got is not None else Phase.GONE
