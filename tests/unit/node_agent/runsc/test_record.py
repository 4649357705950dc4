"""What is kept of a sandbox on disk."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.host.accounts import Account
from node_agent.host.network import Net
from node_agent.runtime.base import Death, EngineState, Order
from node_agent.runtime.runsc.record import Record

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


@pytest.fixture
def order() -> Order:
    spec = SandboxSpec.model_validate({"id": "a", "image": "i", "env": {"A": "ü"}, "labels": {"k": "v"}})
    return Order("a", 3, "op-1", spec, spec.sha256())


def test_everything_comes_back(order: Order, tmp_path: Path) -> None:
    record = Record.of(order).but(
        state=EngineState.DEAD,
        net=Net("n", "h", "10.0.0.2/30", "10.0.0.1"),
        account=Account(1, 2, (3, 4), "name", None),
        death=Death(DeathReason.OOM, None, "why", NOW),
        started_at=NOW,
        sentry_pid=5,
    )

    record.save(tmp_path, durable=True)

    assert Record.load(tmp_path) == record
    assert record.order == order


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert Record.load(tmp_path / "missing") is None


@pytest.mark.parametrize("text", ["", "{", '{"sandbox_id":"a"}', '{"unknown":1}'])
def test_damaged_record_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)

    with pytest.raises(ValueError):
        Record.load(tmp_path)
