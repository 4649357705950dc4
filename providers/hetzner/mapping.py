"""Servers as instances, the catalogue as offers, orders as what hcloud sends.  Pure."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypedDict

import hcloud
from hcloud.firewalls import BoundFirewall, Firewall
from hcloud.helpers.labels import LabelValidator
from hcloud.networks import BoundNetwork, Network
from hcloud.servers import ServerCreatePublicNetwork
from hcloud.ssh_keys import BoundSSHKey, SSHKey

from providers.base import (
    DEPLOYMENT_LABEL,
    IMAGE_LABEL,
    OPERATION_LABEL,
    Create,
    ErrorKind,
    Instance,
    Offer,
    Phase,
    Resources,
)
from providers.hetzner.errors import not_sent
from providers.hetzner.models import Pricing, PublicNet, Server, ServerType, TypeLocation
from providers.hetzner.settings import HetznerSettings

RESERVED_PREFIX: Final = "hetzner.cloud/"
MAX_USER_DATA: Final = 32_768  # bytes as sent; the API's own bound
NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""RFC 1123, without dots."""

# Of a GB that is sold a guest sees less: of 32 GB it was 31,326 MiB.  Decimal GB are below that, and true for disks.
MIB_PER_GB: Final = Decimal(10**9) / Decimal(2**20)

_BEFORE_RUNNING: Final = frozenset({"initializing", "starting"})
_DOWN: Final = frozenset({"off", "stopping", "rebuilding"})
_LEAVING: Final = "deleting"
_RUNNING: Final = "running"


def selector(deployment: str) -> str:
    """Return the selector of what an operation of the deployment made: neither its gateway nor else of Terraform's."""
    return f"{DEPLOYMENT_LABEL}=={deployment},{OPERATION_LABEL}"


def is_ours(labels: Mapping[str, str], deployment: str) -> bool:
    """Return whether labels fit `selector`."""
    return labels.get(DEPLOYMENT_LABEL) == deployment and OPERATION_LABEL in labels


def phase(server: Server, now: datetime, newborn_seconds: float) -> Phase:
    """Return the phase of a server.

    Every server passes ``initializing`` and ``off`` before it is started, so ``off`` proves nothing.  The API does
    not remember whether a server has run; an ``off`` server is taken for newborn while an action is at work on it
    (``locked``) or while it is younger than ``newborn_seconds``, and for lost afterwards.  States that say nothing
    about what runs inside (``migrating``, ``unknown``, and any new one) leave it where its age puts it.

    Args:
        server: as listed.
        now: by the provider's clock, as ``server.created`` is.
        newborn_seconds: see `HetznerSettings`.
    """
    if server.status == _RUNNING:
        return Phase.RUNNING
    if server.status == _LEAVING:
        return Phase.STOPPING
    if server.status in _BEFORE_RUNNING:
        return Phase.BOOTING
    is_newborn = now - server.created < timedelta(seconds=newborn_seconds)
    if server.status in _DOWN:
        return Phase.BOOTING if is_newborn or (server.status == "off" and bool(server.locked)) else Phase.LOST
    return Phase.BOOTING if is_newborn else Phase.RUNNING


def address(server: Server, settings: HetznerSettings) -> str | None:
    """Return the address at which a server is reached, once it has it."""
    if settings.reached == "private":
        return next((net.ip for net in server.private_net if net.network.id in settings.networks), None)
    public = server.public_net or PublicNet()
    if public.ipv4 is not None:
        return public.ipv4.ip
    if public.ipv6 is None:
        return None
    # A server gets a /64 and answers on the first address in it.
    return str(ipaddress.ip_network(public.ipv6.ip, strict=False)[1])


def instance(server: Server, now: datetime, settings: HetznerSettings) -> Instance:
    """Return a server as an instance.

    The API gives its states no times.  That an action is at work on a server which has not run yet (``locked``) is the
    only sign that its start goes on, so its last step is now.
    """
    at = phase(server, now, settings.newborn_seconds)
    return Instance(
        id=str(server.id),
        name=server.name,
        labels=dict(server.labels),
        phase=at,
        type=server.server_type.name,
        location=server.location.name,
        created_at=server.created,
        address=address(server, settings),
        detail=f"{server.status}, locked" if server.locked else server.status,
        progress_at=now if server.locked and at is Phase.BOOTING else None,
    )


