"""A cloud in memory, in virtual time, as nasty as the real ones, and a provider for it.

`FakeCloud` is the test's handle: time, faults, and what really is there.  `FakeProvider` is what the code under test
gets.  Several providers may share one cloud, as several deployments share one account.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import ClassVar, Final, Self

from providers.base import (
    DEPLOYMENT_LABEL,
    OPERATION_LABEL,
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
HOUR: Final = 3600.0


CAPS: Final = Caps(
    unique_names=True,
    list_is_atomic=True,
    deleted_vanish=True,
    billing=Billing.PER_SECOND,
    max_user_data=MAX_USER_DATA,
    calls_per_hour=3600,
    has_gpu=True,
)
OFFERS: Final = (
    Offer("small", "here", Resources(cpus=4, memory_mb=8192, disk_mb=81920), Decimal("0.01"), available=True),
    Offer("large", "here", Resources(cpus=16, memory_mb=32768, disk_mb=327680), Decimal("0.04"), available=True),
    Offer("small", "there", Resources(cpus=4, memory_mb=8192, disk_mb=81920), Decimal("0.02"), available=True),
    Offer("gpu", "here", Resources(cpus=16, memory_mb=65536, disk_mb=327680, gpus=1), Decimal("1.00"), available=True),
)


class SimulatedCrash(BaseException):
    """The caller's process dies here; no handler of ordinary errors sees it."""


@dataclass(frozen=True)
class Fault:
    """What the next call of one method meets.

    Attributes:
        effect: whether the call does its work before it fails.
        error: what it raises then.  ``None``: it succeeds.
        seconds: how long it hangs before that.
        late: a create that fails comes through so many seconds later all the same.
    """

    effect: bool
    error: Exception | None
    seconds: float = 0.0
    late: float | None = None


@dataclass
class Machine:
    """One VM of the fake cloud."""

    instance: Instance
    runs_at: datetime | None
    """When it will be running; ``None`` for never."""
    gone_at: datetime | None = None
    lost: bool = False
    user_data: str = ""

    @property
    def operation(self) -> str:
        """The operation that ordered it."""
        return self.instance.labels.get(OPERATION_LABEL, "")


