"""Tables for people, and progress on stderr."""

import os
import select
import sys
import threading

import pytest

from sandboxes import app, output
from tests.fakes.gateway import Gateway, Reply


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0M"), (1023, "1023M"), (1024, "1G"), (1536, "1.5G"), (2048 * 1024, "2048G"), (1_234_567, "1205.6G")],
)
def test_sizes(amount: int, text: str) -> None:
    assert output.mebibytes(amount) == text


def test_lasting_retries_are_reported_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter((100.0, 101.9, 102.0, 107.0))
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    failed = output.retry_reporter()
    said = []
    for number in range(4):
        failed(OSError(f"refused {number}"))
        said.append(capsys.readouterr().err)
    assert said == ["", "", "retrying: refused 2\n", ""]


def test_wait_is_shown_on_a_terminal(
    environment: dict[str, str], gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxes.output.PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    release = threading.Event()
    gateway.next("GET", "/sandboxes", Reply(body=b'{"sandboxes":[]}', hang=release))
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(app.run(["ls", "-q"])))
        thread.start()
        shown = b""
        while b"listing sandboxes" not in shown:
            shown += os.read(ours, 4096)
        release.set()
        while thread.is_alive():  # a terminal that nobody reads holds its writer up
            if select.select([ours], [], [], 0.01)[0]:
                os.read(ours, 4096)
    os.close(ours)
    assert codes == [0]
