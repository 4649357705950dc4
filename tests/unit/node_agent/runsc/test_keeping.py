"""Descriptors that outlive who had them, over a real keeper."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.runtime.runsc.fd_store import Keeping

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="writes below /run")


@pytest.fixture
def tag() -> Iterator[str]:
    made = secrets.token_hex(4)
    yield made
    assert keepers(made) == []
    assert not socket_of(made).exists()


def socket_of(tag: str) -> Path:
    return Path(f"/run/sandbox-{tag}-keeper")


def keepers(tag: str) -> list[int]:
    """Keepers of that tag that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if tag.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def kept_pipe(keeping: Keeping, name: str) -> int:
    """Keeps the readable end of a pipe, and gives away the other."""
    reading, writing = os.pipe()
    keeping.keep(name, reading)
    os.close(reading)
    return writing


def test_what_arrives_while_nobody_is_there_is_read_by_the_next(tag: str) -> None:
    first = Keeping(tag)
    writing = kept_pipe(first, "one")
    first.close()
    os.write(writing, b"7")
    os.close(writing)

    second = Keeping(tag)
    descriptor = second.take("one")
    assert descriptor is not None
    assert os.read(descriptor, 10) == b"7"
    os.close(descriptor)
    second.drop("one")
    second.drop("one")
    assert second.take("one") is None
    second.close()


def test_nothing_is_started_to_ask_for_nothing(tag: str) -> None:
    keeping = Keeping(tag)
    assert keeping.take("one") is None
    keeping.drop("one")
    assert keepers(tag) == []
    keeping.close()


def test_a_later_descriptor_takes_the_place_of_the_first(tag: str) -> None:
    keeping = Keeping(tag)
    os.close(kept_pipe(keeping, "one"))
    writing = kept_pipe(keeping, "one")
    os.write(writing, b"new")
    descriptor = keeping.take("one")
    assert descriptor is not None
    assert os.read(descriptor, 10) == b"new"
    for left in (writing, descriptor):
        os.close(left)
    keeping.drop("one")
    keeping.close()


def test_it_stays_while_another_agent_is_connected(tag: str) -> None:
    first, second = Keeping(tag), Keeping(tag)
    os.close(kept_pipe(first, "one"))
    descriptor = second.take("one")
    assert descriptor is not None
    os.close(descriptor)
    first.close()
    second.drop("one")
    assert second.take("one") is None
    second.close()
    # Who started it reaps it; here that is this process, and the second only saw it end.
    first.reap()


def kill_keeper(tag: str) -> int:
    """Returns its pid once it is dead; nobody has reaped it."""
    (pid,) = keepers(tag)
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def kept(keeping: Keeping, name: str) -> None:
    """Keeps something, and returns once the keeper has it."""
    os.close(kept_pipe(keeping, name))
    descriptor = keeping.take(name)
    assert descriptor is not None
    os.close(descriptor)


def test_a_keeper_that_was_killed_is_replaced(tag: str) -> None:
    keeping = Keeping(tag)
    kept(keeping, "one")
    killed = kill_keeper(tag)

    assert keeping.take("one") is None
    kept(keeping, "two")
    assert not Path(f"/proc/{killed}").exists(), "it was reaped"
    keeping.drop("two")
    keeping.close()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_killed_keepers_socket_does_not_stay(tag: str, noticed: bool) -> None:
    keeping = Keeping(tag)
    kept(keeping, "one")
    killed = kill_keeper(tag)
    if noticed:
        assert keeping.take("one") is None
    assert socket_of(tag).exists()

    keeping.close()
    os.waitpid(killed, 0)
