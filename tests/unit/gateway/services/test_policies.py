"""The policy file is read again when it changes; a wrong one changes nothing and is complained about."""

import asyncio
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.core.policy import Policies
from gateway.services.policies import PolicyFile
from gateway.wire.resources import Shape
from gateway.wire.settings import ConfigurationError


class SteppedClock:
    """Sleeps without waiting; its wall clock is the machine's, as that of files is."""

    def __init__(self) -> None:
        self._mono = 100.0
        self.steps: asyncio.Queue[None] = asyncio.Queue()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return self._mono

    async def sleep(self, seconds: float) -> None:
        self._mono += seconds
        self.steps.put_nowait(None)
        await asyncio.sleep(0)


def written(path: Path, limit: int | str, age: float = 60.0) -> None:
    """Write a policy file that was last changed so many seconds ago."""
    path.write_text(f"[default.quota]\nsandboxes = {limit}\n")
    os.utime(path, (time.time() - age, time.time() - age))


def sandboxes(policies: Policies) -> int | None:
    return policies.of("default")[1].sandboxes


def test_a_changed_file_holds_from_the_next_look_on(tmp_path: Path) -> None:
    path, clock = tmp_path / "policy.toml", SteppedClock()
    written(path, 1)
    file = PolicyFile(path, clock)
    written(path, 22, age=50)
    assert sandboxes(file.current()) == 1  # not every call looks
    file.look()
    assert sandboxes(file.current()) == 22


def test_two_changes_within_the_resolution_of_file_times_are_both_seen(tmp_path: Path) -> None:
    path, clock = tmp_path / "policy.toml", SteppedClock()
    written(path, 1, age=0)
    file = PolicyFile(path, clock)
    before = path.stat()
    path.write_text("[default.quota]\nsandboxes = 2\n")
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    file.look()
    assert sandboxes(file.current()) == 2


def test_a_wrong_file_keeps_what_held_and_is_complained_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "policy.toml", SteppedClock()
    written(path, 1)
    file = PolicyFile(path, clock)
    for _ in range(3):
        written(path, "'many'", age=0)
        file.look()
        assert sandboxes(file.current()) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "[default.quota] sandboxes" in caplog.text
    assert file.problem is not None and "[default.quota] sandboxes" in file.problem
    path.unlink()
    file.look()
    assert sandboxes(file.current()) == 1
    written(path, 3)
    file.look()
    assert (sandboxes(file.current()), file.problem) == (3, None)
    assert caplog.records[-1].levelname == "WARNING"


async def test_a_file_that_became_wrong_is_noticed_although_nobody_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "policy.toml", SteppedClock()
    written(path, 1)
    file = PolicyFile(path, clock)
    written(path, "'many'", age=0)
    looks = asyncio.create_task(file.run())
    for _ in range(2):
        await clock.steps.get()
    looks.cancel()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert file.problem is not None


def test_a_change_is_logged_once_although_a_young_file_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "policy.toml", SteppedClock()
    written(path, 1)
    file = PolicyFile(path, clock)
    first = file.describe("default", Shape(), 0).version
    written(path, 2, age=0)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            file.look()
    assert [record.getMessage() for record in caplog.records] == [f"policy file {path}: has changed, and holds"]
    assert file.describe("default", Shape(), 0).version != first


def test_a_wrong_or_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.toml"):
        PolicyFile(tmp_path / "missing.toml", SteppedClock())
    wrong = tmp_path / "wrong.toml"
    wrong.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        PolicyFile(wrong, SteppedClock())


def test_without_a_file_the_built_in_defaults_hold() -> None:
    assert PolicyFile(None, SteppedClock()).current().of("x")[0].isolations == ("gvisor",)


def test_a_pattern_that_allows_nothing_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        "[default.policy]\nimages = ['GHCR.io/*']\n[tenants.acme.policy]\nregistries = ['index.docker.io']\n"
    )
    file = PolicyFile(path, SteppedClock())
    file.look()  # the file is so new that it is read again
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [("'ghcr.io/*'" in line, "'docker.io'" in line) for line in told] == [(True, False), (False, True)]
