"""The provider's layer: a queue, machines, capacity, locks and money.  Core hears of it only by `report`."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from providers.base import OPERATION_LABEL, USER_DATA_LABEL
from tests.fakes.booting import Booter, Effects
from tests.fakes.emulation import Clock
from tests.fakes.ucloud.catalogue import Catalogue, Product
from tests.fakes.ucloud.faults import ApiError, Faults

FULL = "There are currently no machines available to run your job. It will start once one is free."
POWERED_OFF = "The virtual machine is powered off."
SERVICE_ADDRESS = "ucloud.dk/service-ip-address"

ACCOUNTING_SECONDS = 30.0
QUEUE_STATUS_SECONDS = 10.0
VANISHED_SECONDS = 300.0
ORPHAN_SECONDS = 300.0


class CoreSide(Protocol):
    """What the cluster reports to Core."""

    def report(self, job_id: str, state: str | None, text: str | None) -> None: ...

    def write_labels(self, job_id: str, labels: dict[str, str]) -> None: ...

    def knows(self, job_id: str) -> bool: ...


@dataclass
class Vm:
    """The provider's own row of one job."""

    job_id: str
    specification: dict[str, Any]
    product: Product
    phase: str = "queued"
    """queued, starting, off, running, suspended, stuck, ended"""
    is_orphan: bool = False
    """Core gave its order up."""
    exists: bool = False
    holds_room: bool = False
    told_full: bool = False
    init_done: bool = False
    boots: int = 0
    running_since: float | None = None
    guest_up: bool = False
    script: str = "not run"
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.specification.get("name") or self.job_id


@dataclass(frozen=True)
class Guest:
    """A machine as it sees itself, for a `Booter`."""

    id: str
    name: str
    labels: dict[str, str]
    user_data: str
    ipv4: str
    script: str
    """Text of the init script if it runs at this boot: once for each disk."""
    files: dict[str, str]
    """What is mounted, by path inside the guest."""
    gpus: int = 0


@dataclass
class Timing:
    """Ranges in seconds of virtual time."""

    scheduling: tuple[float, float] = (0.1, 5.0)
    first_image: tuple[float, float] = (5.0, 60.0)
    next_image: tuple[float, float] = (1.0, 10.0)
    powered_off: tuple[float, float] = (1.0, 20.0)
    guest_boot: tuple[float, float] = (5.0, 30.0)
    report: float = 1.0
    terminate: tuple[float, float] = (0.0, 2.0)
    release: tuple[float, float] = (0.0, 30.0)


