"""systemd is told through a real datagram socket."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoscaler import daemon
from autoscaler.daemon import Daemon, Notifier

TICK = 0.01


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(20)
        yield made


def heard(listener: socket.socket) -> str:
    return listener.recv(100).decode()


def waiting(listener: socket.socket) -> list[str]:
    """What has been said and not heard yet."""
    listener.setblocking(False)
    found: list[str] = []
    try:
        while True:
            found.append(heard(listener))
    except BlockingIOError:
        listener.settimeout(20)
        return found


def environ(listener: socket.socket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": "20000"}


def test_it_is_ready_lives_and_ends(listener: socket.socket) -> None:
    told: list[str] = []

    def tick(is_stopping: Callable[[], bool]) -> None:
        told.append(heard(listener))
        if told.count("WATCHDOG=1") == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    Daemon(tick, lambda: None, TICK, Notifier(environ(listener))).run()
    told += waiting(listener)
    assert [words for words in told if words != "WATCHDOG=1"] == ["READY=1", "STOPPING=1"]


def test_it_is_silent_while_a_tick_hangs(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "STALLED_SECONDS", 3 * TICK)
    warnings: list[list[str]] = []
    hangs, stalled = threading.Event(), threading.Event()

    class Watcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if hangs.is_set() and record.msg.startswith("no tick for"):
                warnings.append(waiting(listener))
                if len(warnings) >= 4:
                    stalled.set()

    def tick(is_stopping: Callable[[], bool]) -> None:
        hangs.set()
        assert stalled.wait(20)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = Watcher()
    daemon.log.addHandler(watcher)
    try:
        Daemon(tick, lambda: None, TICK, Notifier(environ(listener))).run()
    finally:
        daemon.log.removeHandler(watcher)
    # The first may be of the time before the tick, and the second brings what was told at its beginning.
    assert warnings[2:4] == [[], []], "nothing was told between one stall and the next"


def test_an_address_without_a_file_is_understood(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind("\0sandbox-fleet-test-notify")
        made.settimeout(20)
        Notifier({"NOTIFY_SOCKET": "@sandbox-fleet-test-notify"}).send("READY=1")
        assert heard(made) == "READY=1"


def test_without_systemd_nothing_is_told_and_without_a_listener_it_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier({}).send("READY=1")
    assert caplog.records == []
    assert Notifier({}).every == float("inf")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).send("READY=1")
    assert "READY=1 could not be sent" in caplog.text
