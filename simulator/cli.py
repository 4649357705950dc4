"""``sandboxes simulate``: what a fleet of these settings would have cost, and how long work would have waited."""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import click
import typer
from rich.console import Console

from gateway.wire.settings import ConfigurationError
from providers.base import Billing
from simulator import chart as charts
from simulator import settings, trace
from simulator.bound import NoSolverError, require_solver
from simulator.engine import Progress, Simulation
from simulator.gateway import WorkLostError
from simulator.metrics import COST_GOAL, WAIT_GOAL, RunSummary, summarise

TraceOption = Annotated[
    str,
    typer.Option(
        "--trace",
        metavar="FILE|NAME",
        help=f"Trace to play (JSON Lines), or one that comes with the package: {', '.join(trace.shipped())}.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME",
        help="The autoscaler's settings with a table \\[simulation] (TOML); left out, those made for that trace.",
    ),
]
BillingOption = Annotated[
    Literal["per_second", "hourly_round_up"] | None,
    typer.Option(help="How every provider charges; default: as in the settings."),
]
ChartOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw demand, capacity and cost over time (SVG).")
]


app = typer.Typer()


@app.command()
def simulate(
    trace_name: TraceOption,
    config: ConfigOption = None,
    billing: BillingOption = None,
    chart: ChartOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play a demand trace through the autoscaler on virtual time, and show cost, waiting and churn.

    docs/simulator.md explains both files and every figure.
    """
    try:
        # The status on a terminal only, and on standard error, so that JSON stays JSON.
        with _silent(), Console(stderr=True).status("reading the trace") as status:
            summary, seconds = play(
                trace_name,
                config or _settings_of(trace_name),
                billing=Billing(billing) if billing is not None else None,
                chart=chart,
                on_tick=lambda each: status.update(_progress(each)),
            )
    except (trace.TraceError, ConfigurationError, WorkLostError, NoSolverError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        typer.echo(json.dumps(summary.as_dict(), indent=2))
        return
    for line in lines(summary):
        typer.echo(line)
    typer.echo(f"played in   {seconds:.1f} s ({summary.ticks} ticks)")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence the autoscaler's log: refusals and failed boots belong to a run."""
    logger = logging.getLogger("autoscaler")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def play(
    trace_name: str,
    config: str,
    *,
    billing: Billing | None = None,
    chart: Path | None = None,
    on_tick: Callable[[Progress], None] = lambda _progress: None,
) -> tuple[RunSummary, float]:
    """Play a trace under a configuration; both are files, or names of those that come with the package.

    Args:
        trace_name: the trace.
        config: the configuration.
        billing: of every provider, in place of what the configuration says.
        chart: where to draw it.
        on_tick: is called after every tick with how far the run is.

    Returns:
        The figures, and the seconds that the run took.

    Raises:
        TraceError: there is no such trace, or it is malformed.
        ConfigurationError: the configuration cannot be used.
        NoSolverError: the solver for the lower bound is not installed.
        WorkLostError: the autoscaler deleted an instance with work on it.
    """
    require_solver()
    if chart is not None and chart.suffix != ".svg":
        raise ConfigurationError(f"--chart {chart}: only SVG is written; name a file that ends with .svg")
    if chart is not None and not chart.parent.is_dir():
        raise ConfigurationError(f"--chart {chart}: there is no directory {chart.parent}")
    played = trace.load(trace.find(trace_name))
    setup = settings.load(trace.find(config, ".toml"))
    setup = setup if billing is None else setup.billed(billing)
    began = time.monotonic()
    simulation = Simulation(played, setup)
    run = simulation.run(on_tick)
    summary = summarise(played.name, run, setup, simulation.policy)
    if chart is not None:
        chart.write_text(charts.draw(run, summary))
    return summary, time.monotonic() - began


def _progress(progress: Progress) -> str:
    return f"{progress.at / 3600:.1f} h played, {progress.ended} of {progress.jobs} jobs have ended"


def _settings_of(trace_name: str) -> str:
    trace.find(trace_name)
    if trace_name not in trace.shipped():
        raise ConfigurationError(
            f"--config is missing: {trace_name} is a file of your own, so name the settings to play it under, or those "
            f"of a trace that comes with the package: {', '.join(trace.shipped())}"
        )
    return trace_name


def lines(summary: RunSummary) -> list[str]:
    """Return the figures for a person to read."""
    wait, used = summary.wait, summary.utilisation
    shares = ", ".join(f"{name} {share:.0%}" for name, share in used.items() if share)
    found = [
        f"trace       {summary.trace}: {summary.jobs} jobs, {summary.hours:.1f} h until the fleet was back at rest",
        f"cost        {summary.cost:.2f} €, {summary.cost_ratio:.2f} × the lower bound of {summary.bound:.2f} € "
        f"(goal: {COST_GOAL})",
        f"waiting     p50 {wait.p50:.0f} s, p95 {wait.p95:.0f} s, p99 {wait.p99:.0f} s, longest {wait.most:.0f} s",
        f"boot        {summary.boot:.0f} s; p95 of waiting is {summary.wait_ratio:.2f} × that (goal: {WAIT_GOAL})",
        f"used        {shares}",
        f"churn       {summary.boots} boots ({summary.failed_boots} failed), {summary.deletes} deletes, "
        f"{summary.refusals} orders refused",
        f"most        {summary.most_nodes} instances, {summary.most_waiting} waiting",
    ]
    if summary.hourly_bound and summary.hourly_ratio:
        whose = "the least for anyone who pays started hours and lets no job wait longer"
        found.insert(2, f"            {summary.hourly_ratio:.2f} × {summary.hourly_bound:.2f} €, {whose}")
    if summary.unserved:
        found.append(f"unserved    {summary.unserved} jobs never found room")
    return found + [f"held        {seconds:6.0f} s: {reason}" for reason, seconds in summary.held.items()]
