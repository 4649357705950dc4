"""The page about the provider says what the code does."""

import re
import tomllib
from pathlib import Path

from docs.settings import tables
from providers.hetzner.settings import parse

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/providers/hetzner.md").read_text()


def test_the_table_of_settings_is_the_code() -> None:
    assert tables((ROOT / "providers/hetzner/settings.py").read_text()) in PAGE


def test_the_example_is_accepted() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert parse(tomllib.loads(example)["providers"]["hetzner"]).reached == "private"
