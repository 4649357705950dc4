"""``sandboxes autoscaler``: run it, or look at its plan, its rows and its events."""

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final

import click
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler import describe, main
from autoscaler.clock import DaemonClock
from autoscaler.core import cost
from autoscaler.core.world import Intent
from autoscaler.errors import AutoscalerError
from autoscaler.reconcile import TickReport
from autoscaler.settings import AutoscalerSettings, PoolSettings
from autoscaler.user_data import ucloud_init_script
from gateway.wire.settings import ConfigurationError
from gateway.wire.system import Check, Verdict
from gateway.wire.text import log_to_stderr, printable
from providers import registry

WIDE: Final = 200
"""Columns of a table that is not printed to a terminal."""

app = typer.Typer(no_args_is_help=True, help="Run the autoscaler, or look at its plan.")

Config = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(
    config: Config = None,
    execute: Annotated[bool, typer.Option("--execute", help="Act on the plan; without it, only look.")] = False,
) -> None:
    """Run the daemon in the foreground until SIGTERM."""
    log_to_stderr(logging.INFO)
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # the daemon logs its events
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with _click_errors():
        main.run(_settings(config), os.environ, execute=execute)


@app.command("init-script")
def init_script() -> None:
    """Print the script with which UCloud machines become nodes; put it into the provider's bootstrap_folder."""
    typer.echo(ucloud_init_script(), nl=False)


@app.command()
def plan(config: Config = None, as_json: AsJson = False) -> None:
    """Show what the next tick would do, without doing it."""
    with _click_errors(), main.assembled(_settings(config), os.environ, once=True) as parts:
        report = parts.reconciler.look()
    if as_json:
        _json(_report(report))
    else:
        names = {intent.operation_id: intent.name for intent in report.world.intents}
        found = [(describe.finding(each, names), getattr(each, "reason", "")) for each in report.findings]
        _show(("finding", "reason"), found)
        actions = [(describe.action(each, names), each.reason) for each in report.plan.actions]
        _show(("action", "reason"), actions, "nothing to do")
        _show(("not done", "reason"), [(wait.subject, wait.reason) for wait in report.plan.waits])
    if report.world.nodes is None:
        raise click.ClickException(
            "the gateway cannot be reached, so this plan is incomplete; check gateway_url and token_file"
        )


@app.command()
def status(config: Config = None, as_json: AsJson = False) -> None:
    """Show every instance that is not gone, and every back-off."""
    with _click_errors():
        settings = _settings(config)
        main.check_pools(settings, os.environ)
        with closing(main.read_journal(settings)) as journal:
            intents, backoffs = journal.open_intents(), list(journal.backoffs().values())
        owner = main.running(settings)
    held = [each for each in backoffs if each.until > DaemonClock().now()]
    if as_json:
        _json({"running": owner, "intents": intents, "backoffs": held})
        return
    typer.echo(f"running: {owner or 'no'}")
    rows = [(i.name, i.pool, i.state.value, describe.time(i.changed_at), str(i.offer), i.detail) for i in intents]
    _show(("instance", "pool", "state", "since", "offer", "detail"), rows, "no instances")
    _show(("held back", "until", "reason"), [(str(each.key), describe.time(each.until), each.reason) for each in held])


