"""Descriptors that outlive who had them, over a real FD store."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.runtime.runsc.fd_store import FdStore

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="writes below /run")


@pytest.fixture
def tag() -> Iterator[str]:
    made = secrets.token_hex(4)
    yield made
    assert servers(made) == []
    assert not socket_of(made).exists()


def socket_of(tag: str) -> Path:
    return Path(f"/run/sandbox-{tag}-fd-store")


def servers(tag: str) -> list[int]:
    """Return the store processes of that tag that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if tag.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def kept_pipe(store: FdStore, name: str) -> int:
    """Keep the readable end of a pipe, and return the other."""
    reading, writing = os.pipe()
    store.keep(name, reading)
    os.close(reading)
    return writing


def test_what_arrives_while_nobody_is_there_is_read_by_the_next(tag: str) -> None:
    first = FdStore(tag)
    writing = kept_pipe(first, "one")
    first.close()
    os.write(writing, b"7")
    os.close(writing)

    second = FdStore(tag)
    descriptor = second.take("one")
    assert descriptor is not None
    assert os.read(descriptor, 10) == b"7"
    os.close(descriptor)
    second.drop("one")
    second.drop("one")
    assert second.take("one") is None
    second.close()


def test_nothing_is_started_to_ask_for_nothing(tag: str) -> None:
    store = FdStore(tag)
    assert store.take("one") is None
    store.drop("one")
    assert servers(tag) == []
    store.close()


def test_a_later_descriptor_takes_the_place_of_the_first(tag: str) -> None:
    store = FdStore(tag)
    os.close(kept_pipe(store, "one"))
    writing = kept_pipe(store, "one")
    os.write(writing, b"new")
    descriptor = store.take("one")
    assert descriptor is not None
    assert os.read(descriptor, 10) == b"new"
    for left in (writing, descriptor):
        os.close(left)
    store.drop("one")
    store.close()


def test_it_stays_while_another_agent_is_connected(tag: str) -> None:
    first, second = FdStore(tag), FdStore(tag)
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


def kill_server(tag: str) -> int:
    """Return its pid once it is dead; nobody has reaped it."""
    (pid,) = servers(tag)
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def kept(store: FdStore, name: str) -> None:
    """Keep something, and wait until the store has it."""
    os.close(kept_pipe(store, name))
    descriptor = store.take(name)
    assert descriptor is not None
    os.close(descriptor)


def test_a_killed_store_is_replaced(tag: str) -> None:
    store = FdStore(tag)
    kept(store, "one")
    killed = kill_server(tag)

    assert store.take("one") is None
    kept(store, "two")
    assert not Path(f"/proc/{killed}").exists(), "it was reaped"
    store.drop("two")
    store.close()


@pytest.mark.parametrize("noticed", [True, False])
def test_socket_of_a_killed_store_does_not_stay(tag: str, noticed: bool) -> None:
    store = FdStore(tag)
    kept(store, "one")
    killed = kill_server(tag)
    if noticed:
        assert store.take("one") is None
    assert socket_of(tag).exists()

    store.close()
    os.waitpid(killed, 0)
