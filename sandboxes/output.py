"""What commands print: tables for people and JSON for programs on stdout, progress and retries on stderr.

Names, labels, states and errors come from strangers: they pass `printable` here, through which the other modules of the
command line print.  The output of programs in sandboxes (`exec`, `run`, `logs`, `cp -`) is not touched, to a terminal
either: it is what was asked for, as with `ssh` and `docker exec`.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from gateway.wire.nodes import NodeRecord
from gateway.wire.tenants import DEFAULT_TENANT
from gateway.wire.text import json_text, printable

if TYPE_CHECKING:  # doctor and bootstrap run where the SDK is not installed
    from ucloud_sandboxes_sdk import SandboxInfo

WIDE: Final = 240  # where no terminal sets a width, nothing is cut
INTERNAL: Final = "sandboxes-cli/"
"""Prefix of labels that this command line sets for itself; tables leave them out."""
STEPS: Final = ((86400, "d"), (3600, "h"), (60, "m"))
PATIENCE: Final = 2.0  # seconds before anything is shown about a wait


def show(table: Table) -> None:
    """Print a table on stdout, as wide as the terminal."""
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def print_json(value: object) -> None:
    """Print JSON on stdout, in ASCII."""
    typer.echo(json_text(value))


def line(text: str) -> None:
    """Print one line on stdout; what came from the service is shown and never obeyed."""
    typer.echo(printable(text))


def complain(text: str) -> None:
    """Print one line on stderr; see `line`."""
    typer.echo(printable(text), err=True)


def say(text: str) -> None:
    """Print one line of progress on stderr.  A closed terminal must not keep anything from being ended."""
    with contextlib.suppress(OSError):
        print(printable(f"sandboxes: {text}", lines=True), file=sys.stderr, flush=True)  # noqa: T201 - the command line speaks on stderr


# -- tables -----------------------------------------------------------------------------------------------------------


def sandbox_table(records: "Iterable[SandboxInfo]") -> Table:
    """Return a table with one row per sandbox, which names the tenants where one is not the default one."""
    records = list(records)
    tenants = any(record.get("tenant", DEFAULT_TENANT) != DEFAULT_TENANT for record in records)
    table = _table(
        "ID", *(["TENANT"] if tenants else []), "STATE", "IMAGE", "NODE", "ISOLATION", "CPUS", "MEMORY", "AGE", "LABELS"
    )
    for record in records:
        spec = record["spec"]
        why = record.get("reason") or record.get("waiting")
        state = record["state"] + (f" ({why})" if why else "")
        labels = record.get("labels", {}).items()
        _row(
            table,
            record["id"],
            *([record.get("tenant", DEFAULT_TENANT)] if tenants else []),
            state,
            record["image"],
            record.get("node_id") or "-",
            record.get("isolation") or "-",
            f"{spec['cpus']:g}",
            mebibytes(spec["memory_mb"]),
            age(datetime.fromisoformat(record["created_at"])),
            " ".join(f"{key}={value}" for key, value in labels if not key.startswith(INTERNAL)),
        )
    return table


def node_table(records: Iterable[NodeRecord]) -> Table:
    """Return a table with one row per node: what is reserved of what it has."""
    table = _table("ID", "STATE", "POOL", "SANDBOXES", "CPUS", "MEMORY", "DISK", "GPUS", "RUNTIMES", "HEARTBEAT")
    for node in records:
        total, taken = node.total, node.reserved
        _row(
            table,
            node.id,
            node.state.value,
            node.pool,
            f"{node.sandboxes}/{total.slots}",
            f"{taken.cpus:g}/{total.cpus:g}",
            f"{mebibytes(taken.memory_mb)}/{mebibytes(total.memory_mb)}",
            f"{mebibytes(taken.disk_mb)}/{mebibytes(total.disk_mb)}",
            f"{taken.gpus}/{total.gpus}",
            " ".join(f"{runtime.name}({','.join(runtime.isolations)})" for runtime in node.runtimes),
            f"{age(node.heartbeat_at)} ago" if node.heartbeat_at else "never",
        )
    return table


def mebibytes(amount: int) -> str:
    """Return an amount of MiB in a short form: 512M, 2G, 1.5G."""
    return f"{amount}M" if amount < 1024 else f"{amount / 1024:.1f}".removesuffix(".0") + "G"


def age(moment: datetime) -> str:
    """Return how long ago a moment was, in its largest unit."""
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    for size, unit in STEPS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=name in ("ID", "STATE", "AGE"))
    return table


def _row(table: Table, *cells: str) -> None:
    # As Text, so that brackets in names and labels are not taken for markup.
    table.add_row(*(Text(printable(cell)) for cell in cells))


# -- waits ------------------------------------------------------------------------------------------------------------


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show ``text`` on a terminal while the block runs, once it has taken two seconds.

    Yields:
        A function that changes the text.  Where there is no terminal, it prints each new text as a line.
    """
    if not sys.stderr.isatty():
        yield _changes(text)
        return
    status = Console(stderr=True).status(Text(printable(text)))
    timer = threading.Timer(PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda changed: status.update(Text(printable(changed)))
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def _changes(text: str) -> Callable[[str], None]:
    def changed(new: str) -> None:
        nonlocal text
        if new != text:
            text = new
            say(text)

    return changed


@contextmanager
def transfer(text: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show a progress bar on a terminal for a transfer that takes longer than two seconds.

    Yields:
        A function that takes the bytes moved so far and their total; ``None`` where nobody looks.
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(escape(printable(text)), total=None)
    started = time.monotonic()

    def moved(done: int, total: int | None) -> None:
        if not bar.live.is_started and time.monotonic() - started > PATIENCE:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield moved
    finally:
        bar.stop()


def retry_reporter() -> Callable[[Exception], None]:
    """Return a function to call with each failure that is retried; it reports once, when they last two seconds."""
    began: float | None = None
    reported = False

    def failed(error: Exception) -> None:
        nonlocal began, reported
        now = time.monotonic()
        began = now if began is None else began
        if not reported and now - began >= PATIENCE:
            reported = True
            complain(f"retrying: {error}")

    return failed
