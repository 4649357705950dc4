"""Settings are strict, and secrets stand elsewhere."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from providers import registry
from providers.base import ComputeProvider, SettingsError
from providers.ucloud.settings import parse

ROOT = Path(__file__).resolve().parents[4]


def build(**settings: Any) -> ComputeProvider:
    """Made as the daemon makes it, from the entry point that the package names."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][registry.GROUP]
    entries = [EntryPoint("ucloud", named["ucloud"], registry.GROUP)]
    return registry.build("ucloud", settings, deployment="fleet", environ={"TOKEN": "uc0a-x"}, entries=entries)


def test_it_is_found_by_its_entry_point() -> None:
    assert build(api_token_env="TOKEN").kind == "ucloud"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "set exactly one of api_token_env, api_token_file, refresh_token_env, refresh_token_file; none is set"),
        ({"api_token_env": "A", "refresh_token_env": "B"}, "api_token_env, refresh_token_env is set"),
        ({"api_token_env": "TOKEN", "disk_gb": 14}, "disk_gb: .* greater than or equal to 15"),
        ({"api_token_env": "TOKEN", "disk_gb": 2001}, "disk_gb: .* less than or equal to 2000"),
        ({"api_token_env": "TOKEN", "token": "x"}, "token: there is no such key"),
        ({"api_token_env": "TOKEN", "base_url": "https://cloud.example/app"}, "base_url"),
        ({"api_token_env": "TOKEN", "bootstrap_folder": "relative/path"}, "bootstrap_folder"),
        ({"api_token_env": "TOKEN", "init_script": "../init.sh"}, "init_script"),
        ({"api_token_env": "NOWHERE"}, "api_token_env: NOWHERE holds no token"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        build(**settings)


def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("refresh-me\n")
    found = parse({"refresh_token_file": path}).credential({})
    assert (found.token, found.is_refresh_token) == ("refresh-me", True)


@pytest.mark.parametrize("content", ["", "\n", "two words", "two\nlines"])
def test_a_file_without_one_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(SettingsError, match="put one line with the token there"):
        parse({"api_token_file": path}).credential({})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*/absent"):
        parse({"api_token_file": tmp_path / "absent"}).credential({})


def test_a_secret_is_never_shown() -> None:
    found = parse({"api_token_env": "TOKEN"}).credential({"TOKEN": "uc0a-hidden"})
    assert "hidden" not in repr(found)
