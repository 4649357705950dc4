"""The figures as a table for people and as JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figures import PLAN_AIM_MS, SERVICE, Measure, PlanTime, Summary


def show(measures: Sequence[Measure], daemons: Mapping[str, float], machine: Mapping[str, Any]) -> None:
    """Print one row a measure: every contender's median (p95), and the service's ratio to each."""
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


def show_plans(plans: Sequence[PlanTime]) -> None:
    """Print one row a case of the plan's bench."""
    title = "one plan of the autoscaler: 1,000 nodes, 10,000 waiting sandboxes, 5 pools; median (p95)"
    table = Table(title=title, title_justify="left")
    table.add_column("waiting")
    for name in ("wall", "processor", "aim", "a tenth of the size", "growth (10 is linear)"):
        table.add_column(name, justify="right")
    for each in plans:
        cells = [_cell(each.wall, "ms"), _cell(each.cpu, "ms"), f"{PLAN_AIM_MS:.0f} ms", _cell(each.tenth, "ms")]
        table.add_row(each.case, *cells, f"{each.growth:.1f}")
    Console(width=None if Console().is_terminal else 200).print(table)


def write(
    path: Path,
    *,
    measures: Sequence[Measure] = (),
    plans: Sequence[PlanTime] = (),
    daemons: Mapping[str, float] | None = None,
    machine: Mapping[str, Any] | None = None,
) -> None:
    """Write everything as JSON."""
    content = {
        "machine": dict(machine or {}),
        "measures": [measure.as_json() for measure in measures],
        "plans": [each.as_json() for each in plans],
        "resident_mib": dict(daemons or {}),
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def _others(measures: Sequence[Measure]) -> list[str]:
    return list(dict.fromkeys(name for measure in measures for name in measure.by if name != SERVICE))


def _cell(summary: Summary | None, unit: str) -> str:
    if summary is None:
        return "-"
    digits = 0 if summary.median >= 100 else 1 if summary.median >= 10 else 2
    return f"{summary.median:.{digits}f} ({summary.p95:.{digits}f}) {unit}"
