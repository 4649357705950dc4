"""What the stack makes of a node that cannot start; whole stacks are started in tests/integration."""

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click import ClickException

from gateway.wire.nodes import NodeRecord
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from gateway.wire.system import PolicyAnswer
from providers.local.home import FAILURE
from sandboxes.local.stack import Ending, Stack, describe_node, ending, policy_news
from sandboxes.local.state_dir import StateDir
from sandboxes.local.supervisor import stop_signals


@pytest.fixture
def directory(short: Path) -> Iterator[StateDir]:
    before = {number: signal.getsignal(number) for number in stop_signals()}
    made = StateDir(short / "state")
    made.make()
    (made.tokens / "operator").write_text("secret")
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_node_that_cannot_start_ends_the_wait_with_its_own_sentence(directory: StateDir) -> None:
    home = directory.instances / "d-local-1"
    home.mkdir()
    (home / "vm.log").write_text("all that it wrote\n")
    (home / FAILURE).write_text("no engine works on this machine; 'sandboxes doctor' shows the cures")
    stack = Stack(directory, 1, lambda _: None)
    with pytest.raises(ClickException) as caught:
        stack._await_node()
    assert "no engine works on this machine; 'sandboxes doctor' shows the cures" in caught.value.message
    kept = directory.logs / "d-local-1.log"
    assert str(kept) in caught.value.message
    assert kept.read_text() == "all that it wrote\n"


@pytest.mark.parametrize(
    ("was_up", "node_before", "engine_before", "ends"),
    [
        (True, True, True, Ending(nodes=True, engine=True)),
        (True, True, False, Ending(nodes=True, engine=True)),
        (True, False, True, Ending(nodes=True, engine=True)),
        (True, False, False, Ending(nodes=True, engine=True)),
        (False, False, False, Ending(nodes=True, engine=True)),
        (False, False, True, Ending(nodes=True, engine=False)),
        # The node that goes on needs an engine, also one that this start has started.
        (False, True, False, Ending(nodes=False, engine=False)),
        (False, True, True, Ending(nodes=False, engine=False)),
    ],
)
def test_a_start_that_failed_ends_nothing_of_an_earlier_one(
    was_up: bool, node_before: bool, engine_before: bool, ends: Ending
) -> None:
    assert ending(was_up=was_up, node_before=node_before, engine_before=engine_before) == ends


def test_a_start_that_failed_leaves_an_earlier_node_for_the_next_one(directory: StateDir) -> None:
    (directory.instances / "d-local-1").mkdir()
    config = directory.root / "autoscaler.toml"
    config.write_text("")
    directory.url.write_text("http://127.0.0.1:2\n")
    said: list[str] = []
    stack = Stack(directory, 1, said.append)
    with pytest.raises(ClickException, match="--port 2"):
        stack.start()
    assert stack.end() == []
    assert directory.url.read_text() == "http://127.0.0.1:2\n"
    assert len(said) == 1 and f"sandboxes autoscaler release --config {config}" in said[0]


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def node(state: NodeState, heartbeat_at: datetime | None) -> NodeRecord:
    return NodeRecord(
        id="n-1",
        instance="i",
        pool="local",
        state=state,
        node_url="http://127.0.0.1:1",
        agent_version="1",
        total=Shape(),
        reserved=Shape(),
        runtimes=[],
        sandboxes=0,
        registered_at=NOW - timedelta(days=1),
        heartbeat_at=heartbeat_at,
    )


@pytest.mark.parametrize(
    ("state", "heartbeat_at", "lacks"),
    [
        (NodeState.READY, NOW + timedelta(seconds=1), None),
        (NodeState.READY, NOW - timedelta(seconds=1), "n-1 has not reported since this start"),
        (NodeState.READY, None, "n-1 has not reported since this start"),
        (NodeState.UNREACHABLE, NOW - timedelta(seconds=1), "n-1 is unreachable"),
    ],
)
def test_a_node_is_ready_once_it_has_reported_since_the_start(
    state: NodeState, heartbeat_at: datetime | None, lacks: str | None
) -> None:
    assert describe_node(node(state, heartbeat_at), NOW) == lacks


OLD, NEW = PolicyAnswer(file="/p", version="a"), PolicyAnswer(file="/p", version="b")
WRONG = PolicyAnswer(file="/p", version="a", problem="line 2: no such key")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (None, OLD, None),
        (OLD, OLD, None),
        (OLD, NEW, "the policy file has changed, and holds"),
        (OLD, WRONG, "the new policy is not used, the one before still holds: line 2: no such key"),
        (None, WRONG, "the new policy is not used, the one before still holds: line 2: no such key"),
        (WRONG, WRONG, None),
        (WRONG, NEW, "the policy file is right again, and holds"),
    ],
)
def test_each_change_of_the_policy_file_is_said_once(
    before: PolicyAnswer | None, now: PolicyAnswer, said: str | None
) -> None:
    assert policy_news(before, now) == said
