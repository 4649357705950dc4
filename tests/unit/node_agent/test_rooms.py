"""The small rooms of the node agent: identity, machine, doctor, images, cleanup, file scripts, stdin."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.wire.errors import ErrorCode
from gateway.wire.system import Verdict
from node_agent import doctor
from node_agent.cli import app
from node_agent.exec.runner import StdinBuffer, StdinRoom
from node_agent.files import scripts
from node_agent.host import mounts
from node_agent.host.disk import write_atomically
from node_agent.host.machine import HostMachine
from node_agent.install import images
from node_agent.install.cleanup import record_engines, recorded_settings, remove_node
from node_agent.membership.registration import Identity, IdentityFile
from node_agent.settings import NodeSettings
from node_agent.startup import NodeStartError, hold_root
from tests.fakes.runtime import FakeRuntime

IDENTITY = Identity(node_id="n", credential="c", control_token="t", gateway_url="http://g", join_token_sha256="")


# -- identity ---------------------------------------------------------------------------------------------------------


def test_an_identity_is_kept_for_its_gateway_only(tmp_path: Path) -> None:
    file = IdentityFile(tmp_path)
    assert file.load("http://g") is None
    file.save(IDENTITY)
    assert file.load("http://g") == IDENTITY
    assert file.load("http://other") is None
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600


def test_a_damaged_identity_is_none(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    assert IdentityFile(tmp_path).load("http://g") is None


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "target", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


# -- machine ----------------------------------------------------------------------------------------------------------


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


def test_a_machine_takes_no_more_sandboxes_than_its_cores_can_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    assert machine(tmp_path / "a").total().slots == 48
    assert machine(tmp_path / "b", slots_per_core=1000).total().slots == 250
    assert machine(tmp_path / "c", slots_per_core=0.1).total().slots == 1


def test_the_disk_that_adopted_sandboxes_wrote_is_given_away_too(tmp_path: Path) -> None:
    empty = machine(tmp_path / "a", reserve_disk_mb=0)
    full = machine(tmp_path / "b", reserve_disk_mb=0)
    full.measure(1_000_000)
    assert full.total().disk_mb - empty.total().disk_mb > 900_000


def test_use_and_pressure_are_read(tmp_path: Path) -> None:
    read = machine(tmp_path)
    assert read.use().memory_mb == 3000
    assert (read.pressure().cpu, read.pressure().io) == (2.5, None)


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_every_row_that_is_not_ok_has_a_cure() -> None:
    rows = doctor.checks()
    assert len({row.name for row in rows}) == len(rows) >= 14
    assert [row.name for row in rows if row.verdict is not Verdict.OK and not row.cure] == []


def test_what_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "filesystems").write_text("nodev\ttmpfs\n\text4\n")
    missing = [
        doctor.user(1000),
        doctor.kernel("4.19.0"),
        doctor.cgroups(tmp_path),
        doctor.tool("no-such-tool", "package", "why"),
        doctor.filesystem("overlay", tmp_path / "filesystems", tmp_path),
        doctor.loop_devices(tmp_path / "nowhere"),
        doctor.busybox(tmp_path / "nowhere"),
    ]
    assert {row.verdict for row in missing} == {Verdict.ERROR}
    assert doctor.pressure(tmp_path).verdict is Verdict.WARNING
    assert doctor.filesystem("ext4", tmp_path / "filesystems").verdict is Verdict.OK


def test_cgroups_of_both_versions_are_known(tmp_path: Path) -> None:
    old, new, poor = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for controller in ("cpu", "memory", "pids"):
        (old / controller).mkdir(parents=True)
    for root, listed in ((new, "cpuset cpu io memory pids"), (poor, "cpu")):
        root.mkdir()
        (root / "cgroup.controllers").write_text(listed)
    assert doctor.cgroups(old).found == "v1 with cpu, memory and pids"
    assert doctor.cgroups(new).found == "v2 with cpu, memory and pids"
    assert doctor.cgroups(poor).found == "v2 without memory, pids"


def test_a_dynamic_busybox_is_refused(tmp_path: Path) -> None:
    (tmp_path / "busybox").write_bytes(b"\x7fELF" + b"\0" * 100 + b"/lib64/ld-linux-x86-64.so.2")
    assert doctor.busybox(tmp_path / "busybox").verdict is Verdict.ERROR


# -- images -----------------------------------------------------------------------------------------------------------


def test_the_packages_are_what_apt_names_and_nothing_virtual() -> None:
    told = "python3\n  PreDepends: python3-minimal\n  Depends: <awk>\n    mawk\n<awk>\nlibc6\nlibc6\nlibstdc++6\n"
    assert images.closure(told) == ["libc6", "libstdc++6", "python3"]


def test_the_test_image_holds_busybox_and_its_names(tmp_path: Path) -> None:
    images._make(tmp_path / "cache" / "image.tar", images._pack_busybox)
    with tarfile.open(tmp_path / "cache" / "image.tar") as tar:
        assert tar.getmember("bin/busybox").mode & 0o111
        assert tar.getmember("bin/sh").linkname == "busybox"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["image.tar"]


def test_a_failed_image_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    def broken(directory: Path, draft: Path) -> None:
        draft.write_bytes(b"half")
        raise images.ImageBuildError("no")

    with pytest.raises(images.ImageBuildError):
        images._make(tmp_path / "cache" / "image.tar", broken)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_engine_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["test-image", "--docker", f"unix://{tmp_path}/no.sock", "--cache", str(tmp_path)])
    assert told.exit_code == 1
    assert "Docker engine" in told.output and "Traceback" not in told.output


# -- cleanup ----------------------------------------------------------------------------------------------------------


def test_a_cleanup_needs_the_root_only_and_can_run_twice(tmp_path: Path) -> None:
    root = tmp_path / "node"
    root.mkdir()
    settings = NodeSettings.load(
        None, {}, gateway_url="http://g", root=root, docker_url="unix:///x", runtimes=("runsc",)
    )
    record_engines(settings)
    again = recorded_settings(root)
    assert (again.docker_url, again.runtimes) == ("unix:///x", ("runsc",))
    FakeRuntime(root / "fake")
    told = remove_node(again, {"runsc": lambda s: FakeRuntime(s.root / "fake")})
    assert not root.exists()
    assert told == [f"directory {root}"]
    assert remove_node(again, {}) == []


def test_a_cleanup_of_a_living_node_is_refused(tmp_path: Path) -> None:
    settings = NodeSettings.load(None, {}, gateway_url="http://g", root=tmp_path, runtimes=("runsc",))
    with hold_root(tmp_path):
        assert (tmp_path / "agent.lock").stat().st_mode & 0o777 == 0o600
    with hold_root(tmp_path), pytest.raises(NodeStartError, match="another node agent runs"):
        remove_node(settings, {})
    assert tmp_path.exists()


def test_mounts_below_a_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("1 2 3:4 / /a/b rw\n1 2 3:4 / /ab rw\n1 2 3:4 / /a rw\n")
    assert mounts.mounts_inside(Path("/a"), tmp_path / "mountinfo") == ["/a/b"]


def test_the_cleanup_command_says_what_it_removed(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "engines.json").write_text(json.dumps({"docker_url": "unix:///none", "runtimes": ["docker"]}))
    told = CliRunner().invoke(app, ["cleanup", "--root", str(tmp_path / "nowhere")])
    assert (told.exit_code, told.output) == (0, "")


# -- file scripts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [scripts.UPLOAD, scripts.DOWNLOAD])
def test_the_scripts_are_what_a_shell_can_read(script: str) -> None:
    subprocess.run(["/bin/busybox", "sh", "-n", "-c", script], check=True, timeout=10)


@pytest.mark.parametrize(
    ("code", "stderr", "expected"),
    [
        (scripts.EXIT_DIRECTORY, b"", ErrorCode.IS_DIRECTORY),
        (1, b"cat: write error: No space left on device", ErrorCode.DISK_FULL),
        (1, b"sh: can't create x: Permission denied", ErrorCode.FILE_PERMISSION),
        (1, b"mkdir: x: Not a directory", ErrorCode.NOT_A_DIRECTORY),
        (1, b"something new", ErrorCode.INTERNAL),
        (137, b"", ErrorCode.INTERNAL),
    ],
)
def test_a_script_that_failed_is_explained(code: int, stderr: bytes, expected: ErrorCode) -> None:
    assert scripts.explain(code, stderr)[0] is expected


@pytest.mark.parametrize(("path", "argument"), [("/a", "/a"), ("a", "./a"), ("-rf", "./-rf"), ("../a", "./../a")])
def test_no_path_looks_like_an_option(path: str, argument: str) -> None:
    assert scripts.argument(path) == argument


# -- stdin ------------------------------------------------------------------------------------------------------------


def test_input_is_taken_whole_or_not_at_all() -> None:
    buffer = StdinBuffer(StdinRoom(), bound=10)
    assert buffer.offer(b"x" * 8)
    assert not buffer.offer(b"y" * 3)
    assert buffer.take() == b"x" * 8
    assert not buffer.offer(b"y" * 3)
    buffer.taken()
    assert buffer.offer(b"y" * 30)  # larger than the bound, alone


def test_the_end_comes_after_what_was_taken() -> None:
    buffer = StdinBuffer(StdinRoom())
    buffer.offer(b"last")
    buffer.close()
    assert buffer.take() == b"last"
    buffer.taken()
    assert buffer.take() is None


def test_a_process_that_is_gone_takes_nothing_more() -> None:
    buffer = StdinBuffer(StdinRoom())
    buffer.offer(b"unread")
    buffer.discard()
    assert buffer.take() is None


def test_all_sessions_together_are_bounded_and_give_their_room_back() -> None:
    room = StdinRoom(bound=10)
    one, two = StdinBuffer(room), StdinBuffer(room)
    assert one.offer(b"x" * 8)
    assert not two.offer(b"y" * 8)
    one.discard()
    one.discard()
    assert two.offer(b"y" * 8)
    assert two.take() == b"y" * 8
    two.taken()
    assert one.offer(b"z" * 10)
