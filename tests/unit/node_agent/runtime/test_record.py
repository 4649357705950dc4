"""What is kept of a sandbox on disk."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.host.accounts import Account
from node_agent.host.network import Net
from node_agent.runtime.base import Death, EngineState, Order
from node_agent.runtime.record import DockerPart, RecordStore, RunscPart, RunscRecords

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


@pytest.fixture
def order() -> Order:
    spec = SandboxSpec.model_validate({"id": "a", "image": "i", "env": {"A": "ü"}, "labels": {"k": "v"}})
    return Order("a", 3, "op-1", spec, spec.sha256(), ("0", "2"))


@pytest.fixture
def records(tmp_path: Path) -> RunscRecords:
    return RecordStore(tmp_path / "sandboxes", RunscPart)


def test_everything_comes_back(order: Order, records: RunscRecords) -> None:
    record = (
        records.new(order)
        .but(state=EngineState.DEAD, death=Death(DeathReason.OOM, None, "why", NOW))
        .with_part(
            net=Net("n", "h", "10.0.0.2/30", "10.0.0.1"),
            account=Account(1, 2, (3, 4), "name", None),
            started_at=NOW,
            sentry_pid=5,
        )
    )

    records.begin(record)

    assert records.load("a") == record
    assert record.order == order


def test_part_of_the_docker_engine_comes_back(order: Order, tmp_path: Path) -> None:
    records = RecordStore(tmp_path, DockerPart)
    record = records.begin(records.new(order).with_part(layer=Path("/var/lib/docker/overlay2/x"), network="n"))

    assert records.all() == [record]


def test_only_root_reads_the_secrets_in_it(order: Order, records: RunscRecords) -> None:
    records.begin(records.new(order))

    assert records.directory("a").stat().st_mode & 0o077 == 0
    assert (records.directory("a") / "record.json").stat().st_mode & 0o077 == 0


def test_nothing_is_nothing(records: RunscRecords) -> None:
    assert records.load("missing") is None
    assert records.ids() == []
    records.mark_deleting("missing")
    assert records.ids() == []


@pytest.mark.parametrize("text", ["", "{", '{"sandbox_id":"a"}', '{"unknown":1}'])
def test_damaged_record_is_no_record(order: Order, records: RunscRecords, text: str) -> None:
    records.begin(records.new(order))
    (records.directory("a") / "record.json").write_text(text)

    assert records.load("a") is None
    assert records.ids() == ["a"]


def test_sandbox_whose_delete_has_begun_counts_as_gone(order: Order, records: RunscRecords) -> None:
    record = records.begin(records.new(order))

    records.mark_deleting("a")

    assert records.load("a") is None
    assert records.all() == []
    assert records.remains("a") == record


def test_record_of_a_vanished_directory_is_not_written(order: Order, records: RunscRecords) -> None:
    with pytest.raises(FileNotFoundError):
        records.save(records.new(order))


@pytest.mark.parametrize(
    ("state", "inherited", "leaves"),
    [
        (EngineState.CREATING, False, False),
        (EngineState.CREATING, True, True),
        (EngineState.RUNNING, False, True),
        (EngineState.DEAD, False, True),
    ],
)
def test_workspace_is_left_by_what_ran_or_took_one_over(
    order: Order, records: RunscRecords, state: EngineState, inherited: bool, leaves: bool
) -> None:
    assert records.new(order).but(state=state, inherited=inherited).leaves_workspace is leaves
