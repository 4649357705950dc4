"""Lock, clock, settings, user data, schedule and the end of a fleet."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from autoscaler import lock, teardown
from autoscaler.clock import ClockGuard, DaemonClock
from autoscaler.daemon import Daemon
from autoscaler.instances import new_operation_id
from autoscaler.settings import AutoscalerSettings
from autoscaler.user_data import NodeBoot, for_cloud_init, for_local, renderer
from gateway.wire.settings import ConfigurationError
from providers.base import Applied, ErrorKind
from tests.scenario.autoscaler.fleet import Fleet, pool

# -- lock -------------------------------------------------------------------------------------------------------------


def test_the_second_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lock"
    assert lock.owner(path) is None
    with lock.held(path):
        with pytest.raises(lock.LockedError, match=f"process {os.getpid()}, since .*; stop it first"), lock.held(path):
            raise AssertionError
        assert str(os.getpid()) in str(lock.owner(path))
    assert lock.owner(path) is None
    with lock.held(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_who_looks_at_the_lock_keeps_nobody_from_taking_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked, taken = tmp_path / "lock", fcntl.fcntl, list[str]()
    path.touch()

    def at_that_moment(file: IO[str], command: int, argument: bytes) -> int | bytes:
        answer = asked(file, command, argument)
        if not taken:
            taken.append("by one that starts")
            with lock.held(path):
                pass
        return answer

    monkeypatch.setattr(fcntl, "fcntl", at_that_moment)
    assert lock.owner(path) is None
    assert taken


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"""
import sys; sys.path[:] = {sys.path!r}
from pathlib import Path; from autoscaler import lock
with lock.held(Path({str(path)!r})): print('held', flush=True); sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(lock.LockedError, match=f"process {child.pid}"), lock.held(path):
            raise AssertionError
        child.kill()
        child.wait(timeout=30)
    with lock.held(path):
        pass


# -- clock ------------------------------------------------------------------------------------------------------------


class HandClock(DaemonClock):
    def __init__(self) -> None:
        self.wall = 1000.0
        self.steady = 0.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.mark.parametrize("jump", [-3600.0, 31.0])
def test_ages_are_not_trusted_for_a_while_after_a_jump(jump: float) -> None:
    clock, told = HandClock(), []
    guard = ClockGuard(clock, 100.0, told.append)
    clock.pass_by(5000.0)
    assert guard.check()
    clock.wall += jump
    assert not guard.check()
    clock.pass_by(99.0)
    assert not guard.check()
    clock.pass_by(1.0)
    assert guard.check()
    assert told == [jump]


def test_a_clock_that_drifts_slowly_is_trusted() -> None:
    clock, told = HandClock(), []
    guard = ClockGuard(clock, 100.0, told.append)
    for _ in range(100):
        clock.pass_by(10.0)
        clock.wall += 1.0
        assert guard.check()
    assert told == []


# -- settings ---------------------------------------------------------------------------------------------------------

GOOD = """
gateway_url = "http://127.0.0.1:1"
token_file = "/token"
[providers.local]
root = "/vms"
[[pools]]
name = "cpu"
provider = "local"
min = 1
max = 2
offers = [{ type = "local", location = "here" }]
node = { memory_mb = 100, docker_url = "unix:///x" }
"""


def load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> AutoscalerSettings:
    path = tmp_path / "as.toml"
    path.write_text(text)
    return AutoscalerSettings.load(path, environ or {})


def test_a_pool_reaches_the_policy_and_its_nodes(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD)
    (cpu,) = settings.policy().pools
    assert (cpu.name, cpu.min, cpu.max, [str(offer) for offer in cpu.offers]) == ("cpu", 1, 2, ["local@here"])
    assert cpu.gives == {"memory_mb": 100}
    assert settings.pools[0].node_settings == {
        "runtimes": ["runsc", "docker"],
        "cpu_overcommit": 4.0,
        "reserve_memory_mb": 512,
        "reserve_disk_mb": 2048,
        "slots": 250,
        "memory_mb": 100,
        "docker_url": "unix:///x",
    }


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD, {"SANDBOXES_AUTOSCALER_TICK_SECONDS": "7", "OTHER": "x"})
    assert settings.tick_seconds == 7.0
    assert settings.url.endswith("/journal.db")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"gateway_url: Field required; token_file: Field required"),
        (GOOD.replace("min = 1", "min = 3"), r"pools\.0: Value error, min must not be above max"),
        (GOOD.replace('name = "cpu"', 'name = "CPU!"'), r"pools\.0\.name: String should match pattern"),
        (GOOD.replace('provider = "local"', 'provider = "fog"'), r"cpu names the provider 'fog' \(there is: local\)"),
        (GOOD.replace("max = 2", "max = 2\nmaxx = 3"), r"pools\.0\.maxx: Extra inputs are not permitted"),
        ("tick = 1\n" + GOOD, r"tick: Extra inputs are not permitted"),
        (GOOD + GOOD[GOOD.index("[[pools]]") :], r"pools: each needs a name of its own"),
        ("tick_seconds = inf\n" + GOOD, r"tick_seconds: Input should be a finite number"),
        ("tick_seconds = 1e300\n" + GOOD, r"tick_seconds: Input should be less than or equal to 3600"),
        (GOOD.replace("max = 2", "max = 2\nboot_seconds = inf"), r"pools\.0\.boot_seconds: .* a finite number"),
        ("no toml", r"as\.toml: "),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load(tmp_path, text)


