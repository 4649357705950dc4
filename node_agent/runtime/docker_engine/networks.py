"""A Docker network per sandbox: a bridge with room for one container, behind the node's firewall.

Docker translates nothing and connects nobody there; the rules of `node_agent.host.firewall` match the bridges by
their name, whether or not Docker keeps iptables rules of its own.
"""

import ipaddress
from typing import Any, Final

from docker.errors import NotFound

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import interfaces
from node_agent.host.conntrack import forget_all
from node_agent.host.firewall import DEFAULT_RULES, Firewall, FirewallRules
from node_agent.host.network import enable_forwarding, free_subnet, host_wide_lock
from node_agent.host.process import CommandError
from node_agent.runtime.docker_engine.client import Api, calling

DEFAULT_POOL: Final = "10.214.0.0/16"
_MAX_SLOTS: Final = 4096
_BRIDGE_NAME: Final = "com.docker.network.bridge.name"


class DockerNetworks:
    """Makes and removes the networks of one node.

    Args:
        tag: the node's tag, 8 hex digits.
        label: Docker label that marks what is this node's; its value is the tag.
        rules: what the firewall lets through.
        pool: private range that the subnets are cut from.
    """

    def __init__(
        self, api: Api, tag: str, label: str, rules: FirewallRules = DEFAULT_RULES, pool: str = DEFAULT_POOL
    ) -> None:
        self._api = api
        self._tag = tag
        self._label = label
        self._pool = ipaddress.IPv4Network(pool)
        self._prefix = f"sd{tag}"
        self._bridges: dict[str, str] = {}
        self.firewall = Firewall(f"{tag}_docker", self._prefix, rules)

    def create(self, name: str) -> str:
        """Make a network that is firewalled before its first packet, and return its name.

        Raises:
            RuntimeFailure: ``CAPACITY`` when the pool is used up; ``INTERNAL`` when host or engine refuse.
        """
        try:
            self.firewall.ensure()
            enable_forwarding()
            with host_wide_lock(), calling(f"network {name}"):
                self._create(name)
        except (CommandError, OSError) as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"network {name}: {error}") from error
        if (problem := self.firewall.problem) is not None:  # nobody else may have cut it off
            self.remove(name)
            raise RuntimeFailure(ErrorCode.NODE_REFUSED, problem)
        return name

    def remove(self, name: str) -> None:
        """Remove the network.  Idempotent.

        Raises:
            RuntimeFailure: a container is still connected, or the engine does not answer.
        """
        with calling(f"network {name}"):
            try:
                ranges = self._api.client.inspect_network(name)["IPAM"]["Config"]
                self._api.client.remove_network(name)
            except NotFound:
                return
            finally:
                self._bridges.pop(name, None)
        for entry in ranges:
            forget_all(ipaddress.IPv4Network(entry["Subnet"]).hosts())

    def bridge(self, name: str) -> str | None:
        """Return the host's interface of a network; ``None`` when it is not there.  The engine is asked once.

        Raises:
            RuntimeFailure: the engine does not answer.
        """
        if name not in self._bridges:
            with calling(f"network {name}"):
                try:
                    self._bridges[name] = self._api.client.inspect_network(name)["Options"][_BRIDGE_NAME]
                except NotFound:
                    return None
        return self._bridges[name]

    def names(self) -> set[str]:
        """Return this node's networks."""
        with calling("networks"):
            listed = self._api.client.networks(filters={"label": f"{self._label}={self._tag}"})
        return {entry["Name"] for entry in listed}

    def sweep(self, owned: set[str]) -> list[str]:
        """Remove networks that are not in ``owned``, and the firewall when none is left.

        Returns:
            A sentence for each thing removed.
        """
        gone = []
        for name in sorted(self.names() - owned):
            self.remove(name)
            gone.append(f"Docker network {name}")
        if not owned:
            gone += self.firewall.remove()
        return gone

    def _create(self, name: str) -> None:
        subnet, bridge = free_subnet(self._pool), self._free_bridge()
        forget_all(subnet.hosts())  # an agent that was killed may have left them
        config: dict[str, Any] = {
            "Driver": "default",
            "Config": [{"Subnet": str(subnet), "Gateway": str(next(subnet.hosts()))}],
        }
        self._api.client.create_network(
            name,
            driver="bridge",
            ipam=config,
            labels={self._label: self._tag},
            options={
                _BRIDGE_NAME: bridge,
                "com.docker.network.bridge.enable_ip_masquerade": "false",
                "com.docker.network.bridge.enable_icc": "false",
            },
        )
        if bridge not in interfaces.names():
            # Our firewall is in this agent's network namespace: it would not stand between that bridge and the world.
            self._api.client.remove_network(name)
            raise RuntimeFailure(
                ErrorCode.UNSUPPORTED,
                "the Docker engine is in another network namespace than this node agent, so its networks cannot be"
                " closed; use the runsc runtime, or network none",
            )

    def _free_bridge(self) -> str:
        taken = interfaces.names()
        for slot in range(_MAX_SLOTS):
            name = f"{self._prefix}{slot:03x}"
            if name not in taken:
                return name
        raise RuntimeFailure(ErrorCode.CAPACITY, f"this node already has {_MAX_SLOTS} Docker networks")
