"""Settings of the node agent."""

from pathlib import Path

import pytest

from gateway.wire.settings import ConfigurationError
from node_agent.settings import NodeSettings, tag_of
from node_agent.startup import firewall_rules

NEEDED = {"SANDBOXES_NODE_GATEWAY_URL": "http://gateway:8090"}


def test_the_environment_wins_over_the_file_and_a_flag_over_both(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('gateway_url = "http://file"\nport = 1\nslots = 7\n[labels]\npool = "cpu"\n')
    environ = {**NEEDED, "SANDBOXES_NODE_PORT": "2", "SANDBOXES_NODE_RUNTIMES": '["docker"]', "OTHER": "x"}
    settings = NodeSettings.load(config, environ, root=tmp_path / "flag")
    assert (settings.gateway_url, settings.port, settings.slots) == ("http://gateway:8090", 2, 7)
    assert (settings.runtimes, settings.labels, settings.root) == (("docker",), {"pool": "cpu"}, tmp_path / "flag")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('surprise = "x"', "surprise"),
        ('port = "many"', "port"),
        ("not toml", "node.toml"),
        ('runtimes = ["podman"]', "runtimes"),
        ("runtimes = []", "runtimes"),
        ('gateway_url = "gateway"', "gateway_url"),
        ('host = "0.0.0.0"', "node_url"),
        ('closed_ranges = ["10.0.0.1/8"]', "10.0.0.1/8 has host bits set"),
        ('closed_ranges = ["registry.example"]', "closed_ranges"),
        ("closed_ranges = [167772160]", "closed_ranges"),
        ('open_ranges = ["0.0.0.0/0"]', "too wide"),
        ("max_connections = 0", "max_connections"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, content: str, word: str) -> None:
    config = tmp_path / "node.toml"
    config.write_text(content)
    environ = {} if "gateway_url" in content else NEEDED
    with pytest.raises(ConfigurationError, match=word):
        NodeSettings.load(config, environ)


def test_a_missing_file_and_a_missing_gateway_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        NodeSettings.load(tmp_path / "nowhere.toml", NEEDED)
    with pytest.raises(ConfigurationError, match="gateway_url"):
        NodeSettings.load(None, {})
    with pytest.raises(ConfigurationError, match="SANDBOXES_NODE_LABELS"):
        NodeSettings.load(None, NEEDED | {"SANDBOXES_NODE_LABELS": "pool=cpu"})


def test_ranges_become_what_the_firewall_lets_through(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        'gateway_url = "http://10.1.0.2:8090"\nclosed_ranges = ["8.8.8.0/24"]\n'
        'open_ranges = ["10.0.0.0/8", "9.9.9.9"]\n'
    )
    rules = firewall_rules(NodeSettings.load(config, {}))
    asked = ("8.8.8.8", "9.9.9.9", "10.1.0.1", "10.1.0.2", "169.254.169.254", "192.168.0.1")
    assert [address for address in asked if rules.addresses.is_closed(address)] == [
        *("8.8.8.8", "10.1.0.2", "169.254.169.254", "192.168.0.1")
    ]


def test_the_tag_follows_from_the_root_alone(tmp_path: Path) -> None:
    assert tag_of(tmp_path) == NodeSettings.load(None, NEEDED, root=tmp_path).tag
    assert tag_of(tmp_path) != tag_of(tmp_path / "other")
    assert len(tag_of(tmp_path)) == 8
