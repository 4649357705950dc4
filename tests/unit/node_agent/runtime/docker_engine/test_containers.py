"""What Docker's words mean."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.wire.sandboxes import Isolation
from gateway.wire.states import DeathReason
from node_agent.runtime.base import EngineState
from node_agent.runtime.docker_engine import containers

ENDED = "2026-01-02T03:04:05.123456789Z"


def inspected(**state: Any) -> dict[str, Any]:
    base = {"Status": "exited", "ExitCode": 0, "OOMKilled": False, "StartedAt": ENDED, "FinishedAt": ENDED}
    return {"State": base | state}


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("running", EngineState.RUNNING),
        ("paused", EngineState.PAUSED),
        ("created", EngineState.CREATING),
        ("exited", EngineState.DEAD),
        ("dead", EngineState.DEAD),
        ("removing", EngineState.DEAD),
    ],
)
def test_states_of_docker_have_the_ports_names(word: str, state: EngineState) -> None:
    assert containers.state(inspected(Status=word)) is state


@pytest.mark.parametrize(
    ("isolation", "code", "oom", "reason"),
    [
        ("runc", 3, False, DeathReason.EXITED),
        ("runc", 137, False, DeathReason.EXITED),
        ("runc", 137, True, DeathReason.OOM),
        ("runc", 0, True, DeathReason.EXITED),  # a child was killed, the first process went on
        ("gvisor", 1, True, DeathReason.OOM),  # the sandbox's kernel was killed
    ],
)
def test_deaths_have_their_reasons(isolation: Isolation, code: int, oom: bool, reason: DeathReason) -> None:
    death = containers.death(inspected(ExitCode=code, OOMKilled=oom), isolation)

    assert (death.reason, death.exit_code) == (reason, code)
    assert death.ended_at == datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)


def test_a_container_that_never_started_has_no_start() -> None:
    assert containers.started_at(inspected(StartedAt="0001-01-01T00:00:00Z")) is None
