"""A cloud in memory, in virtual time, as nasty as the real ones: the test's handle on time, faults and the truth."""

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
    """The process of the caller dies here.  No handler of ordinary errors sees it."""


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
    """When it will be running; ``None`` when it never will."""
    gone_at: datetime | None = None
    lost: bool = False
    user_data: str = ""

    @property
    def operation(self) -> str:
        """The order that it came from."""
        return self.instance.labels.get(OPERATION_LABEL, "")


@dataclass
class FakeCloud:
    """The cloud behind `FakeProvider`.

    Attributes:
        boot_seconds: how long a new instance boots.
        stop_seconds: how long a deleted one goes on being listed.
        caps: what kind of cloud it is: its names, its final rows and its bound of calls follow from that.
        now: the cloud's own time; only `advance` moves it.
        machines: all that are there, by name where names are unique, else by id.
        ended: those that went, by id, where they stay listed.
        made: every machine that there ever was, in order.
        leftovers: side resources that nothing uses any more, with the deployment that they belong to.
    """

    boot_seconds: float = 30.0
    stop_seconds: float = 5.0
    offers: tuple[Offer, ...] = OFFERS
    caps: Caps = CAPS
    prefix: str = "vm"
    """Of its ids."""
    now: datetime = EPOCH
    machines: dict[str, Machine] = field(default_factory=dict)
    ended: dict[str, Machine] = field(default_factory=dict)
    made: list[Machine] = field(default_factory=list)
    leftovers: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    stuck_booting: bool = False
    """New instances never get beyond booting: no capacity, said by silence."""
    leaves_leftovers: bool = False
    """What is deleted leaves an address behind."""
    rate_exhausted: bool = False
    """Somebody else has used up the calls of this hour."""
    rate_refusals: int = 0
    """Calls that were over the bound of ``caps``."""
    clock_off: float = 0.0
    """Seconds that the cloud's stamps are off."""
    on_call: Callable[[str], None] | None = None
    """Is told the method's name before every call."""
    on_answer: Callable[[str], None] | None = None
    """Is told the method's name after its work and before its answer."""
    on_wait: Callable[[float], None] | None = None
    """Lets time pass while a call hangs; by default only this cloud's."""
    _faults: dict[str, list[Fault]] = field(default_factory=dict)
    _late: list[tuple[datetime, Create]] = field(default_factory=list)
    _hidden: set[str] = field(default_factory=set)
    _lacking: set[str] = field(default_factory=set)
    _spent: float = 0.0
    _spent_at: datetime = EPOCH

    def advance(self, seconds: float) -> None:
        """Lets that much time pass."""
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
        """The next call of ``method`` raises.  Faults of one method come one after the other.

        Args:
            effect: whether it does its work all the same; by default only if ``applied`` says yes.  A ``maybe`` with
                ``effect`` is the answer that was lost on its way back.
            late: a create without effect comes through so many seconds later.
        """
        done = applied is Applied.YES if effect is None else effect
        message = f"fake: {method} answered {kind}"
        error = ProviderError(message, kind=kind, applied=applied, scope=scope, retry_after=retry_after, code="fake")
        self._faults.setdefault(method, []).append(Fault(done, error, late=late))

    def lose_answer(self, method: str = "create") -> None:
        """The next call of ``method`` does its work, and its answer is lost."""
        self.fail_next(method, ErrorKind.TRANSIENT, Applied.MAYBE, effect=True)

    def delay_order(self, seconds: float) -> None:
        """The next create gets no answer, and its instance appears only later."""
        self.fail_next("create", ErrorKind.TRANSIENT, Applied.MAYBE, effect=False, late=seconds)

    def break_next(self, method: str, error: Exception, *, effect: bool) -> None:
        """The next call of ``method`` raises something that the port does not know."""
        self._faults.setdefault(method, []).append(Fault(effect, error))

    def hang_next(self, method: str, seconds: float) -> None:
        """The next call of ``method`` takes long, and then succeeds."""
        self._faults.setdefault(method, []).append(Fault(True, None, seconds))

    def hide_next(self, key: str) -> None:
        """The next listing lacks one instance, unless the last one has; so do searches until the one after it."""
        self._hidden.add(key)

    def vanish(self, key: str) -> None:
        """The instance is gone at once, and nobody was told."""
        self._end(self.machines.pop(key))

    def lose(self, key: str) -> None:
        """The instance stays in the listing and can never run again."""
        self.machines[key].lost = True

    def heal(self) -> None:
        """Nothing goes wrong any more; orders that are under way still come through."""
        self.stuck_booting = self.rate_exhausted = self.leaves_leftovers = False
        self._faults.clear()
        self._hidden.clear()
        self._lacking.clear()

    def calls_left(self) -> int:
        """Return how many calls may be made now, as clouds tell it in a header; 0 where `caps` bounds none."""
        most = self.caps.calls_per_hour or 0
        gained = (self.now - self._spent_at).total_seconds() * most / HOUR
        return int(most - max(0.0, self._spent - gained))

    def refill(self) -> None:
        """All calls of an hour may be made again."""
        self._spent = 0.0

    # -- the truth ----------------------------------------------------------------------------------------------------

    @property
    def created(self) -> list[Instance]:
        """What was made, in order, as it was then."""
        return [machine.instance for machine in self.made]

    def running(self) -> list[str]:
        """Names of the instances that run now, oldest first."""
        return [m.instance.name for m in self.machines.values() if self.phase(m) is Phase.RUNNING]

    def by_operation(self) -> dict[str, list[str]]:
        """Keys of all instances that are there, under the operation that made them."""
        found: dict[str, list[str]] = {}
        for key, machine in self.machines.items():
            found.setdefault(machine.operation, []).append(key)
        return found

    def under_way(self) -> set[str]:
        """Operations whose instance appears only later."""
        return {want.operation_id for _, want in self._late}

    def of_order(self, want: Create) -> Machine | None:
        """What an order has made already, even if it has ended."""
        for machine in (*self.indexed(), *self.ended.values()):
            labels = machine.instance.labels
            if (labels[DEPLOYMENT_LABEL], machine.operation) == (want.deployment, want.operation_id):
                return machine
        return None

    def phase(self, machine: Machine) -> Phase:
        """Where a machine stands at this moment."""
        if machine.gone_at is not None:
            return Phase.STOPPING if machine.gone_at > self.now else Phase.GONE
        if machine.lost:
            return Phase.LOST
        return Phase.RUNNING if machine.runs_at is not None and machine.runs_at <= self.now else Phase.BOOTING

    def shown(self) -> list[Machine]:
        """What a listing shows; what was hidden is shown again by the next one."""
        self._lacking, self._hidden = self._hidden - self._lacking, set()
        return [*self.indexed(), *self.ended.values()]

    def indexed(self) -> tuple[Machine, ...]:
        """What a search finds now: all that the last listing did not lack."""
        return tuple(machine for key, machine in tuple(self.machines.items()) if key not in self._lacking)

    def stamp(self) -> datetime:
        """The present moment, as the cloud writes it."""
        return self.now + timedelta(seconds=self.clock_off)

    def make(self, want: Create) -> Machine:
        """A new machine."""
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
        """Counts a call, applies the rate bound and takes the fault that waits for this method."""
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
        """The moment between the work and its answer."""
        if self.on_answer is not None:
            self.on_answer(method)
        if fault is not None and fault.error is not None:
            raise fault.error

    def _count(self) -> None:
        """One call of a bucket that holds an hour's calls and refills evenly."""
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
    """The port, over a `FakeCloud`."""

    kind: ClassVar[str] = "fake"
    caps: ClassVar[Caps] = CAPS

    def __init__(self, cloud: FakeCloud, deployment: str) -> None:
        self.cloud = cloud
        self.deployment = deployment
        if cloud.caps is not CAPS:
            self.caps = cloud.caps  # type: ignore[misc]  # each cloud is of its own kind

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
        """All that are meant, those that are there first and the oldest of them first."""
        # Where names are labels, a look by name is a search in what listings are made from.
        is_search = ref.id is None and not self.caps.unique_names
        there = self.cloud.indexed() if is_search else tuple(self.cloud.machines.values())
        return [
            machine
            for machine in (*there, *self.cloud.ended.values())
            if self._is_mine(machine)
            and ref.id in (None, machine.instance.id)
            and ref.name in (None, machine.instance.name)
        ]
