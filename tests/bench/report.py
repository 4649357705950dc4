"""The figures as a table for people and as JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figures import SERVICE, Measure, Summary


def show(measures: Sequence[Measure], daemons: Mapping[str, float], machine: Mapping[str, Any]) -> None:
    """Prints one row a measure: every contender's median (p95), and the service's ratio to each."""
    others = _others(measures)
    table = Table(title="median (p95); × is the service's median over that engine's", title_justify="left")
    table.add_column("")
    for name in (SERVICE, *others):
        table.add_column(name, justify="right")
    for name in others:
        table.add_column(f"× {name}", justify="right")
    for measure in measures:
        cells = [_cell(measure.by.get(name), measure.unit) for name in (SERVICE, *others)]
        ratios = [measure.ratio(name) for name in others]
        table.add_row(measure.name, *cells, *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios))
    console = Console(width=None if Console().is_terminal else 200)
    console.print(table)
    console.print("machine: " + ", ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    held = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in daemons.items())
    console.print(f"resident memory: {held}", highlight=False)


def write(path: Path, measures: Sequence[Measure], daemons: Mapping[str, float], machine: Mapping[str, Any]) -> None:
    """Writes everything as JSON."""
    content = {
        "machine": dict(machine),
        "measures": [measure.as_json() for measure in measures],
        "resident_mib": dict(daemons),
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def _others(measures: Sequence[Measure]) -> list[str]:
    return list(dict.fromkeys(name for measure in measures for name in measure.by if name != SERVICE))


def _cell(summary: Summary | None, unit: str) -> str:
    if summary is None:
        return "-"
    digits = 0 if summary.median >= 100 else 1 if summary.median >= 10 else 2
    return f"{summary.median:.{digits}f} ({summary.p95:.{digits}f}) {unit}"
