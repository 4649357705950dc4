"""``sandboxes doctor``: what this machine has, what it lacks, and the cure.

The rows come from the entry-point group `CHECKS`: every installed role checks what it needs itself.
"""

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from gateway.wire.system import Check, Verdict
from gateway.wire.text import printable
from sandboxes import output

CHECKS: Final = "sandbox_fleet.checks"
STYLES: Final = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.ERROR: "bold red"}

app = typer.Typer()


def rows_of(point: EntryPoint) -> list[Check]:
    """Return the rows of one role, or one row with the reason where its checks cannot run."""
    try:
        checks: Callable[[], Iterable[Check]] = point.load()
    except ModuleNotFoundError as error:
        return [
            Check(
                name=f"{point.name}: packages",
                verdict=Verdict.WARNING,
                found=f"the Python package {error.name!r} is not installed, so this machine cannot take this role",
                cure=f"pip install 'sandbox-fleet[{point.name}]'",
            )
        ]
    try:
        return list(checks())
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the rows of the others
        return [
            Check(
                name=f"{point.name}: checks",
                verdict=Verdict.ERROR,
                found=f"the check itself failed: {type(error).__name__}: {error}",
                cure="report this as a defect",
            )
        ]


def collect() -> list[Check]:
    """Return the rows of all installed roles, in the order of the roles' names."""
    points = sorted(entry_points(group=CHECKS), key=lambda point: point.name)
    return [row for point in points for row in rows_of(point)]


def table(rows: Iterable[Check]) -> Table:
    """Return the rows as a table for people."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        shown.add_column(overflow="fold")
    for row in rows:
        cure = Text(f"\n→ {printable(row.cure)}", style="bold") if row.cure else Text()
        found = Text(printable(row.found, lines=True))
        shown.add_row(Text(row.verdict.value, style=STYLES[row.verdict]), Text(row.name), found + cure)
    return shown


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Look at this machine and name what is missing, with the cure.

    The exit code is 1 when something stops the service, 0 otherwise.
    """
    rows = collect()
    if as_json:
        output.print_json([row.model_dump(mode="json") for row in rows])
    else:
        output.show(table(rows))
    if any(row.verdict is Verdict.ERROR for row in rows):
        raise typer.Exit(1)
