"""The configuration of a simulation."""

from pathlib import Path

import pytest

from gateway.wire.settings import ConfigurationError
from simulator import settings


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[[pools]]\nname = "cpu"\nprovider = "cloud"', "names the provider 'cloud'"),
        (
            '[providers.cloud]\n[[pools]]\nname = "cpu"\nprovider = "cloud"',
            r"\[simulation.providers.cloud\] is missing",
        ),
        ("[simulation.providers.cloud]\noffers = []", "offers"),
        ("tick_second = 1", "the key 'tick_second' is unknown"),
        (
            "tick_second = 1\n[simulation.providers.cloud]\nbiling = 1",
            "'tick_second' is unknown; .*the key 'simulation.providers.cloud.biling' is unknown",
        ),
        ("tick_seconds = 1.0", "pools: "),
        ('[simulation.providers.cloud]\nbilling = "prepaid"', "choose per_second or hourly_round_up"),
        ("[[", "configuration file"),
    ],
)
def test_a_configuration_that_cannot_be_played_is_refused_by_its_keys(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=named):
        settings.load(path)
