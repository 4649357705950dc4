"""A whole fleet in virtual time: a fake cloud, a gateway in memory, and an autoscaler that can die at any point."""

import itertools
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.exc import OperationalError

from autoscaler.clock import ClockGuard, DaemonClock
from autoscaler.core.pools import FleetPolicy, PoolPolicy
from autoscaler.executor import Executor
from autoscaler.instances import Randomness
from autoscaler.observe import Observer
from autoscaler.provider_polling import Pace
from autoscaler.reconcile import Reconciler, TickReport
from autoscaler.store.journal import Journal
from autoscaler.user_data import LaunchTemplate
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import POOL_LABEL, ComputeProvider
from providers.testing.fake import EPOCH, FakeCloud, FakeProvider, SimulatedCrash
from tests.scenario.autoscaler.fake_gateway import SMALL as SMALL
from tests.scenario.autoscaler.fake_gateway import FakeGateway

log = logging.getLogger(__name__)

DEPLOYMENT = "test"
COMMITS = frozenset({"add", "move", "amend", "settle", "back_off", "clear_backoffs", "record"})


class VirtualClock(DaemonClock):
    """Follows the cloud's time; ``skew`` is what the wall clock is off."""

    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud
        self.skew = 0.0

    def now(self) -> float:
        return self._cloud.now.timestamp() + self.skew

    def monotonic(self) -> float:
        return (self._cloud.now - EPOCH).total_seconds() + 1000.0


class Watched:
    """Calls ``on_commit`` before and after every commit of the journal that it is mixed into."""

    on_commit: Callable[[str], None] | None = None

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        hook = super().__getattribute__("on_commit")
        if hook is None or name not in COMMITS:
            return value

        def around(*args: object, **kwargs: object) -> object:
            hook(f"before {name}")
            answer = value(*args, **kwargs)  # type: ignore[operator]
            hook(f"after {name}")
            return answer

        return around


class CrashingJournal(Watched, Journal):
    """The journal in a database, watched."""


def pool(**changes: object) -> PoolPolicy:
    values: dict[str, object] = {
        "name": "cpu",
        "provider": "fake",
        "role": "sandbox",
        "min": 0,
        "max": 4,
        "idle_seconds": 60.0,
        "boot_seconds": 300.0,
        "cpu_overcommit": 1.0,
    }
    return PoolPolicy(**(values | changes))  # type: ignore[arg-type]


