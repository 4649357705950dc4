"""A cloud in memory, in virtual time, that can be told to misbehave.

`FakeCloud` is the test's handle: time, faults, and what really is there.  `FakeProvider` is what the code under test
gets.  Several providers may share one cloud, as several deployments share one account.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import ClassVar, Final, Self

from providers.base import (
    Access,
    Applied,
    Billing,
    Caps,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Inventory,
    Offer,
    Phase,
    ProviderError,
    Ref,
    Resources,
    Scope,
    SettingsError,
)

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
MAX_USER_DATA: Final = 32_768  # bytes; the bound of the strictest cloud that has one
DEPLOYMENT_LABEL: Final = "fake/deployment"
OPERATION_LABEL: Final = "fake/operation"
OFFERS: Final = (
    Offer("small", "here", Resources(cpus=4, memory_mb=8192, disk_mb=81920), Decimal("0.01"), available=True),
    Offer("large", "here", Resources(cpus=16, memory_mb=32768, disk_mb=327680), Decimal("0.04"), available=True),
    Offer("small", "there", Resources(cpus=4, memory_mb=8192, disk_mb=81920), Decimal("0.02"), available=True),
    Offer("gpu", "here", Resources(cpus=16, memory_mb=65536, disk_mb=327680, gpus=1), Decimal("1.00"), available=True),
)


class SimulatedCrash(BaseException):
    """The process of the caller dies here.  No handler of ordinary errors sees it."""


@dataclass(frozen=True)
class Fault:
    """What the next call of one method meets.

    Attributes:
        effect: whether the call does its work before it fails.
        error: what it raises then; `SimulatedCrash` plays the death of the caller.
    """

    effect: bool
    error: BaseException


@dataclass
class Machine:
    """One VM of the fake cloud."""

    instance: Instance
    runs_at: datetime | None
    """When it will be running; ``None`` when it never will."""
    gone_at: datetime | None = None
    lost: bool = False


@dataclass
class FakeCloud:
    """The cloud behind `FakeProvider`.

    Attributes:
        boot_seconds: how long a new instance boots.
        stop_seconds: how long a deleted one goes on being listed.
        now: the cloud's own time; only `advance` moves it.
        created: every instance that was ever made, in order.
    """

    boot_seconds: float = 30.0
    stop_seconds: float = 5.0
    offers: tuple[Offer, ...] = OFFERS
    now: datetime = EPOCH
    machines: dict[str, Machine] = field(default_factory=dict)
    created: list[Instance] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    stuck_booting: bool = False
    """New instances never get beyond booting."""
    rate_exhausted: bool = False
    on_call: Callable[[str], None] | None = None
    """Is told the method's name before every call."""
    on_answer: Callable[[str], None] | None = None
    """Is told the method's name after its work and before its answer."""
    _faults: dict[str, list[Fault]] = field(default_factory=dict)

    def advance(self, seconds: float) -> None:
        """Lets that much time pass."""
        self.now += timedelta(seconds=seconds)
        for name, machine in list(self.machines.items()):
            if machine.gone_at is not None and machine.gone_at <= self.now:
                del self.machines[name]

    def fail_next(
        self,
        method: str,
        kind: ErrorKind,
        applied: Applied,
        *,
        effect: bool | None = None,
        scope: Scope = Scope.PROVIDER,
        retry_after: float | None = None,
    ) -> None:
        """The next call of ``method`` raises.  Faults of one method come one after the other.

        Args:
            effect: whether it does its work all the same; by default only if ``applied`` says yes.  A ``maybe`` with
                ``effect`` is the answer that was lost on its way back.
        """
        done = applied is Applied.YES if effect is None else effect
        message = f"fake: {method} answered {kind}"
        error = ProviderError(message, kind=kind, applied=applied, scope=scope, retry_after=retry_after, code="fake")
        self._faults.setdefault(method, []).append(Fault(done, error))

    def lose_answer(self, method: str = "create") -> None:
        """The next call of ``method`` does its work, and its answer is lost."""
        self.fail_next(method, ErrorKind.TRANSIENT, Applied.MAYBE, effect=True)

    def crash_next(self, method: str, *, effect: bool) -> None:
        """The caller dies in its next call of ``method``, before or after the work was done."""
        self._faults.setdefault(method, []).append(Fault(effect, SimulatedCrash(method)))

    def vanish(self, name: str) -> None:
        """The instance is gone at once, and nobody was told."""
        del self.machines[name]

    def lose(self, name: str) -> None:
        """The instance stays in the listing and can never run again."""
        self.machines[name].lost = True

    def running(self) -> list[str]:
        """Names of the instances that run now, oldest first."""
        return [name for name, machine in self.machines.items() if self.phase(machine) is Phase.RUNNING]

    def by_operation(self) -> dict[str, list[str]]:
        """Names of all instances that are there, under the operation that made them."""
        found: dict[str, list[str]] = {}
        for name, machine in self.machines.items():
            found.setdefault(machine.instance.labels.get(OPERATION_LABEL, ""), []).append(name)
        return found

    def phase(self, machine: Machine) -> Phase:
        """Where a machine stands at this moment."""
        if machine.gone_at is not None:
            return Phase.STOPPING
        if machine.lost:
            return Phase.LOST
        return Phase.RUNNING if machine.runs_at is not None and machine.runs_at <= self.now else Phase.BOOTING

    def begin(self, method: str) -> Fault | None:
        """Counts a call, applies the rate bound and takes the fault that waits for this method."""
        if self.on_call is not None:
            self.on_call(method)
        self.calls.append(method)
        if self.rate_exhausted:
            raise ProviderError(
                "fake: too many calls",
                kind=ErrorKind.RATE_LIMIT,
                applied=Applied.NO,
                scope=Scope.PROVIDER,
                retry_after=1.0,
            )
        waiting = self._faults.get(method)
        fault = waiting.pop(0) if waiting else None
        if fault is not None and not fault.effect:
            raise fault.error
        return fault

    def end(self, method: str, fault: Fault | None) -> None:
        """The moment between the work and its answer."""
        if self.on_answer is not None:
            self.on_answer(method)
        if fault is not None:
            raise fault.error


