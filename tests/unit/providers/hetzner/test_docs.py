"""The page about the provider says what the code does."""

import re
import tomllib
from pathlib import Path

import pytest

from docs.settings import tables
from providers.base import Applied, ErrorKind, Scope
from providers.hetzner.settings import parse
from tests.unit.providers.hetzner.test_errors import ROWS

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/providers/hetzner.md").read_text()


def test_the_table_of_settings_is_the_code() -> None:
    assert tables((ROOT / "providers/hetzner/settings.py").read_text()) in PAGE


def test_the_example_is_accepted() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert parse(tomllib.loads(example)["providers"]["hetzner"]).reached == "private"


@pytest.mark.parametrize(
    ("status", "code", "kind", "applied", "scope"),
    [(row[0], row[1], *row[3:]) for row in ROWS if row[1] != "something_new"],
)
def test_the_documented_errors_are_the_tested_ones(
    status: int, code: str, kind: ErrorKind, applied: Applied, scope: Scope
) -> None:
    row = rf"^\| {status} \| `{code}`[^|]* \| {kind} \| {applied} \| {scope} \|$"
    assert re.search(row, PAGE, flags=re.MULTILINE)
