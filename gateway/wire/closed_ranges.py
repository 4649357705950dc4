"""Addresses that nothing a client asks for may reach: neither a sandbox's traffic nor the pull of its image.

What is closed by default is IANA's two special-purpose registries as a whole, multicast, and one
address of a metadata service outside them:

* https://www.iana.org/assignments/iana-ipv4-special-registry
* https://www.iana.org/assignments/iana-ipv6-special-registry

They were compared with the lists that CPython's `ipaddress` and hypothesis keep of both, and with the entries that the
registries have had since, to October 2025 (100:0:0:1::/64, 2001:1::3/128, 2001:30::/28, 3fff::/20, 5f00::/16).  None is
missing.

The few entries that the registries call globally reachable are closed as well.  They serve relays and translations
(6to4, NAT64, Teredo, AMT), which carry a packet on to an address inside that nobody looks at, or they answer for
private names (AS112).  No sandbox needs one, and an operator can open each.
"""

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

CLOSED_IPV4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared address space; holds metadata services such as 100.100.100.200
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's wire server: metadata, outside the registry
            "169.254.0.0/16",  # link-local; holds the metadata service of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # IETF protocol assignments
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT relays
            "192.88.99.0/24",  # 6to4 relays, deprecated
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast, which has a registry of its own
            "240.0.0.0/4",  # reserved, and the limited broadcast
        ),
    )
)
"""Closed IPv4 destinations."""

CLOSED_IPV6: Final = tuple(
    map(
        IPv6Network,
        (
            "::/128",  # unspecified
            "::1/128",  # loopback
            "::/96",  # IPv4-compatible, deprecated
            "::ffff:0:0/96",  # IPv4-mapped
            "64:ff9b::/96",  # NAT64
            "64:ff9b:1::/48",  # local-use NAT64
            "100::/64",  # discard
            "100:0:0:1::/64",  # dummy prefix
            "2001::/23",  # IETF protocol assignments: Teredo, AMT, ORCHID, benchmarks …
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
            "fc00::/7",  # unique local
            "fe80::/10",  # link-local
            "fec0::/10",  # site-local, deprecated
            "ff00::/8",  # multicast
        ),
    )
)
"""Closed IPv6 destinations."""

METADATA: Final[frozenset[IpAddress]] = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # most clouds
            "169.254.170.2",  # credentials of AWS's containers
            "169.254.170.23",  # credentials of AWS's pods
            "168.63.129.16",  # Azure
            "100.100.100.200",  # Alibaba Cloud
            "192.0.0.192",  # Oracle Cloud
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",
            "fd20:ce::254",  # Google Cloud
        ),
    )
)
"""Services that give a machine's credentials to whoever asks from there."""


@dataclass(frozen=True)
class AddressPolicy:
    """Which addresses are closed, and which of them an operator opened.

    Attributes:
        added: closed besides the defaults.
        opened: exceptions.  A wide one leaves `guarded` addresses closed.
        guarded: addresses that only an exception for exactly that address opens.
    """

    added: tuple[IpNetwork, ...] = ()
    opened: tuple[IpNetwork, ...] = ()
    guarded: frozenset[IpAddress] = field(default=METADATA)

    @property
    def closed(self) -> tuple[IpNetwork, ...]:
        """All ranges that are closed before exceptions."""
        return (*CLOSED_IPV4, *CLOSED_IPV6, *self.added)

    @property
    def opened_hosts(self) -> frozenset[IpAddress]:
        """Addresses that an exception names exactly."""
        return frozenset(network[0] for network in self.opened if network.num_addresses == 1)

    def is_closed(self, address: IpAddress | str) -> bool:
        """Return whether nothing may connect to ``address``.

        Raises:
            ValueError: it is no address.
        """
        address = ip_address(address)
        if address in self.opened_hosts:
            return False
        if address in self.guarded:
            return True
        return not _in_any(address, self.opened) and _in_any(address, self.closed)


def parse_range(text: object) -> IpNetwork:
    """Return the range that ``text`` names, such as ``10.0.0.0/8``, or a single address.

    Raises:
        ValueError: it names none, or has bits set behind its prefix, where a reader may mean another range.
    """
    if isinstance(text, IPv4Network | IPv6Network):
        return text
    if not isinstance(text, str):
        raise ValueError(f"a range is a text such as 10.0.0.0/8, not {text!r}")
    return ip_network(text)


DEFAULT_POLICY: Final = AddressPolicy()
"""What holds where no operator said otherwise."""


def is_closed(address: IpAddress | str) -> bool:
    """Return whether ``address`` is closed by default.

    Raises:
        ValueError: it is no address.
    """
    return DEFAULT_POLICY.is_closed(address)


def _in_any(address: IpAddress, networks: tuple[IpNetwork, ...]) -> bool:
    return any(address in network for network in networks)
