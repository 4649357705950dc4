"""Answers of client commands: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.wire.nodes import NodeRecord
from ucloud_sandboxes_sdk import SandboxInfo

WIDE: Final = 240  # where no terminal sets a width, nothing is cut
INTERNAL: Final = "sandboxes-cli/"
"""Begins the names of labels that this command line sets for itself; nobody needs to see them in a table."""
STEPS: Final = ((86400, "d"), (3600, "h"), (60, "m"))


def show(table: Table) -> None:
    """Prints a table on stdout, as wide as the terminal."""
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def print_json(value: object) -> None:
    """Prints JSON on stdout."""
    typer.echo(json.dumps(value, indent=2))


def sandboxes(records: Iterable[SandboxInfo]) -> Table:
    """One row a sandbox."""
    table = _table("ID", "STATE", "IMAGE", "NODE", "ISOLATION", "CPUS", "MEMORY", "AGE", "LABELS")
    for record in records:
        spec = record["spec"]
        state = record["state"] + (f" ({record['reason']})" if record.get("reason") else "")
        labels = record.get("labels", {}).items()
        _row(
            table,
            record["id"],
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


def nodes(records: Iterable[NodeRecord]) -> Table:
    """One row a node: what is taken of what there is."""
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
    """MiB in a short form: 512M, 2G, 1.5G."""
    return f"{amount}M" if amount < 1024 else f"{amount / 1024:.1f}".removesuffix(".0") + "G"


def age(moment: datetime) -> str:
    """How long ago, in its largest unit."""
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
    table.add_row(*(Text(cell) for cell in cells))
