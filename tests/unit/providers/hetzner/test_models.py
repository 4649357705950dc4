"""hcloud's bound models become frozen values, and nothing is fetched meanwhile."""

from typing import Any

import pytest
from hcloud.servers import BoundServer
from hcloud.volumes import BoundVolume
from pydantic import ValidationError

from providers.base import ErrorKind, ProviderError
from providers.hetzner.client import HetznerClient
from providers.hetzner.models import Server, SideResource
from providers.hetzner.settings import parse
from providers.rate_limit import Priority

NOBODY_LISTENS = parse({"endpoint": "http://127.0.0.1:9/v1", "ssh_keys": ["fleet"]})
LEAST: dict[str, Any] = {
    "id": 7,
    "name": "a",
    "status": "running",
    "created": "2030-01-01T00:00:00Z",
    "server_type": {"id": 1, "name": "cx23"},
    "location": {"id": 1, "name": "fsn1"},
}
NETS: dict[str, Any] = {
    "public_net": {
        "ipv4": {"id": None, "ip": "203.0.113.1", "blocked": False, "dns_ptr": ""},
        "ipv6": {"id": 12, "ip": "2001:db8::/64", "blocked": False, "dns_ptr": []},
        "floating_ips": [31],
        "firewalls": [],
    },
    "private_net": [{"network": 5, "ip": "10.0.0.2", "alias_ips": [], "mac_address": ""}],
    "volumes": [41, 42],
}


def read(data: dict[str, Any]) -> Server:
    """Read a server where every call would fail."""
    with HetznerClient(NOBODY_LISTENS, "t").talk(Priority.LIST) as hetzner:
        return Server.of(BoundServer(hetzner.servers, dict(data)))


def test_what_an_answer_lacks_is_empty() -> None:
    server = read(LEAST)
    assert (server.labels, server.volumes, server.private_net, server.public_net) == ({}, (), (), None)
    assert (server.server_type.name, server.location.name, server.created.year) == ("cx23", "fsn1", 2030)


def test_nested_models_are_read_without_a_call() -> None:
    """Of them hcloud knows ids alone, and would fetch the rest; even an id that is null."""
    server = read({**LEAST, **NETS})
    assert server.public_net is not None
    assert server.public_net.primary_ipv4 is not None
    assert server.public_net.primary_ipv4.id is None
    assert [each.id for each in (*server.volumes, *server.public_net.floating_ips)] == [41, 42, 31]
    assert [(net.network.id, net.ip) for net in server.private_net] == [(5, "10.0.0.2")]


def test_a_side_resource_knows_whether_it_is_used() -> None:
    with HetznerClient(NOBODY_LISTENS, "t").talk(Priority.LIST) as hetzner:
        used = SideResource.of(BoundVolume(hetzner.volumes, {"id": 1, "server": 7, "labels": {"a": "b"}}))
        free = SideResource.of(BoundVolume(hetzner.volumes, {"id": 2, "server": None}))
    assert (used.is_free, used.labels, free.is_free, free.labels) == (False, {"a": "b"}, True, {})


@pytest.mark.parametrize("broken", [{"id": "x"}, {"created": None}, {"created": "2030-01-01T00:00:00"}, {"name": None}])
def test_what_does_not_fit_is_a_bug_of_the_answer(broken: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        read({**LEAST, **broken})
    assert caught.value.kind is ErrorKind.BUG


def test_values_are_frozen() -> None:
    with pytest.raises(ValidationError):
        read(LEAST).name = "b"  # type: ignore[misc]
