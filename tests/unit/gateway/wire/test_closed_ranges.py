"""Closed addresses, against the registries' own blocks."""

from ipaddress import ip_address, ip_network

import pytest

from gateway.wire.closed_ranges import METADATA, AddressPolicy, is_closed

# Every address block of IANA's special-purpose registries, as they list them.
IPV4 = """
    0.0.0.0/8 0.0.0.0/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.0.0/29
    192.0.0.8/32 192.0.0.9/32 192.0.0.10/32 192.0.0.170/32 192.0.0.171/32 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24
    192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4
    255.255.255.255/32"""
IPV6 = """
    ::1/128 ::/128 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128
    2001:1::2/128 2001:1::3/128 2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28 2001:30::/28
    2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10"""
BESIDE = ("224.0.0.0/4", "ff00::/8", "fec0::/10", "168.63.129.16/32")


@pytest.mark.parametrize("block", [*IPV4.split(), *IPV6.split(), *BESIDE])
def test_every_special_purpose_block_is_closed_from_its_first_to_its_last_address(block: str) -> None:
    network = ip_network(block)
    assert is_closed(network[0])
    assert is_closed(network[-1])


@pytest.mark.parametrize("address", sorted(map(str, METADATA)))
def test_metadata_services_are_closed(address: str) -> None:
    assert is_closed(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "9.255.255.255", "11.0.0.0", "168.63.129.15", "192.0.1.1", "2606:4700::1111", "2a00::1"]
)
def test_the_internet_is_open(address: str) -> None:
    assert not is_closed(address)


def test_an_ipv4_address_dressed_as_ipv6_is_closed() -> None:
    assert is_closed("::ffff:10.0.0.1")
    assert is_closed("64:ff9b::a00:1")


def test_a_host_name_is_not_taken_for_an_address() -> None:
    with pytest.raises(ValueError):
        is_closed("localhost")


def test_an_operator_closes_more() -> None:
    policy = AddressPolicy(added=(ip_network("8.8.8.0/24"),))
    assert policy.is_closed("8.8.8.8")
    assert policy.is_closed("10.0.0.1")
    assert not policy.is_closed("8.8.4.4")


def test_an_exception_opens_its_range_and_nothing_beside_it() -> None:
    policy = AddressPolicy(opened=(ip_network("10.7.0.0/16"),))
    assert not policy.is_closed("10.7.0.1")
    assert policy.is_closed("10.8.0.1")


def test_a_wide_exception_leaves_guarded_addresses_closed_and_an_exact_one_opens_them() -> None:
    guarded = frozenset({ip_address("10.7.0.5"), *METADATA})
    wide = AddressPolicy(opened=(ip_network("10.0.0.0/8"), ip_network("169.254.0.0/16")), guarded=guarded)
    assert wide.is_closed("10.7.0.5")
    assert wide.is_closed("169.254.169.254")
    assert not wide.is_closed("10.7.0.6")
    exact = AddressPolicy(opened=(ip_network("10.7.0.5/32"),), guarded=guarded)
    assert not exact.is_closed("10.7.0.5")
