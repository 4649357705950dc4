"""The schedule, with real signals; systemd hears of it through a real datagram socket."""

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


def run_until_signal(tick: Callable[[Callable[[], bool]], object], *, seconds: float = 0.05) -> None:
    Daemon(tick, lambda: None, seconds).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ticks_until_a_signal_which_a_running_tick_sees(number: signal.Signals) -> None:
    seen: list[bool] = []

    def tick(is_stopping: Callable[[], bool]) -> None:
        seen.append(is_stopping())
        if len(seen) == 3:
            os.kill(os.getpid(), number)
            while not is_stopping():
                threading.Event().wait(0.01)
            seen.append(is_stopping())

    run_until_signal(tick)
    assert seen == [False, False, False, True]


def test_failing_ticks_are_logged_once_and_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    count = 0

    def tick(_is_stopping: Callable[[], bool]) -> None:
        nonlocal count
        count += 1
        if count <= 3:
            raise RuntimeError(f"disk full, try {count}")
        os.kill(os.getpid(), signal.SIGTERM)

    run_until_signal(tick)
    assert count >= 4
    logged = [message for message in caplog.messages if message.startswith("the tick failed")]
    assert logged == ["the tick failed: RuntimeError: disk full, try 1", "the tick failed: resolved"]
    assert "Traceback" in caplog.text


def test_a_failing_prune_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("autoscaler.daemon.PRUNE_SECONDS", 0.05)

    def prune() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("disk full")

    Daemon(lambda _stopping: None, prune, 0.05).run()
    assert "job prune failed" in caplog.text
    assert "RuntimeError: disk full" in caplog.text


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_until_signal(lambda _stopping: os.kill(os.getpid(), signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is before


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
    """What has been sent and not received yet."""
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


def test_systemd_hears_ready_alive_and_stopping(listener: socket.socket) -> None:
    received: list[str] = []

    def tick(is_stopping: Callable[[], bool]) -> None:
        received.append(heard(listener))
        if received.count("WATCHDOG=1") == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    Daemon(tick, lambda: None, TICK, Notifier(environ(listener))).run()
    received += waiting(listener)
    assert [words for words in received if words != "WATCHDOG=1"] == ["READY=1", "STOPPING=1"]


def test_the_watchdog_hears_nothing_while_a_tick_hangs(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    # The first may be of the time before the tick, and the second brings what was logged at its beginning.
    assert warnings[2:4] == [[], []], "nothing was logged between one stall and the next"


def test_an_abstract_socket_address_works(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind("\0sandbox-fleet-test-notify")
        made.settimeout(20)
        Notifier({"NOTIFY_SOCKET": "@sandbox-fleet-test-notify"}).send("READY=1")
        assert heard(made) == "READY=1"


def test_without_systemd_nothing_is_sent_and_a_missing_listener_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier({}).send("READY=1")
    assert caplog.records == []
    assert Notifier({}).every == float("inf")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).send("READY=1")
    assert "READY=1 could not be sent" in caplog.text
