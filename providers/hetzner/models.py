"""The parts of the API's answers that are used, checked.

hcloud's own objects fetch what they lack with hidden calls; these are plain values.
"""

from decimal import Decimal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """What is not named here is ignored: the API adds fields at any time."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Named(Answer):
    """Something that is named by its name."""

    name: str


class Address(Answer):
    """A public address of a server."""

    id: int | None = None
    ip: str
    """Of IPv6 a whole network."""


class PublicNet(Answer):
    """The public side of a server."""

    ipv4: Address | None = None
    ipv6: Address | None = None
    floating_ips: tuple[int, ...] = ()


class PrivateNet(Answer):
    """One private network of a server."""

    network: int
    ip: str


class Server(Answer):
    """A server."""

    id: int
    name: str
    status: str
    created: AwareDatetime
    server_type: Named
    location: Named
    labels: dict[str, str] = {}
    locked: bool = False
    """Whether an action is at work on it."""
    public_net: PublicNet = PublicNet()
    private_net: tuple[PrivateNet, ...] = ()
    volumes: tuple[int, ...] = ()


class SideResource(Answer):
    """A volume, a primary IP or a floating IP."""

    id: int
    labels: dict[str, str] = {}
    server: int | None = None
    """What a volume or a floating IP hangs on."""
    assignee_id: int | None = None
    """What a primary IP hangs on."""
    auto_delete: bool = False
    """Whether it goes with its server."""

    @property
    def is_free(self) -> bool:
        """Whether nothing uses it."""
        return self.server is None and self.assignee_id is None


class Money(Answer):
    """An amount; the API writes it as a string."""

    net: Decimal


class Price(Answer):
    """Of a server type or an address in one location."""

    location: str
    price_hourly: Money


class Deprecation(Answer):
    """That something goes out of sale."""

    unavailable_after: AwareDatetime


class TypeLocation(Answer):
    """A server type in one location."""

    name: str
    available: bool = True
    deprecation: Deprecation | None = None


class ServerType(Answer):
    """A server type of the catalogue."""

    name: str
    cores: int
    memory: Decimal
    """GB."""
    disk: Decimal
    """GB."""
    architecture: str
    prices: tuple[Price, ...] = ()
    locations: tuple[TypeLocation, ...] = ()


class IpPrice(Answer):
    """Of primary IPs of one kind."""

    type: str
    prices: tuple[Price, ...] = ()


class Pricing(Answer):
    """The price list, as far as the catalogue lacks it."""

    currency: str
    primary_ips: tuple[IpPrice, ...] = ()


class Image(Answer):
    """A system image or a snapshot."""

    id: int
    created: AwareDatetime


class Pagination(Answer):
    """Where in a listing a page stands."""

    page: int
    next_page: int | None = None
    total_entries: int | None = None


class Meta(Answer):
    """What a page says about itself."""

    pagination: Pagination


class Page(Answer):
    """One page of a listing; its items stand under a key of their own."""

    meta: Meta


class ServerAnswer(Answer):
    """Of a create or a look at one server."""

    server: Server = Field()