def offers(types: Iterable[ServerType], pricing: Pricing, settings: HetznerSettings, now: datetime) -> list[Offer]:
    """Return the catalogue as offers, one for each type and location."""
    found: list[Offer] = []
    for kind in types:
        if kind.architecture != settings.architecture or (settings.types and kind.name not in settings.types):
            continue
        resources = Resources(
            cpus=float(kind.cores),
            memory_mb=int(kind.memory * MIB_PER_GB),
            disk_mb=int(kind.disk * MIB_PER_GB),
        )
        for place in kind.locations:
            if settings.locations and place.location.name not in settings.locations:
                continue
            found.append(
                Offer(
                    type=kind.name,
                    location=place.location.name,
                    resources=resources,
                    price_per_hour=_price(kind, place, pricing, settings),
                    available=place.is_sold(now),
                    gone_after=place.deprecation.unavailable_after if place.deprecation is not None else None,
                )
            )
    return found


def _price(kind: ServerType, place: TypeLocation, pricing: Pricing, settings: HetznerSettings) -> Decimal | None:
    """Return the net price in Euro per hour, with the IPv4 address; ``None`` where either is unknown."""
    if pricing.currency != "EUR":
        return None
    prices = {price.location: price.price_hourly.net for price in kind.prices}
    price = prices.get(place.location.name)
    if price is None or not settings.ipv4:
        return price
    for ip in pricing.primary_ips:
        for each in ip.prices if ip.type == "ipv4" else ():
            if each.location == place.location.name:
                return price + each.price_hourly.net
    return None


class ServerOrder(TypedDict):
    """Arguments of hcloud's ``servers.create``."""

    name: str
    server_type: hcloud.server_types.ServerType
    location: hcloud.locations.Location
    image: hcloud.images.Image
    labels: dict[str, str]
    ssh_keys: list[SSHKey | BoundSSHKey]
    networks: list[Network | BoundNetwork]
    firewalls: list[Firewall | BoundFirewall]
    public_net: ServerCreatePublicNetwork
    user_data: str | None
    start_after_create: bool


def order(want: Create, image: str | int, settings: HetznerSettings, *, pinned: bool) -> ServerOrder:
    """Return the arguments of a create.

    Args:
        want: checked here against what the API would refuse.
        image: name or id of what it boots from.
        settings: keys, networks and addresses.
        pinned: whether ``image`` was chosen among several, so that a label has to say which.

    Raises:
        ProviderError: `ErrorKind.CONFIG`: the API would refuse it.
    """
    size = len(want.user_data.encode())
    if size > MAX_USER_DATA:
        raise not_sent(ErrorKind.CONFIG, f"user data of {want.name} has {size} bytes; {MAX_USER_DATA} are allowed")
    if NAME.fullmatch(want.name) is None:
        raise not_sent(ErrorKind.CONFIG, f"{want.name!r} is no name for a server: at most 63 of a-z, 0-9 and -")
    return {
        "name": want.name,
        "server_type": hcloud.server_types.ServerType(name=want.type),
        "location": hcloud.locations.Location(name=want.location),
        "image": hcloud.images.Image(**_named(image)),
        "labels": _labels(want, image, pinned=pinned),
        "ssh_keys": [SSHKey(**_named(key)) for key in settings.ssh_keys],
        "networks": [Network(id=network) for network in settings.networks],
        "firewalls": [Firewall(id=firewall) for firewall in settings.firewalls],
        "public_net": ServerCreatePublicNetwork(enable_ipv4=settings.ipv4, enable_ipv6=settings.ipv6),
        "user_data": want.user_data or None,
        "start_after_create": True,
    }


def _labels(want: Create, image: str | int, *, pinned: bool) -> dict[str, str]:
    labels = {**want.labels, DEPLOYMENT_LABEL: want.deployment, OPERATION_LABEL: want.operation_id}
    if pinned:
        labels[IMAGE_LABEL] = str(image)
    is_valid, problem = LabelValidator.validate_verbose(labels)
    if reserved := [key for key in labels if key.startswith(RESERVED_PREFIX)]:
        is_valid, problem = False, f"the prefix of {reserved[0]} is Hetzner's own"
    if not is_valid:
        raise not_sent(ErrorKind.CONFIG, f"{want.name}: {problem}")
    return labels


def _named(text: str | int) -> dict[str, Any]:
    """Return the id or the name that a setting holds, as arguments; digits are an id."""
    return {"id": int(text)} if str(text).isdecimal() else {"name": text}
