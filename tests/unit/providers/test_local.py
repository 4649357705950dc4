"""What the local provider's supervisor does with real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from providers.base import Applied, Create, Deleted, ErrorKind, Phase, ProviderError, Ref
from providers.local import supervisor
from providers.local.home import MARKER, Home, UserData, hold_lock, lock_holder, processes_of, signal_lock_holder
from providers.local.provider import LocalProvider

PYTHON = sys.executable
SLEEP = (PYTHON, "-c", "import signal; signal.pause()")
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
STUBBORN = (PYTHON, "-c", DEAF)


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


class Bench:
    """Providers over one directory, all instances of which are deleted at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings: dict[str, object] = {"root": root, "node_command": SLEEP, "cleanup_command": ()}
        self.provider = self.make()

    def make(self, **settings: object) -> LocalProvider:
        self.provider = LocalProvider.from_settings(self.settings | settings, deployment="d", environ={})
        return self.provider

    def create(self, name: str = "d-cpu-a", user_data: str = "", **settings: object) -> Home:
        self.make(**settings).create(self.order(name, user_data))
        return Home(self.root / name)

    def order(self, name: str = "d-cpu-a", user_data: str = "") -> Create:
        return Create(name, f"op-{name}", "d", "cpu", "local", "here", "", user_data, {"pool": "cpu"})

    def phase(self, name: str = "d-cpu-a") -> Phase:
        found = self.provider.get(Ref(name=name))
        return found.phase if found is not None else Phase.GONE

    def log(self, name: str = "d-cpu-a") -> str:
        path = self.root / name / "vm.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for instance in self.provider.list().instances:
            self.provider.delete(Ref(id=instance.id))
        eventually(lambda: not self.provider.list().instances)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "vms")
    yield made
    made.close()


def marked(home: Home) -> list[int]:
    return list(processes_of(home.path))


def running(bench: Bench, home: Home) -> list[int]:
    eventually(lambda: bench.phase() is Phase.RUNNING and len(marked(home)) == 1)
    return marked(home)


# -- the supervisor ---------------------------------------------------------------------------------------------------


def test_a_node_that_dies_is_started_again(bench: Bench) -> None:
    home = bench.create()
    (first,) = running(bench, home)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: marked(home) not in ([], [first]))
    assert bench.phase() is Phase.RUNNING
    assert "ended with -9" in bench.log()
    assert "starting it again in 0.5 s" in bench.log()


@pytest.mark.parametrize(
    ("last", "ran", "next_"),
    [(0.0, 1.0, 0.5), (0.5, 1.0, 1.0), (16.0, 1.0, 30.0), (30.0, 1.0, 30.0), (30.0, 60.0, 0.5)],
)
def test_restart_backoff_grows_to_a_bound_and_resets_after_a_good_run(last: float, ran: float, next_: float) -> None:
    assert supervisor.next_backoff(last, ran) == next_


def test_a_command_that_cannot_start_is_retried_and_logged(bench: Bench) -> None:
    bench.create(node_command=("/no/such/program",))
    eventually(lambda: bench.log().count("cannot start /no/such/program") >= 2)
    assert bench.phase() is Phase.BOOTING


def test_why_a_node_ended_is_there_until_it_runs_again(bench: Bench, tmp_path: Path) -> None:
    flag = tmp_path / "works"
    script = f"[ -e {flag} ] && exec sleep 600; echo noise; echo 'no engine works' >&2; exit 3"
    home = bench.create(node_command=("sh", "-c", script))
    eventually(lambda: home.failure == "no engine works")
    flag.touch()
    eventually(lambda: home.failure is None and bench.phase() is Phase.RUNNING)