@dataclass
class FakeCloud:
    """The cloud behind `FakeProvider`.

    Attributes:
        boot_seconds: how long a new instance boots.
        stop_seconds: how long a deleted one goes on being listed.
        caps: what kind of cloud it is; its names, final rows and rate limit follow from that.
        now: the cloud's own time; only `advance` moves it.
        machines: every machine, by name where names are unique, else by id.
        ended: deleted ones by id, where they stay listed.
        made: every machine ever made, in order.
        leftovers: orphaned side resources, with the deployment that they belong to.
    """

    boot_seconds: float = 30.0
    stop_seconds: float = 5.0
    offers: tuple[Offer, ...] = OFFERS
    caps: Caps = CAPS
    prefix: str = "vm"
    """Prefix of instance ids."""
    now: datetime = EPOCH
    machines: dict[str, Machine] = field(default_factory=dict)
    ended: dict[str, Machine] = field(default_factory=dict)
    made: list[Machine] = field(default_factory=list)
    leftovers: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    stuck_booting: bool = False
    """New instances never get beyond booting, as where a lack of capacity shows only in silence."""
    leaves_leftovers: bool = False
    """Deleted instances leave an address behind."""
    rate_exhausted: bool = False
    """Another client has used up the calls of this hour."""
    rate_refusals: int = 0
    """Calls refused because this client made too many."""
    clock_off: float = 0.0
    """Seconds by which the cloud's timestamps are off."""
    on_call: Callable[[str], None] | None = None
    """Called with the method's name before every call."""
    on_answer: Callable[[str], None] | None = None
    """Called with the method's name after its work and before its answer."""
    on_wait: Callable[[float], None] | None = None
    """Called to let time pass while a call hangs; by default only this cloud's clock moves."""
    _faults: dict[str, list[Fault]] = field(default_factory=dict)
    _late: list[tuple[datetime, Create]] = field(default_factory=list)
    _hidden: set[str] = field(default_factory=set)
    _lacking: set[str] = field(default_factory=set)
    _spent: float = 0.0
    _spent_at: datetime = EPOCH

    def advance(self, seconds: float) -> None:
        """Advance the cloud's clock by ``seconds``, and do what falls due."""
        self.now += timedelta(seconds=seconds)
        for order in [order for order in self._late if order[0] <= self.now]:
            self._late.remove(order)
            if not self.caps.unique_names or order[1].name not in self.machines:
                self.make(order[1])
        for key, machine in list(self.machines.items()):
            if machine.gone_at is not None and machine.gone_at <= self.now:
                del self.machines[key]
                self._end(machine)

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def fail_next(
        self,
        method: str,
        kind: ErrorKind,
        applied: Applied,
        *,
        effect: bool | None = None,
        scope: Scope = Scope.PROVIDER,
        retry_after: float | None = None,
        late: float | None = None,
    ) -> None:
        """Let the next call of ``method`` raise.  Faults of one method strike one after the other.

        Args:
            method: name of a method of `ComputeProvider`.
            kind: of the error, as are ``applied``, ``scope`` and ``retry_after``.
            effect: whether it does its work all the same; by default only if ``applied`` says yes.  A ``maybe`` with
                ``effect`` is the answer that was lost on its way back.
            late: a create without effect takes effect so many seconds later.
        """
        done = applied is Applied.YES if effect is None else effect
        message = f"fake: {method} answered {kind}"
        error = ProviderError(message, kind=kind, applied=applied, scope=scope, retry_after=retry_after, code="fake")
        self._faults.setdefault(method, []).append(Fault(done, error, late=late))

    def lose_answer(self, method: str = "create") -> None:
        """Let the next call of ``method`` do its work and lose its answer."""
        self.fail_next(method, ErrorKind.TRANSIENT, Applied.MAYBE, effect=True)

    def delay_order(self, seconds: float) -> None:
        """Let the next create get no answer, and its instance appear ``seconds`` later."""
        self.fail_next("create", ErrorKind.TRANSIENT, Applied.MAYBE, effect=False, late=seconds)

    def break_next(self, method: str, error: Exception, *, effect: bool) -> None:
        """Let the next call of ``method`` raise something that is no `ProviderError`."""
        self._faults.setdefault(method, []).append(Fault(effect, error))

    def hang_next(self, method: str, seconds: float) -> None:
        """Let the next call of ``method`` hang for ``seconds`` and then succeed."""
        self._faults.setdefault(method, []).append(Fault(True, None, seconds))

    def hide_next(self, key: str) -> None:
        """Hide one instance from the next listing, and from searches until the one after; never from two in a row."""
        self._hidden.add(key)

    def vanish(self, key: str) -> None:
        """Remove the instance at once, behind everybody's back."""
        self._end(self.machines.pop(key))

    def lose(self, key: str) -> None:
        """Let the instance stay listed and never run again."""
        self.machines[key].lost = True

    def heal(self) -> None:
        """End all faults; delayed orders still take effect."""
        self.stuck_booting = self.rate_exhausted = self.leaves_leftovers = False
        self._faults.clear()
        self._hidden.clear()
        self._lacking.clear()

    def calls_left(self) -> int:
        """Return how many calls may be made now, as clouds report it in a header; 0 where `caps` bounds none."""
        most = self.caps.calls_per_hour or 0
        gained = (self.now - self._spent_at).total_seconds() * most / HOUR
        return int(most - max(0.0, self._spent - gained))

    def refill(self) -> None:
        """Allow a whole hour's calls again."""
        self._spent = 0.0

    # -- the truth ----------------------------------------------------------------------------------------------------

    @property
    def created(self) -> list[Instance]:
        """Every instance ever made, in order, as it was then."""
        return [machine.instance for machine in self.made]

    def running(self) -> list[str]:
        """Return the names of the running instances, oldest first."""
        return [m.instance.name for m in self.machines.values() if self.phase(m) is Phase.RUNNING]

    def by_operation(self) -> dict[str, list[str]]:
        """Return the keys of all present instances by the operation that ordered them."""
        found: dict[str, list[str]] = {}
        for key, machine in self.machines.items():
            found.setdefault(machine.operation, []).append(key)
        return found

    def under_way(self) -> set[str]:
        """Return the operations whose delayed instance has yet to appear."""
        return {want.operation_id for _, want in self._late}

    def of_order(self, want: Create) -> Machine | None:
        """Return the machine that this operation has ordered already, even if it has ended."""
        for machine in (*self.indexed(), *self.ended.values()):
            labels = machine.instance.labels
            if (labels[DEPLOYMENT_LABEL], machine.operation) == (want.deployment, want.operation_id):
                return machine
        return None

    def phase(self, machine: Machine) -> Phase:
        """Return the phase of a machine at this moment."""
        if machine.gone_at is not None:
            return Phase.STOPPING if machine.gone_at > self.now else Phase.GONE
        if machine.lost:
            return Phase.LOST
        return Phase.RUNNING if machine.runs_at is not None and machine.runs_at <= self.now else Phase.BOOTING

    def shown(self) -> list[Machine]:
        """Return the machines of a listing; the next one shows again what this one hides."""
        self._lacking, self._hidden = self._hidden - self._lacking, set()
        return [*self.indexed(), *self.ended.values()]

    def indexed(self) -> tuple[Machine, ...]:
        """Return what a search finds now: all that the last listing did not hide."""
        return tuple(machine for key, machine in tuple(self.machines.items()) if key not in self._lacking)

    def stamp(self) -> datetime:
        """Return the present moment as the cloud writes it, by a clock that may be off."""
        return self.now + timedelta(seconds=self.clock_off)

    def make(self, want: Create) -> Machine:
        """Make a machine for an order."""
        number = len(self.made) + 1
        instance = Instance(
            id=f"{self.prefix}-{number}",
            name=want.name,
            labels={**want.labels, DEPLOYMENT_LABEL: want.deployment, OPERATION_LABEL: want.operation_id},
            phase=Phase.BOOTING,
            type=want.type,
            location=want.location,
            created_at=self.stamp(),
            address=f"10.0.{number // 250}.{number % 250 + 1}",
        )
        runs_at = None if self.stuck_booting else self.now + timedelta(seconds=self.boot_seconds)
        machine = Machine(instance, runs_at, user_data=want.user_data)
        self.machines[want.name if self.caps.unique_names else instance.id] = machine
        self.made.append(machine)
        return machine

    # -- calls --------------------------------------------------------------------------------------------------------

    def begin(self, method: str, want: Create | None = None) -> Fault | None:
        """Count a call, apply the rate limit, and take the fault that waits for this method."""
        if self.on_call is not None:
            self.on_call(method)
        self.calls.append(method)
        self._count()
        waiting = self._faults.get(method)
        fault = waiting.pop(0) if waiting else None
        if fault is not None and fault.seconds:
            (self.on_wait or self.advance)(fault.seconds)
        if fault is not None and fault.late is not None and want is not None:
            self._late.append((self.now + timedelta(seconds=fault.late), want))
        if fault is not None and not fault.effect and fault.error is not None:
            raise fault.error
        return fault

    def end(self, method: str, fault: Fault | None) -> None:
        """Pass the moment between the work and its answer, where the answer may be lost."""
        if self.on_answer is not None:
            self.on_answer(method)
        if fault is not None and fault.error is not None:
            raise fault.error

    def _count(self) -> None:
        """Take one call from a bucket that holds an hour's calls and refills evenly."""
        most = self.caps.calls_per_hour
        if most is None:
            return
        gained = (self.now - self._spent_at).total_seconds() * most / HOUR
        self._spent, self._spent_at = max(0.0, self._spent - gained), self.now
        if self._spent + 1 <= most and not self.rate_exhausted:
            self._spent += 1
            return
        self.rate_refusals += not self.rate_exhausted
        raise ProviderError(
            "fake: too many calls",
            kind=ErrorKind.RATE_LIMIT,
            applied=Applied.NO,
            scope=Scope.PROVIDER,
            retry_after=HOUR / most,
        )

    def _end(self, machine: Machine) -> None:
        machine.gone_at = self.now if machine.gone_at is None else min(machine.gone_at, self.now)
        if self.leaves_leftovers:
            self.leftovers[f"address-{machine.instance.id}"] = machine.instance.labels[DEPLOYMENT_LABEL]
        if not self.caps.deleted_vanish:
            self.ended[machine.instance.id] = machine


NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class FakeProvider(ComputeProvider):
    """The provider of a `FakeCloud`."""

    kind: ClassVar[str] = "fake"
    caps: ClassVar[Caps] = CAPS

    def __init__(self, cloud: FakeCloud, deployment: str) -> None:
        self.cloud = cloud
        self.deployment = deployment
        if cloud.caps is not CAPS:
            self.caps = cloud.caps  # type: ignore[misc]  # each cloud is of its own kind

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        """Return a provider with a cloud of its own."""
        if settings:
            raise SettingsError(f"fake: unknown key {min(settings)!r}; it has none")
        return cls(FakeCloud(), deployment)

    def offers(self) -> list[Offer]:
        fault = self.cloud.begin("offers")
        self.cloud.end("offers", fault)
        return [*self.cloud.offers]

    def list(self) -> Inventory:
        fault = self.cloud.begin("list")
        mine = [self._view(machine) for machine in self.cloud.shown() if self._is_mine(machine)]
        leftovers = tuple(each for each, owner in self.cloud.leftovers.items() if owner == self.deployment)
        taken_at = self.cloud.stamp()
        self.cloud.end("list", fault)
        return Inventory(tuple(mine), taken_at, leftovers)

    def get(self, ref: Ref) -> Instance | None:
        fault = self.cloud.begin("get")
        found = [self._view(machine) for machine in self._find(ref)]
        self.cloud.end("get", fault)
        return found[0] if found else None

    def create(self, want: Create) -> Instance:
        fault = self.cloud.begin("create", want)
        instance = self._create(want)
        self.cloud.end("create", fault)
        return instance

    def delete(self, ref: Ref) -> Deleted:
        fault = self.cloud.begin("delete")
        alive = [machine for machine in self._find(ref) if self.cloud.phase(machine) is not Phase.GONE]
        for machine in alive:
            machine.gone_at = machine.gone_at or self.cloud.now + timedelta(seconds=self.cloud.stop_seconds)
        if ref.id is not None and self.cloud.leftovers.get(ref.id) == self.deployment:
            del self.cloud.leftovers[ref.id]
        self.cloud.end("delete", fault)
        return Deleted.ACCEPTED if alive else Deleted.GONE

    def connect(self, instance: Instance) -> Access | None:
        return Access(host=instance.address, port=22, user="root") if instance.address else None

    def _create(self, want: Create) -> Instance:
        if not NAME.fullmatch(want.name):
            raise self._refusal(ErrorKind.CONFIG, f"{want.name!r} is no name", Scope.POOL)
        if len(want.user_data.encode()) > MAX_USER_DATA:
            raise self._refusal(ErrorKind.CONFIG, f"user data is over {MAX_USER_DATA} bytes", Scope.POOL)
        there = self.cloud.machines.get(want.name) if self.caps.unique_names else self.cloud.of_order(want)
        if there is not None:
            if there.operation != want.operation_id or not self._is_mine(there):
                raise self._refusal(ErrorKind.EXISTS, f"the name {want.name} is taken", Scope.INSTANCE)
            return dataclasses.replace(self._view(there), adopted=True)
        if not any((offer.type, offer.location) == (want.type, want.location) for offer in self.cloud.offers):
            raise self._refusal(ErrorKind.CONFIG, f"no offer {want.type} at {want.location}", Scope.POOL)
        return self.cloud.make(want).instance

    def _refusal(self, kind: ErrorKind, message: str, scope: Scope) -> ProviderError:
        return ProviderError(f"fake: {message}", kind=kind, applied=Applied.NO, scope=scope)

    def _view(self, machine: Machine) -> Instance:
        return dataclasses.replace(machine.instance, phase=self.cloud.phase(machine))

    def _is_mine(self, machine: Machine) -> bool:
        return machine.instance.labels.get(DEPLOYMENT_LABEL) == self.deployment

    def _find(self, ref: Ref) -> Sequence[Machine]:
        """Return the machines that ``ref`` names: present ones first, the oldest of them first."""
        # Where names are labels, a look by name is a search in what listings are made from.
        is_search = ref.id is None and not self.caps.unique_names
        there = self.cloud.indexed() if is_search else tuple(self.cloud.machines.values())
        return [
            machine
            for machine in (*there, *self.cloud.ended.values())
            if self._is_mine(machine) and ref.names(machine.instance)
        ]