# -- user data --------------------------------------------------------------------------------------------------------


def test_a_local_node_is_told_everything_and_its_token_apart() -> None:
    settings = {"slots": 3, "runtimes": ["runsc"], "docker_url": 'a"b\\c', "labels": {"x": "y"}, "root": "${dir}/r"}
    boot = NodeBoot("http://gw/$x", "to$ken", "d-cpu-a", "cpu", "sandbox", settings)
    files = {file["path"]: file for file in json.loads(for_local(boot))["files"]}
    assert set(files) == {"node.toml", "join.token"}
    assert files["join.token"] == {"path": "join.token", "content": "to$$ken\n", "mode": 0o600}
    written = tomllib.loads(files["node.toml"]["content"])
    assert written == {
        "gateway_url": "http://gw/$$x",
        "join_token_file": "${dir}/join.token",
        "root": "${dir}/r",
        "host": "${address}",
        "port": 0,
        "instance": "d-cpu-a",
        "slots": 3,
        "runtimes": ["runsc"],
        "docker_url": 'a"b\\c',
        "labels": {"x": "y", "pool": "cpu", "role": "sandbox"},
    }


def test_machines_of_a_plugin_get_a_cloud_init_document() -> None:
    assert renderer("fog") is for_cloud_init


def test_operation_ids_fit_names_and_do_not_repeat() -> None:
    made = {new_operation_id() for _ in range(200)}
    assert len(made) == 200
    assert all(len(each) == 12 and each.isalnum() and each == each.lower() for each in made)


# -- schedule ---------------------------------------------------------------------------------------------------------


def run_until_signal(tick: Callable[[Callable[[], bool]], object], *, seconds: float = 0.05) -> None:
    Daemon(tick, lambda: None, seconds).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ticks_until_a_signal_and_a_running_tick_is_told(number: signal.Signals) -> None:
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


def test_ticks_that_fail_are_told_once_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
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
    told = [message for message in caplog.messages if message.startswith("the tick failed")]
    assert told == ["the tick failed: RuntimeError: disk full, try 1", "the tick failed: resolved"]
    assert "Traceback" in caplog.text


def test_a_prune_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("autoscaler.daemon.PRUNE_SECONDS", 0.05)

    def prune() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("disk full")

    Daemon(lambda _stopping: None, prune, 0.05).run()
    assert "job prune failed" in caplog.text
    assert "RuntimeError: disk full" in caplog.text


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_until_signal(lambda _stopping: os.kill(os.getpid(), signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is before


# -- release ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, pool(min=2))
    fleet.until(lambda: fleet.states() == ["ready", "ready"])
    return fleet


def give_up(fleet: Fleet, within: float = 60.0) -> list[str]:
    left = teardown.release(
        fleet.journal, {"fake": fleet.provider}, clock=fleet.clock, within=within, sleep=fleet.cloud.advance
    )
    return [each.subject for each in left]


def test_the_whole_fleet_goes_and_its_rows_with_it(fleet: Fleet) -> None:
    names = frozenset(intent.name for intent in fleet.journal.open_intents())
    assert give_up(fleet) == []
    assert fleet.cloud.machines == {}
    assert fleet.states() == []
    assert teardown.forget_nodes(fleet.gateway, names) == []
    assert fleet.gateway.records == {}
    fleet.journal.close()


def test_what_no_row_knows_goes_too(fleet: Fleet) -> None:
    for intent in fleet.journal.open_intents():
        fleet.journal.move(intent.operation_id, "deleting", now=0.0, reason="x")  # type: ignore[arg-type]
        fleet.journal.move(intent.operation_id, "gone", now=0.0, reason="x")  # type: ignore[arg-type]
    assert give_up(fleet) == []
    assert fleet.cloud.machines == {}
    fleet.journal.close()


def test_what_stays_is_named(fleet: Fleet) -> None:
    fleet.cloud.stop_seconds = 1e6
    left = give_up(fleet, within=5.0)
    assert left == sorted(fleet.cloud.machines)
    fleet.cloud.stop_seconds = 1.0
    fleet.cloud.advance(1e6)
    assert give_up(fleet) == []
    fleet.journal.close()


def test_a_provider_that_fails_is_tried_until_the_end(fleet: Fleet) -> None:
    fleet.cloud.fail_next("list", ErrorKind.TRANSIENT, Applied.NO)
    fleet.cloud.fail_next("delete", ErrorKind.TRANSIENT, Applied.MAYBE, effect=False)
    assert give_up(fleet) == []
    for _ in range(100):
        fleet.cloud.fail_next("list", ErrorKind.AUTH, Applied.NO)
    assert give_up(fleet, within=3.0) == ["fake"]
    fleet.journal.close()


def test_a_plugin_that_breaks_is_tried_until_the_end_too(fleet: Fleet) -> None:
    fleet.cloud.break_next("list", KeyError("id"), effect=False)
    assert give_up(fleet) == []
    for _ in range(100):
        fleet.cloud.break_next("list", KeyError("id"), effect=False)
    assert give_up(fleet, within=3.0) == ["fake"]
    fleet.journal.close()