class Cluster:
    """Machines.  Its memory is its own: a job that Core forgot goes on here until it is purged."""

    def __init__(
        self,
        clock: Clock,
        chance: random.Random,
        catalogue: Catalogue,
        faults: Faults,
        core: Callable[[], CoreSide],
        *,
        booter: Booter | None,
        effects: Effects,
    ) -> None:
        self.clock, self.chance, self.catalogue, self.faults = clock, chance, catalogue, faults
        self._core = core
        self._booter, self._effects = booter, effects
        self.timing = Timing()
        self.capacity: dict[str, int] = {}
        self.vms: dict[str, Vm] = {}
        self.files: dict[str, str] = {}
        self.script_label = "ucloud.dk/init-script"
        self.started: dict[str, list[str]] = {}
        """Jobs that Core took on and whose machine came to be, by operation."""
        self.orphans: Counter[str] = Counter()
        """Machines that came to be for an order that Core gave up, by operation."""
        self.billed: dict[str, float] = {}
        """Seconds in RUNNING, by job."""
        self._images: set[str] = set()
        self._starting: str | None = None
        self._queue_status: dict[str, str] = {}
        self._queue_status_at = float("-inf")
        clock.after(ACCOUNTING_SECONDS, self._account)

    # -- what Core asks -----------------------------------------------------------------------------------------------

    def check(self, product: Product) -> None:
        """Refuse what the provider refuses at submission."""
        if self.catalogue.wallet(product.category).is_locked:
            why = f"This workspace has reached the {product.category} quota."
            raise ApiError(402, why, "NOT_ENOUGH_COMPUTE_CREDITS")
        if not product.vm:
            raise ApiError(400, "The application is not supported on this machine type")

    def accept(self, job_id: str, specification: dict[str, Any], product: Product) -> None:
        """Queue a job."""
        labels = dict(specification.get("labels", {}))
        self.vms[job_id] = Vm(job_id, specification, product, labels=labels)
        self.clock.after(self._in(self.timing.scheduling), self.schedule)

    def terminate(self, job_id: str) -> None:
        """End a job; one that is not here is reported as ended again."""
        vm = self.vms.get(job_id)
        if vm is not None:
            self._off(vm, "ended")
        self.clock.after(self._in(self.timing.terminate), lambda: self._tell(job_id, "SUCCESS", None))

    def suspend(self, job_id: str, text: str = POWERED_OFF) -> None:
        vm = self.vms.get(job_id)
        if vm is None or not vm.exists:
            raise ApiError(400, "Failed to shutdown VM")
        self._off(vm, "suspended")
        self._tell(job_id, "SUSPENDED", text)

    def unsuspend(self, job_id: str) -> None:
        vm = self.vms[job_id]
        self.check(vm.product)
        if vm.phase == "suspended":
            vm.phase = "queued"
            self._tell(job_id, "IN_QUEUE", None)
            self.clock.after(self._in(self.timing.scheduling), self.schedule)

    def queue_status(self, product: Product) -> str | None:
        """Return the queue's status, up to ten seconds old, as there."""
        if self.clock.now - self._queue_status_at >= QUEUE_STATUS_SECONDS:
            self._queue_status_at = self.clock.now
            self._queue_status = {}
            for item in self.catalogue.products:
                free = self._free(item.category)
                self._queue_status[item.name] = "FULL" if free < 1 else "BUSY" if free == 1 else "AVAILABLE"
        return self._queue_status.get(product.name)

    # -- what happens by itself ---------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Give room to whatever fits, and start one machine at a time."""
        for vm in self.vms.values():
            if vm.phase != "queued" or vm.holds_room:
                continue
            if self._free(vm.product.category) >= 1:
                vm.holds_room = True
            elif not vm.told_full:
                vm.told_full = True
                self._tell(vm.job_id, None, FULL)
        waiting = next((vm for vm in self.vms.values() if vm.phase == "queued" and vm.holds_room), None)
        if self._starting is None and waiting is not None:
            self._starting, waiting.phase = waiting.job_id, "starting"
            image = str(waiting.specification.get("application"))
            seconds = self._in(self.timing.next_image if image in self._images else self.timing.first_image)
            self._images.add(image)
            self.clock.after(seconds, lambda: self._prepared(waiting))

    def restart(self) -> None:
        """Restart the integration module: its queue is what Core holds in queue, stuck ones too."""
        self._starting = None
        for vm in self.vms.values():
            if vm.phase == "starting" or (vm.phase == "stuck" and not vm.exists):
                vm.phase = "queued"
        self.schedule()

    def vanish(self, job_id: str) -> None:
        """Lose the machine, which is found missing at once."""
        vm = self.vms[job_id]
        self._off(vm, "ended")
        self._tell(job_id, "SUSPENDED", POWERED_OFF)
        self.clock.after(VANISHED_SECONDS, lambda: self._tell(job_id, "SUCCESS", None))

    def power_off(self, job_id: str) -> None:
        """Power the machine off from inside, so that it starts again."""
        vm = self.vms[job_id]
        if vm.phase == "running":
            self._stop_running(vm)
            vm.phase = "off"
            self._tell(job_id, "SUSPENDED", POWERED_OFF)
            self._later_running(vm)

    def _prepared(self, vm: Vm) -> None:
        if self._starting == vm.job_id:
            self._starting = None
        if vm.phase == "starting":
            self._create_machine(vm)
        self.schedule()

    def _create_machine(self, vm: Vm) -> None:
        fault = self.faults.strike("start", "start")
        if fault is not None and fault.get("where", "before") == "before":
            vm.phase, vm.holds_room = "stuck", False
            self._tell(vm.job_id, None, "Failed to schedule job: could not prepare the disk")
            return
        if not vm.exists:
            self._count_start(vm)
        vm.exists = True
        vm.labels = vm.labels | {SERVICE_ADDRESS: self._address(vm)}
        if self._core().knows(vm.job_id):
            self._core().write_labels(vm.job_id, vm.labels)
        port = self.chance.randrange(2000, 60_000)
        self._tell(vm.job_id, None, f"SSH: Connected! Available at: ssh ucloud@ssh.example.net -p {port}")
        self._tell(vm.job_id, "SUSPENDED", POWERED_OFF)
        vm.phase = "off" if fault is None else "stuck"
        if fault is None:
            self._later_running(vm)

    def _later_running(self, vm: Vm) -> None:
        def run() -> None:
            if vm.phase != "off":
                return
            vm.phase, vm.running_since = "running", self.clock.now
            vm.boots += 1
            boot = vm.boots
            self._tell(vm.job_id, "RUNNING", "The virtual machine is running.")
            self.clock.after(self._in(self.timing.guest_boot), lambda: self._guest_up(vm, boot))

        self.clock.after(self._in(self.timing.powered_off), run)

    def _guest_up(self, vm: Vm, boot: int) -> None:
        if vm.phase != "running" or vm.boots != boot:
            return
        vm.guest_up = True
        mounted = self._mounted(vm)
        path = vm.labels.get(self.script_label, "")
        script = mounted.get(path, "") if not vm.init_done else ""
        if script and self.faults.strike("cut_script", "boot") is not None:
            # An upload truncates what is there, and is at work while the machine boots.
            script = mounted[path] = script[: len(script) // 2]
        vm.script = "run" if script else "missing" if path and not vm.init_done else vm.script
        vm.init_done = vm.init_done or bool(script)
        if (booter := self._booter) is not None:
            user_data, address = vm.labels.get(USER_DATA_LABEL, ""), vm.labels[SERVICE_ADDRESS]
            gpus = 0 if self.faults.strike("no_gpu", "boot") is not None else vm.product.gpu
            guest = Guest(vm.job_id, vm.name, dict(vm.labels), user_data, address, script, mounted, gpus)
            self._effects.put(lambda: booter.boot(guest))

    def _mounted(self, vm: Vm) -> dict[str, str]:
        """Return the files of its drive folders, by path inside the guest."""
        found: dict[str, str] = {}
        for resource in vm.specification.get("resources", []):
            folder = str(resource.get("path", "")).rstrip("/")
            if resource.get("type") == "file":
                name = folder.rpartition("/")[2]
                inside = {p: text for p, text in self.files.items() if p.startswith(folder + "/")}
                found |= {f"/work/{name}{p.removeprefix(folder)}": text for p, text in inside.items()}
        return found

    def _count_start(self, vm: Vm) -> None:
        operation = vm.labels.get(OPERATION_LABEL, "")
        if not vm.is_orphan:
            self.started.setdefault(operation, []).append(vm.job_id)
            return
        self.orphans[operation] += 1

    def orphan(self, job_id: str) -> None:
        """Orphan a job whose order Core gave up: it ends after three failed confirmations and five minutes."""
        self.vms[job_id].is_orphan = True
        self.clock.after(ORPHAN_SECONDS + self._in((0.0, 180.0)), lambda: self._off(self.vms[job_id], "ended"))

    def _off(self, vm: Vm, phase: str) -> None:
        self._stop_running(vm)
        if vm.phase == "ended":
            return
        if self._starting == vm.job_id:
            self._starting = None
        vm.phase = phase

        def release() -> None:
            if vm.phase in ("ended", "suspended"):
                vm.holds_room = False
                self.schedule()

        self.clock.after(self._in(self.timing.release), release)

    def _stop_running(self, vm: Vm) -> None:
        self._bill(vm)
        vm.running_since = None
        if vm.guest_up and (booter := self._booter) is not None:
            self._effects.put(lambda: booter.stop(vm.name))
        vm.guest_up = False

    def stop_all(self) -> None:
        """Stop all: nothing runs on after the end of the emulator."""
        for vm in self.vms.values():
            self._stop_running(vm)

    # -- money --------------------------------------------------------------------------------------------------------

    def _account(self) -> None:
        for vm in self.vms.values():
            self._bill(vm)
        for vm in [*self.vms.values()]:
            wallet = self.catalogue.wallet(vm.product.category)
            if wallet.is_locked and vm.phase in ("running", "off", "queued"):
                self._off(vm, "suspended")
                self._tell(vm.job_id, "SUSPENDED", f"This workspace has reached the {vm.product.category} quota.")
        self.clock.after(ACCOUNTING_SECONDS, self._account)

    def _bill(self, vm: Vm) -> None:
        if vm.running_since is None:
            return
        seconds = self.clock.now - vm.running_since
        vm.running_since = self.clock.now
        self.billed[vm.job_id] = self.billed.get(vm.job_id, 0.0) + seconds
        self.catalogue.wallet(vm.product.category).used += seconds / 3600 * vm.product.price / 1e6

    def _free(self, category: str) -> int:
        used = sum(1 for vm in self.vms.values() if vm.holds_room and vm.product.category == category)
        return self.capacity.get(category, 64) - used

    def _tell(self, job_id: str, state: str | None, text: str | None) -> None:
        """Report to Core, which hears of it in batches, in order."""
        self.clock.after(self.timing.report, lambda: self._core().report(job_id, state, text))

    def _in(self, span: tuple[float, float]) -> float:
        return self.chance.uniform(*span)

    def _address(self, vm: Vm) -> str:
        wanted = self._booter.address(vm.name) if self._booter is not None else None
        number = int(vm.job_id)
        return wanted or f"10.{number // 62500 % 250}.{number // 250 % 250}.{number % 250 + 1}"
