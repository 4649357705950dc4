"""The life of a fleet, each test one story in virtual time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.core.actions import RefusalKind, WaitKind
from gateway.wire.nodes import NodeRecord
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Applied, ErrorKind, Scope
from tests.scenario.autoscaler.fleet import SMALL, Fleet, pool


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.journal.close()


def waits(fleet: Fleet) -> dict[str, WaitKind | RefusalKind]:
    """Return why the last tick put off what it did not do, by its subject."""
    return {wait.subject: wait.kind for wait in fleet.reports[-1].plan.waits} if fleet.reports else {}


def test_nothing_is_bought_without_demand(fleet: Fleet) -> None:
    for _ in range(20):
        fleet.tick()
    assert fleet.cloud.created == []


def test_one_waiting_sandbox_boots_one_node_and_an_idle_node_is_deleted(fleet: Fleet) -> None:
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    assert len(fleet.cloud.created) == 1
    fleet.gateway.finish(sandbox)
    fleet.until(lambda: not fleet.cloud.machines)
    fleet.until(lambda: not fleet.states())
    fleet.until(lambda: not fleet.gateway.records)
    assert len(fleet.cloud.created) == 1


def test_a_pool_keeps_its_minimum(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=2))
    fleet.until(lambda: len(fleet.cloud.running()) == 2 and fleet.states() == ["ready", "ready"])
    for _ in range(100):
        fleet.tick()
    assert fleet.states() == ["ready", "ready"]
    assert len(fleet.cloud.created) == 2


def test_a_burst_is_packed_and_the_maximum_holds(fleet: Fleet) -> None:
    sandboxes = fleet.ask(100)
    fleet.until(lambda: len(fleet.gateway.placed) == 16)
    for _ in range(30):
        fleet.tick()
    assert len(fleet.cloud.created) == 4
    assert waits(fleet)["pool cpu"] is RefusalKind.POOL_FULL
    for sandbox in sandboxes:
        fleet.gateway.finish(sandbox)
    fleet.until(lambda: not fleet.cloud.machines)


def test_a_shape_that_never_fits_buys_nothing(fleet: Fleet) -> None:
    fleet.ask(1, Shape(cpus=400, memory_mb=1024, slots=1))
    fleet.tick()
    assert fleet.cloud.created == []
    assert waits(fleet)["demand"] is RefusalKind.UNFIT


def test_a_lost_answer_makes_one_instance(fleet: Fleet) -> None:
    fleet.cloud.lose_answer()
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    assert len(fleet.cloud.created) == 1
    assert len(fleet.gateway.grants) == 1


def test_an_uncertain_create_is_sent_again_under_its_own_name(fleet: Fleet) -> None:
    fleet.cloud.fail_next("create", ErrorKind.TRANSIENT, Applied.MAYBE, effect=False)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    assert fleet.cloud.calls.count("create") == 2
    assert len(fleet.cloud.created) == 1


def test_without_capacity_the_next_offer_is_taken(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(max=1))
    fleet.cloud.fail_next("create", ErrorKind.CAPACITY, Applied.NO, scope=Scope.OFFER)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    assert [(i.type, i.location) for i in fleet.cloud.created] == [("small", "there")]


def test_a_full_quota_holds_back_all_creates_but_no_deletes(fleet: Fleet) -> None:
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.cloud.fail_next("create", ErrorKind.QUOTA, Applied.NO)
    fleet.ask(8)
    fleet.until(lambda: waits(fleet).get("pool cpu") is RefusalKind.BACKOFF)
    before = fleet.cloud.calls.count("create")
    fleet.tick()
    assert fleet.cloud.calls.count("create") == before
    for name in [*fleet.gateway.placed, *fleet.gateway.waiting]:
        fleet.gateway.finish(name)
    fleet.until(lambda: not fleet.cloud.machines)


def test_demand_that_returns_cancels_a_drain(fleet: Fleet) -> None:
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    fleet.until(lambda: fleet.states() == ["draining"])
    (again,) = fleet.ask()
    fleet.until(lambda: again in fleet.gateway.placed)
    assert len(fleet.cloud.created) == 1
    assert fleet.states() == ["ready"]


def test_work_placed_before_the_node_closed_is_not_killed(fleet: Fleet) -> None:
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    fleet.until(lambda: fleet.states() == ["draining"])
    (node_id,) = fleet.gateway.records
    fleet.gateway.placed["late"] = (node_id, SMALL)
    fleet.gateway._count()
    for _ in range(60):
        fleet.tick()
    assert fleet.states() == ["ready"]
    assert fleet.gateway.records[node_id].state is NodeState.READY


def test_a_node_is_deleted_only_after_a_heartbeat_that_follows_its_drain(fleet: Fleet) -> None:
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    fleet.until(lambda: fleet.states() == ["draining"])
    (machine,) = fleet.cloud.machines
    fleet.gateway.silent.add(machine)
    for _ in range(5):
        fleet.tick()
    assert fleet.states() == ["draining"]
    fleet.gateway.silent.clear()
    fleet.until(lambda: not fleet.cloud.machines)


def test_a_boot_that_never_ends_is_deleted_and_the_pool_backs_off(fleet: Fleet) -> None:
    fleet.cloud.stuck_booting = True
    fleet.ask()
    fleet.until(lambda: fleet.states() == ["booting"])
    for _ in range(149):
        fleet.tick()
    fleet.until(lambda: not fleet.cloud.machines)
    fleet.until(lambda: not fleet.states())
    assert len(fleet.cloud.created) == 1
    assert waits(fleet)["pool cpu"] is RefusalKind.BACKOFF
    fleet.cloud.stuck_booting = False
    fleet.until(lambda: fleet.states() == ["ready"])
    assert len(fleet.cloud.created) == 2


def test_a_node_that_registers_while_its_late_boot_is_given_up_is_kept(fleet: Fleet) -> None:
    (sandbox,) = fleet.ask()
    fleet.until(lambda: bool(fleet.cloud.machines))
    (machine,) = fleet.cloud.machines
    fleet.gateway.silent.add(machine)
    looks = 0

    def step(name: str) -> None:
        """Let it come between the look that gave it up and the delete."""
        nonlocal looks
        looks = looks + 1 if name == "call gateway.nodes" else looks
        if looks == 2:
            fleet.gateway.silent.clear()
            fleet.gateway.step()

    fleet.watch(step)
    for _ in range(400):
        looks = 0
        fleet.tick()
        if not fleet.gateway.silent:
            break
    fleet.watch(None)
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    assert [*fleet.cloud.machines] == [machine]
    assert len(fleet.cloud.created) == 1


def test_a_booting_node_counts_in_full_for_what_waits(fleet: Fleet) -> None:
    fleet.ask(4)
    for _ in range(10):
        fleet.tick()
    assert len(fleet.cloud.created) == 1


def test_an_instance_that_vanishes_is_replaced(fleet: Fleet) -> None:
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    (name,) = fleet.cloud.machines
    fleet.cloud.vanish(name)
    fleet.ask(4)
    fleet.until(lambda: len(fleet.cloud.created) == 2 and fleet.states() == ["ready"])
    fleet.until(lambda: len(fleet.gateway.records) == 1)


def test_a_lost_instance_is_deleted_and_replaced(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1))
    fleet.until(lambda: fleet.states() == ["ready"])
    (name,) = fleet.cloud.machines
    fleet.cloud.lose(name)
    fleet.until(lambda: name not in fleet.cloud.machines and fleet.states() == ["ready"])
    assert len(fleet.cloud.created) == 2


def test_a_blind_provider_concludes_and_changes_nothing(fleet: Fleet) -> None:
    fleet.cloud.fail_next("list", ErrorKind.AUTH, Applied.NO)
    fleet.ask()
    report = fleet.tick()
    assert report.plan.actions == ()
    assert waits(fleet)["provider fake"] is WaitKind.BLIND_PROVIDER


def test_a_failed_listing_loses_no_node(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1))
    fleet.until(lambda: fleet.states() == ["ready"])
    for _ in range(20):
        fleet.cloud.fail_next("list", ErrorKind.TRANSIENT, Applied.NO)
        fleet.tick()
    assert fleet.states() == ["ready"]


def test_without_a_gateway_there_is_no_scaling(fleet: Fleet) -> None:
    fleet.ask()
    fleet.gateway.unreachable = True
    report = fleet.tick()
    assert fleet.cloud.created == []
    assert WaitKind.NO_GATEWAY in {wait.kind for wait in report.plan.waits}
    fleet.gateway.unreachable = False
    fleet.until(lambda: bool(fleet.gateway.placed))


def test_ceilings_are_published_and_shapes_learned_from_the_first_node(fleet: Fleet) -> None:
    fleet.tick()
    assert fleet.gateway.ceilings is not None
    (before,) = fleet.gateway.ceilings.pools
    assert (before.pool, before.max_nodes, before.shape.gpus) == ("cpu", 4, 1)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.tick()
    fleet.tick()
    assert fleet.journal.learned()["cpu", "small", ""].cpus == 4


def test_a_jump_of_the_clock_deletes_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1, max=2))
    fleet.until(lambda: fleet.states() == ["ready"])
    fleet.ask(5)
    fleet.until(lambda: "booting" in fleet.states())
    fleet.clock.skew = 3600.0
    for _ in range(30):
        fleet.tick()
    assert len(fleet.cloud.created) == 2
    assert fleet.states() == ["ready", "ready"]
    assert "delete" not in fleet.cloud.calls


def test_an_instance_whose_pool_is_renamed_is_reported_until_the_name_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path, pool(min=1))
    fleet.until(lambda: fleet.states() == ["ready"])
    (name,) = [intent.name for intent in fleet.journal.open_intents()]
    before = fleet.policy
    fleet.policy = replace(before, pools=(pool(name="renamed"),))
    fleet.restart()
    for _ in range(100):
        fleet.tick()
    assert waits(fleet)[name] is WaitKind.UNKNOWN_POOL
    assert len([message for message in caplog.messages if message.startswith(f"{name}: ")]) == 1, "not at every tick"
    assert fleet.states() == ["ready"]

    fleet.policy = replace(before, pools=(pool(),))
    fleet.restart()
    fleet.until(lambda: not fleet.cloud.machines)


# -- a gateway that has lost its database ------------------------------------------------------------------------------


def lose_database(fleet: Fleet) -> tuple[dict[str, NodeRecord], dict[str, str]]:
    """Start the gateway over an empty database, and return what it knew before."""
    memory = (fleet.gateway.records, fleet.gateway.agents)
    fleet.gateway.records, fleet.gateway.agents = {}, {}
    return memory


def test_a_gateway_that_gets_its_database_back_has_its_whole_fleet(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=4))
    fleet.until(lambda: fleet.states() == ["ready"] * 4)
    memory = lose_database(fleet)
    for _ in range(100):
        fleet.tick()
    assert fleet.states() == ["ready"] * 4
    fleet.gateway.records, fleet.gateway.agents = memory
    for _ in range(20):
        fleet.tick()
    assert (fleet.states(), len(fleet.cloud.created)) == (["ready"] * 4, 4)


def test_nodes_that_stay_forgotten_are_deleted_and_replaced(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=4))
    fleet.until(lambda: fleet.states() == ["ready"] * 4)
    lose_database(fleet)
    fleet.until(lambda: len(fleet.cloud.created) > 4, ticks=1100)
    fleet.until(lambda: fleet.states() == ["ready"] * 4)
