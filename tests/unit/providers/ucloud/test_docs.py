"""The page about the provider is held against the code."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.settings import tables
from providers.base import USER_DATA_LABEL
from providers.ucloud.errors import SETTLE_SECONDS
from providers.ucloud.mapping import MAX_USER_DATA
from providers.ucloud.settings import parse

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/providers/ucloud.md").read_text()
FAULTS = set(re.findall(r'strike\(\s*"(\w+)"', "".join(p.read_text() for p in ROOT.glob("tests/fakes/ucloud/*.py"))))


def example() -> dict[str, Any]:
    """Return the provider's table of the page's settings file."""
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    table: dict[str, Any] = tomllib.loads(block)["providers"]["ucloud"]
    return table


def test_the_example_is_a_settings_table() -> None:
    assert parse(example()).disk_gb == 100


def test_the_table_of_settings_is_the_code() -> None:
    assert tables((ROOT / "providers/ucloud/settings.py").read_text()) in PAGE


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_fault_of_the_emulator_is_named(fault: str) -> None:
    assert f"`{fault}`" in PAGE


def test_bounds_and_labels_are_those_of_the_code() -> None:
    assert f"{MAX_USER_DATA} bytes" in PAGE
    assert f"{SETTLE_SECONDS:.0f} s later" in PAGE
    assert f"`{USER_DATA_LABEL}`" in PAGE
