"""Settings: a file, overridden by the environment; unknown keys are refused by name."""

from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from gateway.wire import limits
from gateway.wire.settings import ConfigurationError


def test_the_defaults_are_those_of_the_limits() -> None:
    settings = GatewaySettings.load(environ={})
    assert (settings.host, settings.port) == ("127.0.0.1", 8090)
    assert settings.lost_after == limits.LOST_AFTER
    assert settings.url == "sqlite:////var/lib/sandbox-fleet/gateway/gateway.db"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text('port = 1\nhost = "0.0.0.0"\n')
    settings = GatewaySettings.load(tmp_path / "g.toml", {"SANDBOXES_GATEWAY_PORT": "2", "PORT": "3"})
    assert (settings.host, settings.port) == ("0.0.0.0", 2)


@pytest.mark.parametrize(
    ("text", "environ", "named"),
    [
        ("prot = 1", {}, "prot"),
        ("port = 99999", {}, "port"),
        ("port = ", {}, "g.toml"),
        ("lost_after = 1", {}, "lost_after"),
        ("", {"SANDBOXES_GATEWAY_PROT": "1"}, "prot"),
        ('database_url = "db.example.org"', {}, "database_url"),
        ('database_url = "postgresql://u@h:port/d"', {}, "database_url"),
        ('database_url = "mysql://u@h/d"', {}, "database_url"),
        ('database_direct_url = "postgresql:/h/d"', {}, "database_direct_url"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, environ: dict[str, str], named: str) -> None:
    (tmp_path / "g.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=named) as caught:
        GatewaySettings.load(tmp_path / "g.toml", environ)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        GatewaySettings.load(tmp_path / "none.toml", {})