class FakeProvider(ComputeProvider):
    """The port, over a `FakeCloud`."""

    kind: ClassVar[str] = "fake"
    caps: ClassVar[Caps] = Caps(
        unique_names=True,
        list_is_atomic=True,
        deleted_vanish=True,
        billing=Billing.PER_SECOND,
        max_user_data=MAX_USER_DATA,
        calls_per_hour=3600,
        has_gpu=True,
    )

    def __init__(self, cloud: FakeCloud, deployment: str) -> None:
        self.cloud = cloud
        self.deployment = deployment

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        """A provider over a cloud of its own."""
        if settings:
            raise SettingsError(f"fake: unknown key {min(settings)!r}; it has none")
        return cls(FakeCloud(), deployment)

    def offers(self) -> list[Offer]:
        fault = self.cloud.begin("offers")
        self.cloud.end("offers", fault)
        return [*self.cloud.offers]

    def list(self) -> Inventory:
        fault = self.cloud.begin("list")
        mine = [self._view(m) for m in tuple(self.cloud.machines.values()) if self._is_mine(m)]
        self.cloud.end("list", fault)
        return Inventory(tuple(mine), taken_at=self.cloud.now)

    def get(self, ref: Ref) -> Instance | None:
        fault = self.cloud.begin("get")
        machine = self._find(ref)
        self.cloud.end("get", fault)
        return self._view(machine) if machine else None

    def create(self, want: Create) -> Instance:
        fault = self.cloud.begin("create")
        instance = self._create(want)
        self.cloud.end("create", fault)
        return instance

    def delete(self, ref: Ref) -> Deleted:
        fault = self.cloud.begin("delete")
        machine = self._find(ref)
        if machine is not None and machine.gone_at is None:
            machine.gone_at = self.cloud.now + timedelta(seconds=self.cloud.stop_seconds)
        self.cloud.end("delete", fault)
        return Deleted.GONE if machine is None else Deleted.ACCEPTED

    def connect(self, instance: Instance) -> Access | None:
        return Access(host=instance.address, port=22, user="root") if instance.address else None

    def _create(self, want: Create) -> Instance:
        if len(want.user_data.encode()) > MAX_USER_DATA:
            raise self._refusal(ErrorKind.CONFIG, f"user data is over {MAX_USER_DATA} bytes", Scope.POOL)
        there = self.cloud.machines.get(want.name)
        if there is not None:
            labels = there.instance.labels
            if labels.get(OPERATION_LABEL) != want.operation_id or not self._is_mine(there):
                raise self._refusal(ErrorKind.EXISTS, f"the name {want.name} is taken", Scope.INSTANCE)
            return dataclasses.replace(self._view(there), adopted=True)
        if not any((offer.type, offer.location) == (want.type, want.location) for offer in self.cloud.offers):
            raise self._refusal(ErrorKind.CONFIG, f"no offer {want.type} at {want.location}", Scope.POOL)
        number = len(self.cloud.created) + 1
        instance = Instance(
            id=f"vm-{number}",
            name=want.name,
            labels={**want.labels, DEPLOYMENT_LABEL: want.deployment, OPERATION_LABEL: want.operation_id},
            phase=Phase.BOOTING,
            type=want.type,
            location=want.location,
            created_at=self.cloud.now,
            address=f"10.0.{number // 250}.{number % 250 + 1}",
        )
        runs_at = None if self.cloud.stuck_booting else self.cloud.now + timedelta(seconds=self.cloud.boot_seconds)
        self.cloud.machines[want.name] = Machine(instance, runs_at)
        self.cloud.created.append(instance)
        return instance

    def _refusal(self, kind: ErrorKind, message: str, scope: Scope) -> ProviderError:
        return ProviderError(f"fake: {message}", kind=kind, applied=Applied.NO, scope=scope)

    def _view(self, machine: Machine) -> Instance:
        return dataclasses.replace(machine.instance, phase=self.cloud.phase(machine))

    def _is_mine(self, machine: Machine) -> bool:
        return machine.instance.labels.get(DEPLOYMENT_LABEL) == self.deployment

    def _find(self, ref: Ref) -> Machine | None:
        for machine in tuple(self.cloud.machines.values()):
            instance = machine.instance
            if self._is_mine(machine) and ref.id in (None, instance.id) and ref.name in (None, instance.name):
                return machine
        return None
