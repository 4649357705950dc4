"""``sandboxes audit`` and ``sandboxes usage``: what is read of what the gateway has written down."""

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import click
import typer

from gateway.cli import (
    URL_VARIABLE,
    AsJson,
    Config,
    StateDir,
    TokenFile,
    Url,
    asked_gateway,
    gateway_errors,
    load_settings,
    refuse_missing_database,
    refuse_unknown,
)
from gateway.wire import limits
from gateway.wire.audit import AuditEntry, AuditPage, AuditQuery
from gateway.wire.usage import UsageBy, UsageItem

if TYPE_CHECKING:  # it imports the settings of the database's layer, which only reading files needs
    from gateway.store.audit_files import AuditFiles

app = typer.Typer()

FOLLOW_INTERVAL: Final = 1.0
_AGE: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

_USAGE_LINE: Final = "{:<40} {:>12} {:>14} {:>14} {:>14} {:>12}"

Since = Annotated[
    str, typer.Option(metavar="TIME|AGE", help="Not earlier than this: 2026-01-31T12:00Z, or 15m, 2h, 7d.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME|AGE", help="Earlier than this.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant.")]


@app.command("audit")
def audit(
    since: Since = "24h",
    until: Until = None,
    tenant: Tenant = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")] = False,
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the audit log, oldest line first; with --json as it is stored, one object a line.

    Without a URL, the files on this machine are read, also while no gateway runs.

    Example:  sandboxes audit --since 2h --tenant acme --json
    """
    query = AuditQuery(
        since=moment(since, "--since"),
        until=None if until is None else moment(until, "--until"),
        tenant=tenant,
        limit=limits.MAX_PAGE,
    )
    gateway = asked_gateway(url, token_file, config, state_dir)
    entries = (
        _all(gateway.audit, query, follow) if gateway else _all_here(_files_here(config, state_dir), query, follow)
    )
    with gateway_errors():
        shown = 0
        for entry in islice(entries, limit):
            shown += 1
            typer.echo(entry.line().decode().rstrip() if as_json else _shown(entry))
        if tenant is not None and not shown:
            refuse_unknown(tenant, gateway, config, state_dir)


def _all(read: Callable[[AuditQuery], AuditPage], query: AuditQuery, follow: bool) -> Iterator[AuditEntry]:
    """Yield the lines of all pages; with ``follow`` for ever."""
    while True:
        page = read(query)
        yield from page.entries
        query = query.model_copy(update={"cursor": page.next_cursor})
        if page.more:
            continue
        if not follow:
            return
        time.sleep(FOLLOW_INTERVAL)


def _all_here(files: "AuditFiles", query: AuditQuery, follow: bool) -> Iterator[AuditEntry]:
    """Yield the lines of the files, and then the calls without an outcome, which a gateway would note at its start."""
    yield from _all(files.page, query, follow)
    yield from filter(query.matches, files.unresolved())


@app.command("usage")
def usage(
    since: Since = "24h",
    until: Until = None,
    tenant: Tenant = None,
    by: Annotated[UsageBy, typer.Option(help="What one line sums up.")] = "tenant",
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print what was used in whole hours: a line for each tenant, sandbox, or hour of one incarnation of a sandbox.

    With --by hour --json, lines of hours that are over can be kept: they do not change any more.

    Example:  sandboxes usage --since 30d --tenant acme --by sandbox
    """
    gateway = asked_gateway(url, token_file, None, None)
    if gateway is None:
        raise click.UsageError(f"the gateway's URL is needed: set {URL_VARIABLE} or give --url")
    query = {"since": moment(since, "--since").isoformat(), "by": by, "limit": str(limits.MAX_PAGE)}
    query |= {"until": moment(until, "--until").isoformat()} if until else {}
    query |= {"tenant": tenant} if tenant else {}
    if not as_json:
        typer.echo(_USAGE_LINE.format(by, "cpu s", "memory MiB h", "paused MiB h", "disk MiB h", "sent MB"))
    with gateway_errors():
        shown = 0
        while True:
            page = gateway.usage(**query)
            shown += len(page.items)
            for item in page.items:
                typer.echo(json.dumps(item.model_dump(mode="json")) if as_json else _shown_usage(item))
            if page.next_cursor is None:
                break
            query |= {"cursor": page.next_cursor}
        if tenant is not None and not shown:
            refuse_unknown(tenant, gateway, None, None)


def _shown_usage(item: UsageItem) -> str:
    """Return an item as one line for people."""
    hour = "" if item.generation is None else f" {item.generation} {item.begin:%F %H:%M}"
    amounts = item.amounts
    memory = (amounts.memory_mb_seconds, amounts.paused_memory_mb_seconds, amounts.disk_mb_seconds)
    figures = (amounts.cpu_seconds, *(amount / 3600 for amount in memory), amounts.egress_bytes / 1e6)
    name = ascii((item.sandbox_id or item.tenant) + hour)[1:-1]
    return _USAGE_LINE.format(name, *(f"{figure:.1f}" for figure in figures))


def _files_here(config: Config, state_dir: StateDir) -> "AuditFiles":
    from gateway.services.assembly import audit_files

    settings = load_settings(config, state_dir)
    if not (settings.state_dir / "audit").is_dir():
        refuse_missing_database(settings)
    return audit_files(settings)


def moment(text: str, option: str) -> datetime:
    """Return the time that an option names, or the time so long ago.

    Raises:
        click.BadParameter: it is neither.
    """
    age = _AGE.fullmatch(text)
    if age is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time such as 2026-01-31T12:00Z, and no age such as 15m, 2h or 7d", param_hint=option
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _shown(entry: AuditEntry) -> str:
    """Return an entry as one line for people."""
    who = f"{entry.actor}:{entry.token_name}" if entry.token_name else str(entry.actor)
    what = entry.event or f"{entry.method} {entry.route or '(no such route)'}"
    target = " ".join(f"{name}={value}" for name, value in entry.target.items())
    refused = f"{entry.code or ''} {', '.join(entry.fields or [])}"
    outcome = "" if entry.event else f"{entry.outcome or entry.status or 'no answer'} {refused}"
    more = f"and {entry.count} more" if entry.count else ""
    words = (f"{entry.time:%F %T}", entry.tenant or "-", who, entry.address or "", what, target, outcome, more)
    # What callers chose must not reach the terminal as control characters.
    return ascii(" ".join(word.strip() for word in words if word.strip()))[1:-1]
