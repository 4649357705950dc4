"""Carrying out plans: what is written down when calls fail, boots are slow, or the world changes in between."""

import itertools
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from autoscaler.core import backoff
from autoscaler.core.actions import Boot, Learn, Plan, Stop
from autoscaler.core.pools import OfferKey
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent
from autoscaler.lanes import SerialLanes, Turn
from gateway.wire.resources import Shape
from providers.base import (
    OPERATION_LABEL,
    SPEC_LABEL,
    Applied,
    ComputeProvider,
    Create,
    ErrorKind,
    Inventory,
    Phase,
    Scope,
)
from providers.testing.fake import FakeCloud, FakeProvider
from tests.scenario.autoscaler.fleet import DEPLOYMENT, Fleet, pool

PROGRESS = "copies the disk"
"""The provider's own word on a boot."""


class ReportingProvider(FakeProvider):
    """A provider that reports progress until its instances run."""

    def list(self) -> Inventory:
        found = super().list()
        reported = (
            replace(each, progress_at=found.taken_at if each.phase is Phase.BOOTING else None, detail=PROGRESS)
            for each in found.instances
        )
        return replace(found, instances=tuple(reported))


class SlowFleet(Fleet):
    """Its machines take longer to run than a boot is given."""

    boots = 400.0

    def make_cloud(self, name: str) -> FakeCloud:
        return FakeCloud(boot_seconds=self.boots)

    def make_provider(self, name: str, cloud: FakeCloud) -> ComputeProvider:
        return ReportingProvider(cloud, DEPLOYMENT)


class EndlessFleet(SlowFleet):
    """They never run, and are said to come nearer all the time."""

    boots = 1e9


def kinds(fleet: Fleet, kind: str) -> list[str]:
    return [event.detail for event in fleet.journal.events(200) if event.kind == kind]


def test_a_slow_boot_that_makes_progress_becomes_a_node(tmp_path: Path) -> None:
    fleet = SlowFleet(tmp_path)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    assert len(fleet.cloud.created) == 1
    (reason,) = kinds(fleet, "extended")
    assert PROGRESS in reason


def test_an_endless_boot_is_extended_once(tmp_path: Path) -> None:
    fleet = EndlessFleet(tmp_path)
    fleet.ask()
    fleet.until(lambda: bool(kinds(fleet, "deleting")))
    assert len(kinds(fleet, "extended")) == 1
    (reason,) = kinds(fleet, "deleting")
    assert PROGRESS in reason


def test_a_failed_delete_backs_scale_down_of_its_pool_off(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    fleet.cloud.fail_next("delete", ErrorKind.BUSY, Applied.NO)
    fleet.until(lambda: fleet.states() == ["deleting"])
    (row,) = fleet.journal.open_intents()
    assert row.detail.startswith(ErrorKind.BUSY)
    held = fleet.journal.backoffs()[backoff.closing_key("cpu")]
    assert held.until - held.failed_at == backoff.CLOSING_SECONDS
    (event,) = kinds(fleet, "backoff")
    assert row.name in event
    assert row.detail in event
    fleet.until(lambda: fleet.states() == [])


def test_a_new_node_bundle_replaces_nodes_of_the_old_one(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1, spec="s1", installs=True))
    fleet.until(lambda: fleet.states() == ["ready"])
    (row,) = fleet.journal.open_intents()
    assert row.spec == "s1-aaaaaaaaaaaa"
    assert fleet.cloud.created[0].labels[SPEC_LABEL] == row.spec
    fleet.gateway.bundle_sha256 = "b" * 64
    fleet.until(lambda: [i.spec for i in fleet.journal.open_intents()] == ["s1-bbbbbbbbbbbb"])
    assert len(kinds(fleet, "draining")) == 1
    for _ in range(100):
        fleet.tick()
    assert len(fleet.cloud.created) == 2


def test_an_unknown_bundle_replaces_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1, spec="s1", installs=True))
    fleet.until(lambda: fleet.states() == ["ready"])
    fleet.gateway.unreachable = True
    for _ in range(100):
        fleet.tick()
    fleet.gateway.unreachable = False
    for _ in range(100):
        fleet.tick()
    assert len(fleet.cloud.created) == 1


def test_shapes_learned_under_other_settings_are_ignored(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(spec="s2"))
    tiny = Shape(cpus=0.1, memory_mb=10, disk_mb=10, slots=1)
    fleet.journal.settle((Learn("cpu", "small", "s1", tiny),), 0.0)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed and ("cpu", "small", "s2") in fleet.journal.learned())
    assert fleet.journal.learned()["cpu", "small", "s2"].cpus == 4


def test_deletes_of_an_orphan_are_sent_ever_more_rarely(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    want = Create("test-cpu-stray", "stray", DEPLOYMENT, "cpu", "small", "here", "i", "", {OPERATION_LABEL: "stray"})
    fleet.provider.create(want)
    for _ in range(3):
        fleet.cloud.fail_next("delete", ErrorKind.BUSY, Applied.NO)
    fleet.until(lambda: not fleet.cloud.machines, ticks=1200)
    sweeps = [event for event in fleet.journal.events(200) if event.kind == "sweep"]
    assert [round(after.at - before.at) for before, after in itertools.pairwise(sweeps)] == [60, 120, 240]


def test_a_substitute_offer_counts_what_was_spent_in_the_same_tick(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(max_monthly=Decimal("0.11")))
    ended = Intent("op9", "cpu", "fake", "test-cpu-op9", "small", "here", IntentState.DELETING, 0.0, 0.0, 0.0)
    now = fleet.clock.now()
    fleet.journal.add([replace(ended, created_at=now, instance_id="vm-9", price=Decimal("0.10"))])
    fleet.cloud.fail_next("create", ErrorKind.CAPACITY, Applied.NO, scope=Scope.OFFER)
    boot = Boot("cpu", "fake", OfferKey("small", "here"), 300.0, "wanted", price=Decimal("0.01"))
    plan = Plan((Stop("op9", "it is no longer listed"), boot))
    assert fleet.reconciler._executor is not None
    fleet.reconciler._executor.carry_out(plan, fleet.reconciler.look().world, Turn(), SerialLanes())
    assert fleet.journal.spent(now) == {"cpu": Decimal("0.10")}
    assert fleet.journal.open_intents() == (), "another one would lead to 0.12"


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "booting"), ({"heartbeat_at": None}, "deleting"), ({"operation_id": "another"}, "deleting")],
    ids=["it sent a heartbeat", "it never sent one", "it belongs to another order"],
)
def test_a_late_instance_is_kept_only_for_a_heartbeat_of_its_own_node(
    tmp_path: Path, changes: dict[str, object], state: str
) -> None:
    fleet = Fleet(tmp_path)
    fleet.ask()
    fleet.until(lambda: fleet.states() == ["booting"])
    (row,) = fleet.journal.open_intents()
    world = fleet.reconciler.look().world
    (machine,), (grant,) = fleet.cloud.machines.values(), fleet.gateway.grants.values()
    fleet.gateway.register(machine, grant)
    ((node, record),) = fleet.gateway.records.items()
    fleet.gateway.records[node] = record.model_copy(update=changes)
    assert fleet.reconciler._executor is not None
    stop = Stop(row.operation_id, "it is late", boot_failed=True)
    fleet.reconciler._executor.carry_out(Plan((stop,)), world, Turn(), SerialLanes())
    assert fleet.states() == [state]
