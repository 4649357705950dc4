"""What the stack makes of a node that cannot start; whole stacks are started in tests/integration."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import ClickException

from providers.local.home import FAILURE
from sandboxes.local.stack import Stack
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
