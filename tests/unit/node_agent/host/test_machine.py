"""What the machine has, what is in use, and the stages of its boot."""

from pathlib import Path

import pytest

from node_agent.host.machine import (
    Gpu,
    HostMachine,
    boot_stages,
    disk_is_short,
    list_gpus,
    parse_meminfo,
    parse_pressure,
)
from node_agent.settings import NodeSettings


def machine(root: Path, **given: object) -> HostMachine:
    proc = root / "proc"
    (proc / "pressure").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 4096000 kB\nMemAvailable: 1024000 kB\n")
    (proc / "pressure/cpu").write_text("some avg10=2.50 avg60=0 avg300=0 total=0\n")
    settings = NodeSettings.load(None, {}, gateway_url="http://g", root=root, **given)
    return HostMachine(settings, gpus=2, proc=proc)


def test_a_machine_gives_away_what_is_left_after_its_reserve(tmp_path: Path) -> None:
    total = machine(tmp_path, reserve_memory_mb=1000, disk_mb=77, cpus=3.5, slots=1).total()
    assert (total.memory_mb, total.disk_mb, total.cpus, total.gpus, total.slots) == (3000, 77, 3.5, 2, 1)


def test_slots_are_bounded_by_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    assert machine(tmp_path / "a").total().slots == 48
    assert machine(tmp_path / "b", slots_per_core=1000).total().slots == 250
    assert machine(tmp_path / "c", slots_per_core=0.1).total().slots == 1


def test_the_disk_that_adopted_sandboxes_hold_is_given_away_too(tmp_path: Path) -> None:
    empty = machine(tmp_path / "a", reserve_disk_mb=0, images_mb=1)
    full = machine(tmp_path / "b", reserve_disk_mb=0, images_mb=1)
    full.measure(1_000_000)
    assert full.total().disk_mb - empty.total().disk_mb > 900_000


def test_what_images_may_take_is_not_given_away(tmp_path: Path) -> None:
    here = machine(tmp_path / "a", reserve_disk_mb=0)
    here.measure(1_000_000, 3_000_000)
    assert here.images_mb is not None
    assert here.images_mb > 1_000_000
    assert here.total().disk_mb == pytest.approx(3 * here.images_mb, abs=4)
    there = machine(tmp_path / "b", reserve_disk_mb=0, images_mb=1_000_000)
    there.measure(3_000_000)
    assert there.images_mb == 1_000_000
    assert there.total().disk_mb == pytest.approx(2_000_000 + there.free_disk_mb(), abs=1000)


def test_a_sandbox_gets_no_disk_that_is_not_there_now(tmp_path: Path) -> None:
    here = machine(tmp_path, least_disk_mb=10)
    free = here.free_disk_mb()
    assert here.disk_shortage(free // 2) is None
    assert here.disk_shortage(free + 100) is not None
    assert here.disk_shortage() is None


def test_use_and_pressure_are_read(tmp_path: Path) -> None:
    read = machine(tmp_path)
    assert read.use().memory_mb == 3000
    assert (read.pressure().cpu, read.pressure().io) == (2.5, None)


@pytest.mark.parametrize(
    ("free", "was_short", "short"), [(100, False, False), (99, False, True), (199, True, True), (200, True, False)]
)
def test_a_full_disk_is_short_until_twice_the_least_is_free(free: int, was_short: bool, short: bool) -> None:
    assert disk_is_short(free_mb=free, least_mb=100, was_short=was_short) is short


def test_meminfo_and_pressure_are_parsed() -> None:
    assert parse_meminfo("MemTotal:  2048000 kB\nMemAvailable: 1024 kB\nHugePages_Total: 0\n")["MemTotal"] == 2000
    text = "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0 avg300=0 total=0\n"
    assert parse_pressure(text) == 1.5
    assert parse_pressure("") is None


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "uptime").write_text("45.50 80.12\n")
    fields = ["S", *["0"] * 18, "4150", "0"]  # the 3rd to the 21st, and the 22nd: 41.5 s at 100 ticks a second
    (tmp_path / "self/stat").write_text(f"7 (a (b) c) {' '.join(fields)}\n")
    return tmp_path


def test_boot_has_all_stages(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_damaged_line_costs_its_stage_only(proc: Path, text: str) -> None:
    noted = proc / "stages"
    noted.write_text(f"cloud_init 9.5\n{text}")
    stages = boot_stages(noted, proc)
    assert stages is not None and (stages.cloud_init, stages.engines, stages.registered) == (9.5, None, 45.5)


def test_a_boot_without_notes_has_no_stages(proc: Path) -> None:
    assert boot_stages(None, proc) is None
    assert boot_stages(proc / "nothing", proc) is None


def test_this_process_began_before_now(tmp_path: Path) -> None:
    noted = tmp_path / "stages"
    noted.write_text("cloud_init 0\n")
    stages = boot_stages(noted)
    assert stages is not None and stages.agent is not None and stages.registered is not None
    assert 0 < stages.agent <= stages.registered


def test_gpus_are_numbered_by_their_address_and_named_by_their_uuid(tmp_path: Path) -> None:
    uuid = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
    for address, told in {"0000:82:00.0": "GPU-????????-????-????-????-????????????", "0000:03:00.0": uuid}.items():
        directory = tmp_path / "driver/nvidia/gpus" / address
        directory.mkdir(parents=True)
        (directory / "information").write_text(f"Model: \t\t Tesla\nGPU UUID: \t {told}\nBus Type: \t PCIe\n")

    gpus = list_gpus(tmp_path)

    assert gpus == (Gpu(0, uuid), Gpu(1))
    assert [gpu.name for gpu in gpus] == [uuid, "1"]
    assert list_gpus(tmp_path / "no driver") == ()