@app.command()
def events(
    config: Config = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest last.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the latest events."""
    with _click_errors(), closing(main.read_journal(_settings(config))) as journal:
        found = journal.events(limit)
    if as_json:
        _json(found)
        return
    rows = [(describe.time(e.at), e.subject, e.kind, e.detail) for e in found]
    _show(("time", "subject", "event", "detail"), rows, "nothing has happened yet")


@app.command()
def pools(config: Config = None, as_json: AsJson = False) -> None:
    """Show the pools of the settings: their instances, their cost, and the offers that each may buy.

    Asks no gateway.  Exits with 1 when a provider cannot be built.
    """
    now = DaemonClock().now()
    with _click_errors():
        settings = _settings(config)
        providers, reasons = main.check_pools(settings, os.environ)
        with closing(main.read_journal(settings)) as journal:
            intents, spent = journal.open_intents(), journal.spent(now)
    market = describe.market(settings.policy().pools, providers, reasons)
    found = [
        PoolStatus.of(pool, intents, spent.get(pool.name, Decimal(0)), market[pool.name], now)
        for pool in settings.pools
    ]
    if as_json:
        _json([each.as_dict() for each in found])
    else:
        _show(("pool", "provider", "role", "instances", "€/h", "€ this month"), [each.row() for each in found])
        _show_market(market)
    if reasons:
        raise click.ClickException("; ".join(reasons.values()))


@dataclasses.dataclass(frozen=True)
class PoolStatus:
    """One pool as ``pools`` shows it."""

    settings: PoolSettings
    instances: int
    hourly: Decimal | None
    """Euro an hour; ``None`` when a price is not known."""
    monthly: Decimal
    """Euro in this calendar month."""
    market: describe.PoolMarket

    @classmethod
    def of(
        cls, pool: PoolSettings, intents: Sequence[Intent], spent: Decimal, market: describe.PoolMarket, now: float
    ) -> "PoolStatus":
        """Sum up the open rows of a pool, and what its gone instances have cost this month."""
        rows = [intent for intent in intents if intent.pool == pool.name]
        return cls(pool, len(rows), cost.rate(rows), spent + cost.cost_of_all(rows, now), market)

    def as_dict(self) -> dict[str, object]:
        """Return the settings of the pool and its facts, for JSON."""
        facts = {
            "instances": self.instances,
            "hourly": self.hourly,
            "monthly": self.monthly,
            "sold": self.market.offers,
            "problem": self.market.problem,
        }
        return {**self.settings.model_dump(mode="json"), **facts}

    def row(self) -> tuple[str, ...]:
        """Return one row of the table."""
        pool = self.settings
        return (
            pool.name,
            pool.provider,
            pool.role,
            f"{self.instances} of {pool.min}–{pool.max}",
            _capped(self.hourly, pool.max_hourly),
            _capped(self.monthly, pool.max_monthly),
        )


def _show_market(market: Mapping[str, describe.PoolMarket]) -> None:
    """Show what each pool may buy, and what it names that is not sold."""
    rows = [
        (
            pool,
            f"{offer.type}@{offer.location}",
            f"{offer.resources.cpus:g}",
            str(offer.resources.memory_mb),
            str(offer.resources.disk_mb),
            str(offer.resources.gpus),
            describe.euros(offer.price_per_hour),
            "yes" if offer.available else "not now",
        )
        for pool, found in market.items()
        for offer in found.offers
    ]
    _show(("pool", "may buy", "CPUs", "memory MiB", "disk MiB", "GPUs", "€/h", "available"), rows)
    for pool, found in market.items():
        if found.problem:
            typer.echo(printable(f"pool {pool}: {found.problem}"))


def _capped(euros: Decimal | None, cap: Decimal | None) -> str:
    known = describe.euros(euros)
    return known if cap is None else f"{known} of {describe.euros(cap)}"


@app.command(name="release")
def release_fleet(
    config: Config = None,
    within: Annotated[
        float, typer.Option(min=1, help="Seconds for everything; what is left after that is listed.")
    ] = 150.0,
) -> None:
    """Delete every instance of this fleet, whatever runs on it, and wait until they are gone.

    The autoscaler must not run.
    """
    with _click_errors():
        settings = _settings(config)
        with main.locked(settings):
            left = main.release_fleet(settings, os.environ, within)
    if left:
        raise click.ClickException("; ".join(map(str, left)))


def checks() -> list[Check]:
    """Return the autoscaler's rows of ``sandboxes doctor``: whether every installed provider can be loaded."""
    names = sorted({entry.name for entry in registry.installed()})
    if not names:
        cure = "pip install 'sandbox-fleet[autoscaler]'"
        return [Check(name="providers", verdict=Verdict.ERROR, found="none is installed", cure=cure)]
    return [_provider_check(name) for name in names]


def _provider_check(name: str) -> Check:
    try:
        loaded = registry.load(name)
    except registry.PluginError as error:
        cure = "install what it needs, or remove the package"
        return Check(name=f"provider {name}", verdict=Verdict.WARNING, found=str(error), cure=cure)
    return Check(name=f"provider {name}", verdict=Verdict.OK, found=f"{loaded.__module__}.{loaded.__qualname__}")


@contextmanager
def _click_errors() -> Iterator[None]:
    """Translate what stops a command into click's exception: one sentence and exit code 1."""
    try:
        yield
    except (ConfigurationError, AutoscalerError) as error:
        raise click.ClickException(str(error)) from error


def _settings(config: Path | None) -> AutoscalerSettings:
    """Load the settings; without a file, an error names the option for one."""
    try:
        return AutoscalerSettings.load(config)
    except ConfigurationError as error:
        if config is not None:
            raise
        raise ConfigurationError(f"{error}; name the settings file with --config") from error


def _report(report: TickReport) -> dict[str, Any]:
    return {
        "findings": [_kind(finding) for finding in report.findings],
        "actions": [_kind(action) for action in report.plan.actions],
        "waits": list(report.plan.waits),
    }


def _kind(value: Any) -> dict[str, Any]:
    return {"kind": type(value).__name__.lower(), **dataclasses.asdict(value)}


def _json(value: Any) -> None:
    typer.echo(json.dumps(value, default=_plain, indent=2))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value)


def _show(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str = "") -> None:
    """Print a table; in place of one without rows, ``empty``."""
    listed = list(rows)
    if not listed:
        if empty:
            typer.echo(empty)
        return
    table = Table(*columns, box=None, pad_edge=False)
    for row in listed:
        table.add_row(*(Text(printable(cell)) for cell in row))
    # A file or a pipe has no width to fit.
    Console(width=None if sys.stdout.isatty() else WIDE, markup=False).print(table)
