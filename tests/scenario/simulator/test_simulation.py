"""Short traces through the real autoscaler on virtual time."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from typer.testing import CliRunner

from autoscaler.core.actions import RefusalKind
from simulator import settings
from simulator.chart import draw
from simulator.cli import app
from simulator.engine import RunResult, Simulation
from simulator.metrics import RunSummary, summarise
from simulator.trace import JobBatch, Spread, Trace, dump

CONFIG = """
tick_seconds = 2.0
creates_per_tick = 50
stops_per_tick = 50
[[pools]]
name = "cpu"
provider = "cloud"
max = 50
max_in_flight = 50
idle_seconds = 30.0
hold_seconds = 0.0
drain_share = 1.0
{pool}
[[pools]]
name = "build"
role = "builder"
provider = "cloud"
max = 2
max_in_flight = 2
idle_seconds = 30.0
hold_seconds = 0.0
offers = [{{ type = "small", location = "here" }}]
[simulation.providers.cloud]
{cloud}
offers = [
    {{ type = "small", location = "here", cpus = 4, memory_mb = 8704, disk_mb = 100000, price = "0.05"{small} }},
    {{ type = "large", location = "here", cpus = 16, memory_mb = 33280, disk_mb = 400000, price = "0.25" }},
]
"""
WORK = Spread(median=600, sigma=0.2)
BURST = JobBatch(at=60, count=40, seconds=WORK, cpus=1, memory_mb=2048)


def played(
    directory: Path, *batches: JobBatch, pool: str = "", cloud: str = "", small: str = ""
) -> tuple[RunResult, RunSummary]:
    path = directory / "config.toml"
    path.write_text(CONFIG.format(pool=pool, cloud=cloud, small=small))
    setup = settings.load(path)
    simulation = Simulation(Trace("t", 1, batches), setup)
    outcome = simulation.run()
    summary = summarise("t", outcome, setup, simulation.policy)
    assert not summary.unserved
    assert summary.deletes == summary.boots, "an instance was left"
    assert summary.bound <= summary.cost
    return outcome, summary


def test_a_burst_waits_for_one_boot_and_the_fleet_goes_when_it_is_done(tmp_path: Path) -> None:
    outcome, summary = played(tmp_path, BURST)
    assert summary.boots == 10, "four of 2 GiB go on a node of 8 GiB"
    assert 0.8 <= summary.wait.p50 / summary.boot <= 1.2
    assert summary.wait_ratio <= 1.2
    assert max(sample.capacity[1] for sample in outcome.samples) == 10 * 8192
    assert summary.utilisation["memory_mb"] > 0.6


def test_it_plays_alike_every_time(tmp_path: Path) -> None:
    (_, first), (_, second) = played(tmp_path, BURST), played(tmp_path, BURST)
    assert first == second


def test_what_was_prepared_ahead_does_not_wait(tmp_path: Path) -> None:
    _, summary = played(tmp_path, JobBatch(at=300, count=40, seconds=WORK, cpus=1, memory_mb=2048, ahead=120))
    assert summary.wait.most == 0
    assert summary.boots == 10, "each sandbox claims a unit; nothing is counted twice"


def test_an_offer_that_runs_out_is_replaced_by_the_next(tmp_path: Path) -> None:
    outcome, summary = played(tmp_path, BURST, small=", stock = 2")
    assert {machine.offer.type for machine in outcome.instances} == {"small", "large"}
    assert summary.refusals > 0
    assert summary.wait_ratio <= 1.2, "the next offer is tried in the same tick"


def test_sandboxes_come_after_their_build_and_builders_go(tmp_path: Path) -> None:
    build = JobBatch(seconds=Spread(median=200), kind="build", name="image")
    after = JobBatch(after="image", at=10, count=4, seconds=WORK, cpus=1, memory_mb=2048)
    outcome, summary = played(tmp_path, build, after)
    assert sorted(machine.pool for machine in outcome.instances) == ["build", "cpu"]
    builder, worker = sorted(outcome.instances, key=lambda machine: machine.created_at)
    assert worker.created_at >= (builder.registers_at or 0) + 210
    assert summary.utilisation["builds"] > 0


def test_instances_that_never_register_are_replaced(tmp_path: Path) -> None:
    _, summary = played(tmp_path, BURST, pool="boot_seconds = 120.0", cloud="boot_failures = 0.2")
    assert summary.failed_boots > 0


def test_where_started_hours_are_paid_idle_nodes_are_kept_to_their_edge(tmp_path: Path) -> None:
    outcome, summary = played(tmp_path, BURST, cloud='billing = "hourly_round_up"')
    for machine in outcome.instances:
        life = machine.seconds(outcome.ended_at)
        assert 3600 - 330 <= life <= 3600, f"{machine.name} lived {life:.0f} s"
    assert summary.cost == pytest.approx(0.05 * len(outcome.instances))


def test_the_maximum_holds_and_is_reported(tmp_path: Path) -> None:
    text = CONFIG.format(pool="", cloud="", small="").replace("max = 50", "max = 4", 1)
    (tmp_path / "low.toml").write_text(text)
    setup = settings.load(tmp_path / "low.toml")
    outcome = Simulation(Trace("t", 1, (BURST,)), setup).run()
    assert max(sample.instances for sample in outcome.samples) == 4
    assert outcome.held["pool cpu", RefusalKind.POOL_FULL] > 300


def test_work_that_nothing_can_hold_ends_the_run_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(pool="", cloud="", small=""))
    setup = settings.load(tmp_path / "config.toml")
    simulation = Simulation(Trace("t", 1, (JobBatch(seconds=WORK, cpus=4000), BURST)), setup)
    outcome = simulation.run()
    summary = summarise("t", outcome, setup, simulation.policy)
    assert summary.unserved == 1
    assert RefusalKind.UNFIT in {kind for _, kind in outcome.held}


def test_the_chart_is_a_document_with_every_series(tmp_path: Path) -> None:
    outcome, summary = played(tmp_path, BURST)
    root = ElementTree.fromstring(draw(outcome, summary))
    words = " ".join(text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text"))
    for name in ("waiting", "running", "capacity", "ready nodes", "paid for", "cost", "lower bound"):
        assert name in words
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        for number in re.findall(r"-?\d+\.?\d*", path.attrib["d"]):
            assert -1 <= float(number) <= 1000


def test_the_command_prints_figures_json_and_a_chart(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(dump(Trace("a short one", 1, (BURST,))))
    (tmp_path / "c.toml").write_text(CONFIG.format(pool="", cloud="", small=""))
    files = ["--trace", str(tmp_path / "t.jsonl"), "--config", str(tmp_path / "c.toml")]
    run = CliRunner().invoke(app, [*files, "--json", "--chart", str(tmp_path / "out.svg")])
    assert run.exit_code == 0, run.output
    printed = json.loads(run.stdout)
    assert (printed["jobs"], printed["unserved"], printed["boots"]) == (40, 0, 10)
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    words = CliRunner().invoke(app, [*files])
    assert "× the lower bound" in words.stdout
    hours = CliRunner().invoke(app, [*files, "--billing", "hourly_round_up"])
    assert "who pays started hours" in hours.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--trace", "agents-day", "--chart", "out.png"], "--chart"),
        (["--trace", "agents-day", "--chart", "/no/such/out.svg"], "--chart"),
        (["--trace", "nothing"], "nothing"),
        (["--trace", "OWN"], "--config"),
    ],
)
def test_arguments_that_cannot_be_played_are_refused(tmp_path: Path, arguments: list[str], named: str) -> None:
    own = tmp_path / "t.jsonl"
    own.write_text(dump(Trace("a short one", 1, (BURST,))))
    done = CliRunner().invoke(app, [str(own) if each == "OWN" else each for each in arguments])
    assert isinstance(done.exception, click.ClickException)
    assert named in done.exception.message


def test_a_billing_without_a_bill_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["--trace", "agents-day", "--billing", "prepaid"]).exit_code == 2


def test_without_a_solver_nothing_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.bound.SOLVER", "no_such_package")
    done = CliRunner().invoke(app, ["--trace", "agents-day"])
    assert isinstance(done.exception, click.ClickException)
    assert "sandbox-fleet[simulator]" in done.exception.message
