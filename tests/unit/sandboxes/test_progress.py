"""Trouble is told once, and only when it lasts."""

import pytest

from sandboxes import progress


def test_trouble_that_lasts_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter((100.0, 101.9, 102.0, 107.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    failed = progress.trouble()
    said = []
    for number in range(4):
        failed(OSError(f"refused {number}"))
        said.append(capsys.readouterr().err)
    assert said == ["", "", "trying again: refused 2\n", ""]
