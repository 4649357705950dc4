"""However answers are lost, an operation never has more than one machine, and every operation gets one in the end.

That takes both sides: the provider, which looks for the operation before it orders, and its caller, which orders again
only after two complete listings, a time to settle apart, that lack it.  `Caller` is that rule and nothing else.
"""

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.base import OPERATION_LABEL, Applied, Deleted, Phase, ProviderError, Ref
from providers.ucloud.errors import SETTLE_SECONDS
from providers.ucloud.provider import UCloudProvider
from tests.fakes.ucloud.lab import Lab, lab, order

TICK = 15.0
TICKS = 600
OPERATIONS = 4
SHARE = 0.3
"""Of submissions go wrong: lost on the way there, on the way back, in the middle, or at the provider."""
FAULTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("lost_response", {"mode": "close"}),
    ("lost_response", {"mode": "half"}),
    ("lost_request", {}),
    ("late_effect", {"seconds": 63.0}),
    ("provider_timeout", {"orphan": False}),
    ("provider_timeout", {"orphan": True}),
)


@dataclass
class Operation:
    """One order and what is known of it."""

    number: int
    called_at: float | None = None
    missing_since: float | None = None
    seen: bool = False
    closed: bool = False
    """Its job was there and is gone, so the order is given up and a new one takes its place."""


@dataclass
class Caller:
    """The rule, over one provider."""

    provider: UCloudProvider
    settle_seconds: float
    operations: list[Operation] = field(default_factory=list)
    now: float = 0.0

    def tick(self) -> None:
        """One complete listing, or nothing is concluded; then orders."""
        try:
            listed = {seen.labels[OPERATION_LABEL]: seen.phase for seen in self.provider.list().instances}
        except ProviderError:
            return
        for operation in [*self.operations]:
            self._settle(operation, listed.get(f"op{operation.number}", Phase.GONE))
        while sum(not operation.closed for operation in self.operations) < OPERATIONS:
            self.operations.append(Operation(len(self.operations)))
        for operation in self.operations:
            if not operation.closed and not operation.seen and operation.called_at is None:
                self._call(operation)

    def _settle(self, operation: Operation, phase: Phase) -> None:
        if operation.called_at is None or operation.closed:
            return
        if phase is not Phase.GONE:
            operation.seen, operation.missing_since = True, None
        elif operation.missing_since is None:
            operation.missing_since = self.now
        elif self.now - operation.missing_since >= self.settle_seconds:
            operation.closed = operation.seen
            operation.called_at = operation.missing_since = None

    def _call(self, operation: Operation) -> None:
        operation.called_at = self.now
        try:
            self.provider.create(order(operation.number))
        except ProviderError as error:
            if error.applied is Applied.NO:
                operation.called_at = None


def play(account: Lab, caller: Caller) -> None:
    """Until every operation runs."""
    for _ in range(TICKS):
        caller.tick()
        account.remote.advance(TICK)
        caller.now += TICK
        jobs = account.remote.truth()["jobs"].values()
        if sum(job["state"] == "RUNNING" and OPERATION_LABEL in job["labels"] for job in jobs) >= OPERATIONS:
            return
    raise AssertionError(f"not every operation runs after {TICKS * TICK:.0f} s")


def break_things(account: Lab) -> None:
    """Script the three kinds of loss, each as likely as the others."""
    each = SHARE / len(FAULTS)
    for name, args in FAULTS:
        account.remote.fault(name, "submit", times=None, probability=each, **args)
    account.remote.fault("gateway", "browse", times=None, probability=0.05, status=502)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31))
def test_an_operation_never_has_two_machines(seed: int) -> None:
    with lab(seed=seed) as account:
        break_things(account)
        caller = Caller(account.provider(page_size=100), SETTLE_SECONDS)
        play(account, caller)
        account.remote.ask("heal")
        account.remote.advance(SETTLE_SECONDS)
        truth = account.remote.truth()
        twice = {op: jobs for op, jobs in truth["started"].items() if len(jobs) > 1}
        assert not twice
        end_all(account)


def end_all(account: Lab) -> None:
    """End what is listed; what is not ends by itself."""
    provider = account.provider(page_size=100)
    for seen in provider.list().instances:
        assert provider.delete(Ref(id=seen.id)) in set(Deleted)
    account.settle(lambda: all(seen.phase is Phase.GONE for seen in provider.list().instances))
    account.remote.advance(600)
    assert {machine["phase"] for machine in account.remote.truth()["machines"].values()} == {"ended"}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=int(os.environ.get("SANDBOXES_SOAK_EXAMPLES", "300")), deadline=None)
@given(seed=st.integers(0, 2**31))
def test_an_operation_never_has_two_machines_for_long(seed: int) -> None:
    test_an_operation_never_has_two_machines.hypothesis.inner_test(seed)  # type: ignore[attr-defined]


def test_without_settling_an_operation_would_have_two_machines() -> None:
    """The test above can fail: a caller in a hurry orders again what is still on its way."""
    with lab() as account:
        account.remote.fault("late_effect", "submit", seconds=63.0)
        caller = Caller(account.provider(page_size=100), settle_seconds=TICK)
        play(account, caller)
        account.remote.advance(300)
        assert [op for op, jobs in account.remote.truth()["started"].items() if len(jobs) > 1] == ["op0"]
