"""The stages of a boot: what the bootstrap noted, read with care."""

from pathlib import Path

import pytest

from node_agent.host.machine import boot_stages


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "uptime").write_text("45.50 80.12\n")
    fields = ["S", *["0"] * 18, "4150", "0"]  # the 3rd to the 21st, and the 22nd: 41.5 s at 100 ticks a second
    (tmp_path / "self/stat").write_text(f"7 (a (b) c) {' '.join(fields)}\n")
    return tmp_path


def test_all_stages(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    noted = proc / "stages"
    noted.write_text("cloud_init 9.5\nengines 30\nengines 31.25\nsomething 1\nbundle 40\n")
    stages = boot_stages(noted, proc)
    assert stages is not None
    assert stages.model_dump() == {
        "cloud_init": 9.5,
        "engines": 31.25,
        "bundle": 40.0,
        "agent": 41.5,
        "registered": 45.5,
        "heartbeat": None,
    }


@pytest.mark.parametrize("text", ["", "engines\n", "engines soon\n", "\xff\n", "x" * 10_000])
def test_damage_costs_the_stage_only(proc: Path, text: str) -> None:
    noted = proc / "stages"
    noted.write_text(f"cloud_init 9.5\n{text}")
    stages = boot_stages(noted, proc)
    assert stages is not None and (stages.cloud_init, stages.engines, stages.registered) == (9.5, None, 45.5)


def test_nothing_was_noted(proc: Path) -> None:
    assert boot_stages(None, proc) is None
    assert boot_stages(proc / "nothing", proc) is None


def test_this_process_began_before_now(tmp_path: Path) -> None:
    noted = tmp_path / "stages"
    noted.write_text("cloud_init 0\n")
    stages = boot_stages(noted)
    assert stages is not None and stages.agent is not None and stages.registered is not None
    assert 0 < stages.agent <= stages.registered
