"""The teardown of a whole fleet."""

from pathlib import Path

import pytest

from autoscaler import teardown
from providers.base import Applied, ErrorKind
from tests.scenario.autoscaler.fleet import Fleet, pool


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, pool(min=2))
    fleet.until(lambda: fleet.states() == ["ready", "ready"])
    return fleet


def give_up(fleet: Fleet, within: float = 60.0) -> list[str]:
    left = teardown.release(
        fleet.journal, {"fake": fleet.provider}, clock=fleet.clock, within=within, sleep=fleet.cloud.advance
    )
    return [each.subject for each in left]


def test_the_whole_fleet_is_deleted_with_its_rows(fleet: Fleet) -> None:
    names = frozenset(intent.name for intent in fleet.journal.open_intents())
    assert give_up(fleet) == []
    assert fleet.cloud.machines == {}
    assert fleet.states() == []
    assert teardown.forget_nodes(fleet.gateway, names) == []
    assert fleet.gateway.records == {}
    fleet.journal.close()


def test_instances_without_a_row_are_deleted_too(fleet: Fleet) -> None:
    for intent in fleet.journal.open_intents():
        fleet.journal.move(intent.operation_id, "deleting", now=0.0, reason="x")  # type: ignore[arg-type]
        fleet.journal.move(intent.operation_id, "gone", now=0.0, reason="x")  # type: ignore[arg-type]
    assert give_up(fleet) == []
    assert fleet.cloud.machines == {}
    fleet.journal.close()


def test_what_remains_is_returned(fleet: Fleet) -> None:
    fleet.cloud.stop_seconds = 1e6
    left = give_up(fleet, within=5.0)
    assert left == sorted(fleet.cloud.machines)
    fleet.cloud.stop_seconds = 1.0
    fleet.cloud.advance(1e6)
    assert give_up(fleet) == []
    fleet.journal.close()


def test_a_failing_provider_is_retried_until_the_deadline(fleet: Fleet) -> None:
    fleet.cloud.fail_next("list", ErrorKind.TRANSIENT, Applied.NO)
    fleet.cloud.fail_next("delete", ErrorKind.TRANSIENT, Applied.MAYBE, effect=False)
    assert give_up(fleet) == []
    for _ in range(100):
        fleet.cloud.fail_next("list", ErrorKind.AUTH, Applied.NO)
    assert give_up(fleet, within=3.0) == ["fake"]
    fleet.journal.close()


def test_a_broken_plugin_is_retried_until_the_deadline(fleet: Fleet) -> None:
    fleet.cloud.break_next("list", KeyError("id"), effect=False)
    assert give_up(fleet) == []
    for _ in range(100):
        fleet.cloud.break_next("list", KeyError("id"), effect=False)
    assert give_up(fleet, within=3.0) == ["fake"]
    fleet.journal.close()