class Fleet:
    """An autoscaler over fakes; `restart` is what a new process would do."""

    pace = Pace()

    def __init__(self, directory: Path, *pools: PoolPolicy, **policy: object) -> None:
        self.policy = FleetPolicy(deployment=DEPLOYMENT, pools=pools or (pool(),), **policy)  # type: ignore[arg-type]
        self.clouds = {
            name: self.make_cloud(name) for name in dict.fromkeys(each.provider for each in self.policy.pools)
        }
        self.cloud = next(iter(self.clouds.values()))
        self.gateway = FakeGateway(self.cloud, [*self.clouds.values()])
        for cloud in self.clouds.values():
            cloud.on_wait = self.pass_time
        self.clock = VirtualClock(self.cloud)
        self.providers: dict[str, ComputeProvider] = {
            name: self.make_provider(name, cloud) for name, cloud in self.clouds.items()
        }
        self.provider = next(iter(self.providers.values()))
        self.url = f"sqlite:///{directory / 'journal.db'}"
        self.on_step: Callable[[str], None] | None = None
        self.reports: list[TickReport] = []
        self._sandboxes = itertools.count(1)
        self._ids = itertools.count(1)
        self.journal = self.restart()

    def restart(self) -> Journal:
        """Start a new process: everything that was in memory is gone."""
        self.journal: Journal = self.open_journal()
        self.watch(self.on_step)
        providers = self.reach_providers()
        templates = {
            each.name: LaunchTemplate("image", lambda name, token: f"{name} {token}") for each in self.policy.pools
        }
        self.reconciler = Reconciler(
            observer=Observer(
                providers,
                self.gateway,
                self.journal,
                self.clock,
                ClockGuard(self.clock, 600.0, lambda _jump: None),
                policy=self.policy,
                pace=self.pace,
            ),
            journal=self.journal,
            gateway=self.gateway,
            policy=self.policy,
            clock=self.clock,
            executor=Executor(
                self.journal,
                providers,
                self.gateway,
                self.policy,
                templates,
                self.clock,
                Randomness(self._new_id, lambda: 1.0),
            ),
        )
        return self.journal

    def open_journal(self) -> Journal:
        """Return the journal that a new process finds."""
        if hasattr(self, "journal"):
            self.journal.close()
        return CrashingJournal.open(self.url)

    def make_cloud(self, name: str) -> FakeCloud:
        """Return the cloud of one provider."""
        return FakeCloud(prefix=name)

    def make_provider(self, name: str, cloud: FakeCloud) -> ComputeProvider:
        """Return the provider of one cloud."""
        return FakeProvider(cloud, DEPLOYMENT)

    def reach_providers(self) -> dict[str, ComputeProvider]:
        """Return the providers that a new process calls."""
        return self.providers

    def watch(self, on_step: Callable[[str], None] | None) -> None:
        """Call ``on_step`` before and after every commit and every call; what it raises comes from there."""
        self.on_step = on_step
        self.journal.on_commit = on_step  # type: ignore[attr-defined]
        for cloud in self.clouds.values():
            cloud.on_call = on_step and (lambda method: on_step(f"call {method}"))
            cloud.on_answer = on_step and (lambda method: on_step(f"answer {method}"))

    def tick(self, seconds: float = 2.0) -> TickReport:
        """Let time pass, then tick once.

        Raises:
            OperationalError: the journal could not be written; the daemon logs it and ticks on.
        """
        self.pass_time(seconds)
        report = self.reconciler.tick()
        self.reports = [*self.reports[-9:], report]
        self.check()
        return report

    def pass_time(self, seconds: float) -> None:
        """Let the world go on without the autoscaler."""
        for cloud in self.clouds.values():
            cloud.advance(seconds)
        self.gateway.step()

    def crashing_tick(self, seconds: float = 2.0) -> bool:
        """Tick once, restart after a crash in it, and return whether there was one."""
        try:
            self.tick(seconds)
        except SimulatedCrash:
            self.check()
            self.restart()
            return True
        except OperationalError as error:
            log.warning("the tick failed: %s", error)
        return False

    def until(self, condition: Callable[[], bool], ticks: int = 400) -> None:
        """Tick until ``condition`` holds."""
        for _ in range(ticks):
            if condition():
                return
            self.tick()
        last = self.reports[-1] if self.reports else None
        raise AssertionError(f"not within {ticks} ticks; last: {last}")

    def ask(self, count: int = 1, shape: Shape = SMALL) -> list[str]:
        """Create sandboxes that want room, and return their ids."""
        names = [f"s{next(self._sandboxes)}" for _ in range(count)]
        self.gateway.arrive(names, shape)
        return names

    def check(self) -> None:
        """Check what must hold at every moment."""
        machines_of = [entry for cloud in self.clouds.values() for entry in cloud.by_operation().items()]
        for operation, machines in machines_of:
            assert len(machines) == 1, f"operation {operation} has {machines}"
        for each in self.policy.pools:
            rows = [intent for intent in self.journal.open_intents() if intent.pool == each.name]
            assert len(rows) <= each.max, f"{each.name} has {len(rows)} rows"
            live = {intent.name for intent in rows}
            deleting = {intent.name for intent in rows if intent.state == "deleting"}
            for node in {node for node, _ in self.gateway.placed.values()}:
                record = self.gateway.records[node]
                is_killed = record.state is NodeState.DRAINING and record.instance in deleting
                assert not is_killed, f"{node} was closed and is deleted with work on it"
            for machine in [machine for cloud in self.clouds.values() for machine in cloud.machines.values()]:
                labels = machine.instance.labels
                if labels.get(POOL_LABEL) == each.name and machine.gone_at is None:
                    assert machine.instance.name in live, f"{machine.instance.name} has no row"

    def states(self) -> list[str]:
        """Return the states of all rows that are not gone."""
        return [intent.state.value for intent in self.journal.open_intents()]

    def _new_id(self) -> str:
        return f"op{next(self._ids):010d}"


def at(seconds: float) -> datetime:
    """Return a moment of the fake world."""
    return datetime.fromtimestamp(seconds, UTC)
