"""The one loader: which source wins, what is refused, and that a given environment is the only one."""

from pathlib import Path
from typing import ClassVar

import pytest

from autoscaler.settings import AutoscalerSettings
from gateway.settings import GatewaySettings
from gateway.wire.settings import ConfigurationError, DaemonSettings, Place, line_of
from node_agent.settings import NodeSettings


class Example(DaemonSettings):
    env_prefix: ClassVar[str] = "EXAMPLE_"
    owner: ClassVar[str] = "example"

    port: int = 1
    url: str = ""
    labels: dict[str, str] = {}
    names: tuple[str, ...] = ()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "example.toml"
    config.write_text('port = 2\nurl = "file"\nnames = ["file"]\n')
    loaded = Example.load(config, {"EXAMPLE_PORT": "3", "EXAMPLE_URL": "environment", "PORT": "9"}, port=4)
    assert (loaded.port, loaded.url, loaded.names) == (4, "environment", ("file",))


def test_tables_and_lists_are_json_in_the_environment() -> None:
    loaded = Example.load(None, {"EXAMPLE_LABELS": '{"a": "b"}', "EXAMPLE_NAMES": '["x", "y"]', "EXAMPLE_URL": "[1]"})
    assert (loaded.labels, loaded.names, loaded.url) == ({"a": "b"}, ("x", "y"), "[1]")


@pytest.mark.parametrize("settings", [Example, GatewaySettings, NodeSettings, AutoscalerSettings])
def test_a_given_environment_is_the_only_one(settings: type[DaemonSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"gateway_url": "http://g", "token_file": "/t", "deployment": "d"}
    flags = {name: value for name, value in needed.items() if name in settings.model_fields}
    monkeypatch.setenv(f"{settings.env_prefix}NO_SUCH_SETTING", "1")
    settings.load(None, {}, **flags)
    with pytest.raises(ConfigurationError):
        settings.load(None, **flags)


def test_a_misspelt_key_is_named_with_its_place_the_likely_one_and_all_others(tmp_path: Path) -> None:
    config = tmp_path / "example.toml"
    config.write_text("# a comment\nport = 2\nnmaes = ['x']\n")
    with pytest.raises(ConfigurationError) as caught:
        Example.load(config, {"EXAMPLE_PROT": "1"})
    said = str(caught.value)
    assert "did you mean names?" in said and "(line 3)" in said
    assert "did you mean port?" in said and "(the environment)" in said
    assert "labels, names, port, url" in said


def test_the_line_of_a_key_is_found_in_tables_and_lists_of_tables() -> None:
    text = (
        "a = 1\n[t]\nb.c = 2\n[t.'x y']\nd = 3\n[[l]]\ne = 4\n[[l]]\ne = [\n 'f = 1',\n]\ng = {h = 1}\n[l.m]\nn = 1\n"
    )
    places: dict[Place, int | None] = {
        ("a",): 1, ("t",): 2, ("t", "b", "c"): 3, ("t", "x y", "d"): 5, ("l", 0, "e"): 7, ("l", 1, "e"): 9,
        ("l", 1, "e", 0): 9, ("l", 1, "g", "h"): 12, ("l", 1, "m", "n"): 14, ("z",): None,
    }  # fmt: skip
    assert {place: line_of(text, place) for place in places} == places


@pytest.mark.parametrize(
    ("text", "environ", "named"),
    [
        ("prot = 1", {}, "prot"),
        ("port = 'many'", {}, "port"),
        ("port = ", {}, "example.toml"),
        ("", {"EXAMPLE_PROT": "1"}, "prot"),
        ("", {"EXAMPLE_LABELS": "a=b"}, "EXAMPLE_LABELS"),
    ],
)
def test_an_error_names_the_source_or_the_key(tmp_path: Path, text: str, environ: dict[str, str], named: str) -> None:
    config = tmp_path / "example.toml"
    config.write_text(text)
    with pytest.raises(ConfigurationError, match=named) as caught:
        Example.load(config, environ)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        Example.load(tmp_path / "nowhere.toml", {})
