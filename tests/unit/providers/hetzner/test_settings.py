"""What the settings take and refuse."""

from pathlib import Path

import pytest

from providers import registry
from providers.base import SettingsError
from providers.hetzner.provider import HetznerProvider

TOKEN = {"HCLOUD_TOKEN": "secret"}
LEAST = {"ssh_keys": ["fleet"]}


def made(settings: dict[str, object], environ: dict[str, str] = TOKEN) -> HetznerProvider:
    return HetznerProvider.from_settings({**LEAST, **settings}, deployment="unit", environ=environ)


def test_the_class_is_a_valid_provider() -> None:
    assert registry.validate(HetznerProvider, name="hetzner") is HetznerProvider


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"regoin": "fsn1"}, "regoin"),
        ({"ssh_keys": []}, "ssh_keys"),
        ({"gpus": 1}, "no GPUs"),
        ({"gpu_type": "a100"}, "no GPUs"),
        ({"types": ["GEX44"]}, "GPU"),
        ({"endpoint": "http://api.hetzner.cloud/v1"}, "https"),
        ({"endpoint": "api.hetzner.cloud"}, "https"),
        ({"token_env": "A", "token_file": "/b"}, "not by both"),
        ({"ipv4": False, "ipv6": False}, "unreachable"),
        ({"ipv4": False, "ipv6": False, "networks": [1], "firewalls": [2]}, "public interface"),
        ({"reach": "private"}, "needs networks"),
        ({"reach": "public", "ipv4": False, "ipv6": False, "networks": [1]}, "needs ipv4 or ipv6"),
        ({"claim": ["server"]}, "claim"),
        ({"read_seconds": 0}, "read_seconds"),
        ({"networks": ["mine"]}, "networks"),
    ],
)
def test_unworkable_settings_are_refused_with_the_reason(settings: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        made(settings)


def test_the_token_is_named_and_never_stands_in_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for problem in ({"token_env": "OTHER"}, {"token_file": str(file)}):
        with pytest.raises(SettingsError, match="token"):
            made(problem)
    file.write_text("")
    with pytest.raises(SettingsError, match="holds no token"):
        made({"token_file": str(file)})
    file.write_text("two\nlines")
    with pytest.raises(SettingsError, match="characters"):
        made({"token_file": str(file)})
    file.write_text("secret\n")
    made({"token_file": str(file)}, {})
    made({"token_env": "OTHER"}, {"OTHER": "secret"})


def test_from_settings_calls_nothing() -> None:
    made({"endpoint": "http://127.0.0.1:9/v1"})