def test_why_a_removal_failed_is_there(bench: Bench, tmp_path: Path) -> None:
    flag = tmp_path / "works"
    script = f"[ -e {flag} ] && exit 0; echo 'volume box cannot be unmounted' >&2; exit 1"
    home = bench.create(cleanup_command=("sh", "-c", script))
    running(bench, home)
    bench.provider.delete(Ref(name=home.path.name))
    eventually(lambda: "volume box cannot be unmounted" in (home.failure or ""))
    flag.touch()


def test_output_of_the_node_is_logged(bench: Bench) -> None:
    code = "import os, signal; os.write(2, b'caf\\xc3\\xa9\\n'); signal.pause()"
    bench.create(node_command=(PYTHON, "-c", code))
    eventually(lambda: "café" in bench.log())


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = supervisor.BoundedLog(tmp_path / "log", limit=1000)
    for _ in range(100):
        log.write(b"x" * 99 + b"\n")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"log", "log.1"}
    assert all(size <= 1100 for size in sizes.values())


def test_the_supervisor_outlives_its_creator_and_is_found_by_the_next(bench: Bench) -> None:
    code = f"""
import sys; sys.path[:] = {sys.path!r}
from tests.unit.providers.test_local import Bench
from pathlib import Path
bench = Bench(Path({str(bench.root)!r})); bench.create()
import os, signal; os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([PYTHON, "-c", code], check=False, timeout=60)
    eventually(lambda: bench.phase() is Phase.RUNNING)
    again = bench.provider.create(bench.order())
    assert again.adopted


def test_an_instance_has_one_supervisor(bench: Bench) -> None:
    home = bench.create()
    running(bench, home)
    done = subprocess.run([PYTHON, "-m", "providers.local.supervisor", str(home.path)], check=False, timeout=60)
    assert done.returncode == 0
    assert len(marked(home)) == 1


def test_an_instance_whose_creator_died_before_its_start_is_started_by_the_next_create(bench: Bench) -> None:
    record = bench.provider._record(bench.order(), None)
    Home.make(bench.root / "d-cpu-a", record, UserData())
    assert bench.phase() is Phase.BOOTING
    assert bench.provider.create(bench.order()).adopted
    eventually(lambda: bench.phase() is Phase.RUNNING)


def kill_supervisor(home: Home) -> None:
    assert signal_lock_holder(home.lock, signal.SIGKILL)
    eventually(lambda: not home.alive)


def test_the_node_of_a_killed_supervisor_goes_on_under_the_next(bench: Bench) -> None:
    home = bench.create()
    nodes = running(bench, home)
    kill_supervisor(home)

    assert [instance.phase for instance in bench.provider.list().instances] == [Phase.RUNNING]

    eventually(lambda: home.alive)
    eventually(lambda: f"adopted process {nodes[0]}" in bench.log())
    assert marked(home) == nodes
    os.kill(nodes[0], signal.SIGKILL)
    eventually(lambda: marked(home) not in ([], nodes))
    assert bench.phase() is Phase.RUNNING


def test_an_adopted_node_ends_with_its_instance(bench: Bench) -> None:
    home = bench.create(node_command=STUBBORN, stop_seconds=0.2)
    eventually(lambda: bench.log().endswith("deaf\n"))
    kill_supervisor(home)
    eventually(lambda: bench.phase() is Phase.RUNNING and "adopted process" in bench.log())

    bench.provider.delete(Ref(name="d-cpu-a"))

    eventually(lambda: bench.phase() is Phase.GONE)
    assert marked(home) == []


def test_an_instance_of_which_nothing_runs_is_lost(bench: Bench) -> None:
    home = bench.create()
    (node,) = running(bench, home)
    kill_supervisor(home)
    os.kill(node, signal.SIGKILL)
    eventually(lambda: bench.phase() is Phase.LOST)
    assert not home.alive


def test_delete_ends_the_node_of_a_killed_supervisor(bench: Bench) -> None:
    home = bench.create()
    (node,) = running(bench, home)
    kill_supervisor(home)
    assert Path(f"/proc/{node}").exists()
    assert bench.provider.delete(Ref(name="d-cpu-a")) is Deleted.ACCEPTED
    eventually(lambda: bench.phase() is Phase.GONE)
    assert marked(home) == []
    assert not home.path.exists()


def test_sigterm_without_a_delete_loses_the_instance_and_keeps_its_directory(bench: Bench) -> None:
    home = bench.create()
    running(bench, home)
    signal_lock_holder(home.lock, signal.SIGTERM)
    eventually(lambda: bench.phase() is Phase.LOST)
    assert marked(home) == []
    assert home.path.exists()


def test_a_node_that_ignores_sigterm_is_killed(bench: Bench) -> None:
    home = bench.create(node_command=STUBBORN, stop_seconds=0.2)
    eventually(lambda: "deaf" in bench.log())
    bench.provider.delete(Ref(name="d-cpu-a"))
    eventually(lambda: bench.phase() is Phase.GONE)
    assert marked(home) == []


def test_orphaned_children_of_the_node_are_killed(bench: Bench) -> None:
    code = f"import signal, subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True); signal.pause()"
    home = bench.create(node_command=(PYTHON, "-c", code))
    eventually(lambda: len(marked(home)) == 2)
    bench.provider.delete(Ref(name="d-cpu-a"))
    eventually(lambda: bench.phase() is Phase.GONE)
    assert marked(home) == []


# -- cleanup ----------------------------------------------------------------------------------------------------------


def cleanup(*lines: str) -> Sequence[str]:
    return (PYTHON, "-c", "\n".join(lines))


def test_the_cleanup_command_runs_before_the_directory_goes(bench: Bench, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    bench.create(
        cleanup_command=(
            *cleanup(
                "import sys, os", f"open({str(seen)!r}, 'w').write(sys.argv[1] + str(os.path.isdir(sys.argv[1])))"
            ),
            "${dir}",
        )
    )
    eventually(lambda: bench.phase() is Phase.RUNNING)
    bench.provider.delete(Ref(name="d-cpu-a"))
    eventually(lambda: bench.phase() is Phase.GONE)
    assert seen.read_text() == f"{bench.root / 'd-cpu-a'}True"


def test_a_cleanup_that_fails_keeps_the_instance_until_a_later_delete(bench: Bench, tmp_path: Path) -> None:
    good = tmp_path / "good"
    bench.create(cleanup_command=cleanup("import os, sys", f"sys.exit(0 if os.path.exists({str(good)!r}) else 3)"))
    eventually(lambda: bench.phase() is Phase.RUNNING)
    bench.provider.delete(Ref(name="d-cpu-a"))
    eventually(lambda: "removal failed (3 of 3)" in bench.log() and not Home(bench.root / "d-cpu-a").alive)
    assert bench.phase() is Phase.STOPPING
    assert "ended with 3" in bench.log()
    good.touch()
    bench.provider.delete(Ref(name="d-cpu-a"))
    eventually(lambda: bench.phase() is Phase.GONE)


def test_a_cleanup_that_hangs_is_killed(bench: Bench) -> None:
    bench.create(cleanup_command=SLEEP, cleanup_seconds=0.1)
    eventually(lambda: bench.phase() is Phase.RUNNING)
    bench.provider.delete(Ref(name="d-cpu-a"))
    eventually(lambda: "removal failed (3 of 3)" in bench.log())
    eventually(lambda: not Home(bench.root / "d-cpu-a").alive)
    record = bench.root / "d-cpu-a" / "instance.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"cleanup_command": []}))


def test_nothing_is_removed_below_a_mount(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    home = bench.create()
    running(bench, home)
    monkeypatch.setattr(Home, "mounts", lambda self: [f"{self.path}/node/x"])
    with pytest.raises(OSError, match=r"still mounted: .*/node/x"):
        home.remove()
    assert home.record() is not None


@pytest.mark.engine
def test_mounts_below_an_instance_are_found_whatever_their_names(tmp_path: Path) -> None:
    home, beside = Home(tmp_path / "a b"), tmp_path / "a bc"
    point = home.path / "node" / "x\\y z\t\xe9"
    for path in (point, beside):
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", path], check=True, timeout=10)
    try:
        assert home.mounts() == [str(point)]
    finally:
        subprocess.run(["umount", point, beside], check=True, timeout=10)
    assert home.mounts() == []


# -- create -----------------------------------------------------------------------------------------------------------


def test_user_data_becomes_files_with_placeholders_filled_in(bench: Bench) -> None:
    content = "dir=${dir} name=${name} address=${address} cost=$$1"
    files = [{"path": "node.toml", "content": content}, {"path": "x.sh", "content": "", "mode": 0o700}]
    home = bench.create(user_data=json.dumps({"files": files}), address="127.0.0.9")
    text = (home.path / "node.toml").read_text()
    assert text == f"dir={home.path} name=d-cpu-a address=127.0.0.9 cost=$1"
    assert (home.path / "node.toml").stat().st_mode & 0o777 == 0o600
    assert (home.path / "x.sh").stat().st_mode & 0o777 == 0o700
    assert home.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/b", ".hidden", ""])
def test_user_data_cannot_leave_the_directory(bench: Bench, path: str) -> None:
    with pytest.raises(ProviderError) as caught:
        bench.create(user_data=json.dumps({"files": [{"path": path, "content": ""}]}))
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.CONFIG, Applied.NO)
    assert bench.provider.list().instances == ()


def test_more_instances_than_allowed_are_a_quota(bench: Bench) -> None:
    bench.create("d-cpu-a", max_instances=1)
    with pytest.raises(ProviderError) as caught:
        bench.create("d-cpu-b", max_instances=1)
    assert (caught.value.kind, caught.value.applied) == (ErrorKind.QUOTA, Applied.NO)
    assert [offer.available for offer in bench.provider.offers()] == [False]
    assert bench.provider.create(bench.order("d-cpu-a")).adopted


def test_a_damaged_record_fails_the_listing(bench: Bench) -> None:
    home = bench.create()
    running(bench, home)
    record = home.path / "instance.json"
    good = record.read_text()
    record.write_text('{"id": "x"}')
    with pytest.raises(ProviderError) as caught:
        bench.provider.list()
    assert caught.value.kind is ErrorKind.BUG
    record.write_text(good)


def test_offers_are_this_machine_unless_the_settings_say_otherwise(bench: Bench) -> None:
    (offer,) = bench.make(cpus=1.5, memory_mb=100, disk_mb=200).offers()
    assert (offer.resources.cpus, offer.resources.memory_mb, offer.resources.disk_mb) == (1.5, 100, 200)
    (offer,) = bench.make().offers()
    assert offer.resources.cpus == len(os.sched_getaffinity(0))


def test_a_node_sees_nothing_of_its_creators_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXES_AUTOSCALER_SECRET", "hush")
    bench.create(
        node_command=(PYTHON, "-c", "import os, signal; print(sorted(os.environ), flush=True); signal.pause()")
    )
    eventually(lambda: MARKER in bench.log())
    assert "SECRET" not in bench.log()


# -- processes --------------------------------------------------------------------------------------------------------


def test_the_holder_of_a_lock_is_known_only_while_it_lives(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert lock_holder(lock) is None
    lock.touch()
    assert lock_holder(lock) is None
    code = f"""
import sys; sys.path[:] = {sys.path!r}
from pathlib import Path
from providers.local.home import hold_lock
hold_lock(Path({str(lock)!r})); print('held', flush=True); sys.stdin.read()
"""
    with subprocess.Popen([PYTHON, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert lock_holder(lock) == child.pid
        assert hold_lock(lock) is None
        child.kill()
        child.wait(timeout=30)
    assert lock_holder(lock) is None
    assert not signal_lock_holder(lock, signal.SIGTERM)
