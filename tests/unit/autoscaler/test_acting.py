"""What is written down when the calls of a plan fail."""

from pathlib import Path

from autoscaler.core import backoff, naming
from autoscaler.core.model import Learn
from gateway.wire.resources import Shape
from providers.base import Applied, ErrorKind
from tests.scenario.autoscaler.fleet import Fleet, pool


def test_a_delete_that_fails_holds_its_pool_back_from_closing_more(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    fleet.cloud.fail_next("delete", ErrorKind.BUSY, Applied.NO)
    fleet.until(lambda: fleet.states() == ["deleting"])
    (row,) = fleet.journal.open_intents()
    assert row.detail == "busy: fake: delete answered busy"
    held = fleet.journal.backoffs()[backoff.closing_key("cpu")]
    assert held.until - held.failed_at == backoff.CLOSING_SECONDS
    (told,) = [event for event in fleet.journal.events(20) if event.kind == "backoff"]
    assert told.detail == f"nothing is closed for 180 s: {row.name}: {row.detail}"
    fleet.until(lambda: fleet.states() == [])


def test_a_new_node_bundle_replaces_the_nodes_that_installed_the_last_one(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1, spec="s1", installs=True))
    fleet.until(lambda: fleet.states() == ["ready"])
    (row,) = fleet.journal.open_intents()
    assert row.spec == "s1-aaaaaaaaaaaa"
    assert fleet.cloud.created[0].labels[naming.SPEC] == row.spec
    fleet.gateway.bundle_sha256 = "b" * 64
    fleet.until(lambda: [i.spec for i in fleet.journal.open_intents()] == ["s1-bbbbbbbbbbbb"])
    assert [event.detail for event in fleet.journal.events(50) if event.kind == "draining"] == [
        "it was made with an older node bundle; another has its place"
    ]
    for _ in range(100):
        fleet.tick()
    assert len(fleet.cloud.created) == 2


def test_a_gateway_without_a_bundle_is_no_reason_to_replace(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1, spec="s1", installs=True))
    fleet.until(lambda: fleet.states() == ["ready"])
    fleet.gateway.unreachable = True
    for _ in range(100):
        fleet.tick()
    fleet.gateway.unreachable = False
    for _ in range(100):
        fleet.tick()
    assert len(fleet.cloud.created) == 1


def test_a_lesson_of_other_settings_stops_nobody(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(spec="s2"))
    tiny = Shape(cpus=0.1, memory_mb=10, disk_mb=10, slots=1)
    fleet.journal.settle((Learn("cpu", "small", "s1", tiny),), 0.0)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed and ("cpu", "small", "s2") in fleet.journal.learned())
    assert fleet.journal.learned()["cpu", "small", "s2"].cpus == 4
