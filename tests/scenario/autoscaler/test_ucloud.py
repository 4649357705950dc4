"""The whole autoscaler over the emulator of UCloud, whose answers get lost and whose queue has no end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler.core.pools import OfferKey, PoolPolicy
from providers.base import DEPLOYMENT_LABEL, NAME_LABEL, OPERATION_LABEL, ComputeProvider, Create, Instance, Phase
from providers.testing.fake import EPOCH, FakeCloud, Machine, SimulatedCrash
from providers.ucloud.provider import UCloudProvider
from tests.fakes.ucloud.emulator import EPOCH as CLOUD_EPOCH
from tests.fakes.ucloud.lab import CPU, Lab, lab
from tests.scenario.autoscaler.fleet import DEPLOYMENT, Fleet, pool

OTHER = "cpu-old-4-vcpu"
OFFERS = (OfferKey(CPU, "ucloud"), OfferKey(OTHER, "ucloud"))
TICK = 10.0
FINAL = {"SUCCESS", "FAILURE", "EXPIRED"}


@dataclass
class Mirror(FakeCloud):
    """What the emulator's truth says, in the form in which a `Fleet` watches its cloud."""

    account: Lab | None = None

    def __post_init__(self) -> None:
        assert self.account is not None
        self.account.remote.ask("clock_skew", seconds=EPOCH.timestamp() - CLOUD_EPOCH)
        self._began: dict[str, datetime] = {}

    def advance(self, seconds: float) -> None:
        assert self.account is not None
        self.account.remote.advance(seconds)
        truth = self.account.remote.truth()
        self.now = EPOCH + timedelta(seconds=truth["now"] - CLOUD_EPOCH)
        self.machines = {
            job_id: self._machine(job_id, job["state"], job["labels"])
            for job_id, job in truth["jobs"].items()
            if job["labels"].get(DEPLOYMENT_LABEL) == DEPLOYMENT and job["state"] not in FINAL
        }

    def by_operation(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for job_id, machine in self.machines.items():
            found.setdefault(machine.instance.labels[OPERATION_LABEL], []).append(job_id)
        return found

    def _machine(self, job_id: str, state: str, labels: dict[str, str]) -> Machine:
        if state == "RUNNING":
            self._began.setdefault(job_id, self.now)
        has_run = job_id in self._began
        phase = Phase.RUNNING if state == "RUNNING" else Phase.BOOTING
        name = labels[NAME_LABEL]
        seen = Instance(job_id, name, labels, phase, CPU, "ucloud", self.now.astimezone(UTC))
        return Machine(seen, self._began.get(job_id), lost=has_run and state != "RUNNING")


class VmProvider(UCloudProvider):
    """A fleet's pools name no image of any cloud."""

    def create(self, want: Create) -> Instance:
        return super().create(replace(want, image="vm-ubuntu/24.04"))


@pytest.fixture
def account() -> Iterator[Lab]:
    with lab() as made:
        yield made


class UCloudFleet(Fleet):
    """A `Fleet` over one emulated account."""

    def __init__(self, account: Lab, directory: Path, **changes: object) -> None:
        self.account = account
        given: dict[str, object] = {"offers": OFFERS, "boot_seconds": 900.0, "max_in_flight": 4, "min": 0}
        self.pool: PoolPolicy = pool(**(given | changes))
        super().__init__(directory, self.pool, creates_per_tick=4)

    def make_cloud(self, name: str) -> FakeCloud:
        return Mirror(account=self.account)

    def make_provider(self, name: str, cloud: FakeCloud) -> ComputeProvider:
        made = self.account.provider(DEPLOYMENT, page_size=100)
        return VmProvider(made._settings, made._client, deployment=DEPLOYMENT)

    def truth(self) -> dict[str, list[str]]:
        """Jobs that ever had a machine, by operation."""
        started: dict[str, list[str]] = self.account.remote.truth()["started"]
        return started

    def wait(self, condition: Callable[[], bool], seconds: float = 7200.0) -> None:
        """Ticks, through crashes, until the condition holds."""
        for _ in range(int(seconds / TICK)):
            if condition():
                return
            self.crashing_tick(TICK)
        raise AssertionError(f"not within {seconds:.0f} s; last: {self.reports[-1:]}")

    def is_ready(self, count: int = 1) -> bool:
        return self.states().count("ready") >= count


@pytest.fixture
def make(account: Lab, tmp_path: Path) -> Callable[..., UCloudFleet]:
    def build(**changes: object) -> UCloudFleet:
        return UCloudFleet(account, tmp_path, **changes)

    return build


def test_a_machine_comes_with_the_work_and_goes_after_it(make: Callable[..., UCloudFleet]) -> None:
    fleet = make()
    (sandbox,) = fleet.ask()
    fleet.wait(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    fleet.wait(lambda: fleet.states() == [])
    assert [len(jobs) for jobs in fleet.truth().values()] == [1]
    assert not fleet.cloud.machines


def test_lost_answers_never_make_two_machines_of_one_operation(make: Callable[..., UCloudFleet]) -> None:
    fleet = make(min=3)
    for name in ("lost_response", "lost_request", "late_effect", "provider_timeout"):
        fleet.account.remote.fault(name, "submit", times=None, probability=0.1)
    fleet.account.remote.fault("gateway", "browse", times=None, probability=0.05)
    fleet.wait(lambda: fleet.is_ready(3))
    fleet.account.remote.ask("heal")
    for _ in range(60):
        fleet.tick(TICK)
    assert {len(jobs) for jobs in fleet.truth().values()} == {1}
    assert len(fleet.cloud.machines) == 3


def test_an_order_in_a_hurry_would_make_two(make: Callable[..., UCloudFleet], monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: it hangs on the time that the provider asks for."""
    monkeypatch.setattr(VmProvider, "caps", replace(UCloudProvider.caps, settle_seconds=0.0))
    fleet = make(min=1)
    fleet.account.remote.fault("late_effect", "submit")
    with pytest.raises(AssertionError, match="operation op0000000001 has"):
        fleet.wait(lambda: False, seconds=300)


def test_no_room_leads_to_the_other_product_and_leaks_nothing(make: Callable[..., UCloudFleet]) -> None:
    fleet = make(min=1)
    fleet.provider.offers()  # UCloud's hint is ten seconds old: the first order is still let through
    fleet.account.remote.ask("capacity", **{"cpu-amd-zen5": 0})
    fleet.wait(fleet.is_ready)
    (intent,) = fleet.journal.open_intents()
    assert intent.type == OTHER
    fleet.account.remote.ask("capacity", **{"cpu-amd-zen5": 8})
    for _ in range(30):
        fleet.tick(TICK)
    assert len(fleet.cloud.machines) == 1
    assert len(fleet.truth()) == 1


def test_a_quota_makes_no_storm_and_its_machines_count_as_lost(make: Callable[..., UCloudFleet]) -> None:
    fleet = make(min=2)
    fleet.wait(lambda: fleet.is_ready(2))
    fleet.account.remote.ask("wallet", category="cpu-amd-zen5", quota=0)
    fleet.account.remote.ask("wallet", category="cpu-old", quota=0)
    before = fleet.account.remote.calls("submit")
    fleet.wait(lambda: not fleet.cloud.machines)
    for _ in range(360):
        fleet.tick(TICK)
    assert fleet.account.remote.calls("submit") - before < 20
    for category in ("cpu-amd-zen5", "cpu-old"):
        fleet.account.remote.ask("wallet", category=category, quota=1e9)
    fleet.wait(lambda: fleet.is_ready(2))


def test_a_start_that_failed_is_replaced_and_its_late_start_is_none(make: Callable[..., UCloudFleet]) -> None:
    fleet = make(min=1)
    fleet.account.remote.fault("start", where="before")
    fleet.wait(fleet.is_ready)
    fleet.account.remote.ask("restart_provider")
    for _ in range(60):
        fleet.tick(TICK)
    assert len(fleet.cloud.machines) == 1
    assert [len(jobs) for jobs in fleet.truth().values()] == [1]


@pytest.mark.parametrize("step", range(0, 24, 2))
def test_a_crash_at_any_step_of_a_create_ends_with_one_machine(make: Callable[..., UCloudFleet], step: int) -> None:
    fleet = make(min=1)
    left = [step]

    def crash(_: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise SimulatedCrash(str(step))

    fleet.watch(crash)
    fleet.account.remote.fault("lost_response", "submit")
    fleet.wait(fleet.is_ready)
    assert left[0] < 0
    assert [len(jobs) for jobs in fleet.truth().values()] == [1]


def test_foreign_jobs_are_left_alone(make: Callable[..., UCloudFleet]) -> None:
    fleet = make()
    foreign = fleet.account.remote.ask("job", do="foreign", labels={OPERATION_LABEL: "op0000000001"})["id"]
    for _ in range(200):
        fleet.tick(TICK)
    assert fleet.account.remote.state(foreign) == "RUNNING"
    assert fleet.account.remote.calls("terminate") == 0
