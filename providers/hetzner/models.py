"""Frozen, checked values of the parts of the API's objects that are used.

hcloud's bound models are neither: they hold whatever came, and fetch what they lack with calls that nobody asked for.
So each is read into one of these where it arrives, and none goes further.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Self, TypeVar

from hcloud.core import BoundModelBase
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, model_validator

T = TypeVar("T")
# hcloud has None where an answer lacks a list or an object.
Many = Annotated[tuple[T, ...], BeforeValidator(lambda value: () if value is None else value)]
Labels = Annotated[dict[str, str], BeforeValidator(lambda value: {} if value is None else value)]


class Value(BaseModel):
    """A part of an answer, read from hcloud's model of it or from JSON; whatever else is in it is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, from_attributes=True)

    @model_validator(mode="before")
    @classmethod
    def _without_fetching(cls, value: Any) -> Any:
        """Read the data behind a bound model: an attribute of the model itself may cost a call."""
        return value.data_model if isinstance(value, BoundModelBase) else value

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the value of one of hcloud's models, or of a part of an answer.

        Raises:
            ValueError: it does not fit.
        """
        return cls.model_validate(value)


class Named(Value):
    """Something known by its name."""

    name: str


class Identified(Value):
    """Something known by its id."""

    id: int | None = None


class Address(Value):
    """A public address of a server."""

    ip: str
    """Of IPv6 a whole network."""


class PublicNet(Value):
    """The public side of a server."""

    ipv4: Address | None = None
    ipv6: Address | None = None
    primary_ipv4: Identified | None = None
    primary_ipv6: Identified | None = None
    floating_ips: Many[Identified] = ()


class PrivateNet(Value):
    """One private network of a server."""

    network: Identified
    ip: str


class Listed(Value):
    """An item of a listing."""

    id: int
    created: AwareDatetime | None = None


class Server(Listed):
    """A server."""

    name: str
    status: str
    created: AwareDatetime
    server_type: Named
    location: Named
    labels: Labels = {}
    locked: bool | None = None
    """Whether an action is at work on it."""
    public_net: PublicNet | None = None
    private_net: Many[PrivateNet] = ()
    volumes: Many[Identified] = ()


class SideResource(Listed):
    """A volume, a primary IP or a floating IP."""

    labels: Labels = {}
    server: Identified | None = None
    """What a volume or a floating IP hangs on."""
    assignee_id: int | None = None
    """What a primary IP hangs on."""
    auto_delete: bool | None = None
    """Whether it goes with its server."""

    @property
    def is_free(self) -> bool:
        """Whether nothing uses it."""
        return self.server is None and self.assignee_id is None


class Money(Value):
    """An amount; the API writes it as a string."""

    net: Decimal


class Price(Value):
    """Of a server type or an address in one location."""

    location: str
    price_hourly: Money


class Deprecation(Value):
    """The end of sale of something."""

    unavailable_after: AwareDatetime


class TypeLocation(Value):
    """A server type in one location."""

    location: Named
    available: bool | None = None
    deprecation: Deprecation | None = None

    def is_sold(self, now: datetime) -> bool:
        """Return whether the type is in stock there and still on sale."""
        return self.available is not False and (self.deprecation is None or now < self.deprecation.unavailable_after)


class ServerType(Listed):
    """A server type of the catalogue."""

    name: str
    cores: int
    memory: Decimal
    """GB."""
    disk: Decimal
    """GB."""
    architecture: str
    prices: Many[Price] = ()
    locations: Many[TypeLocation] = ()


class IpPrice(Value):
    """Of primary IPs of one kind."""

    type: str
    prices: Many[Price] = ()


class Pricing(Value):
    """The price list, as far as the catalogue lacks it."""

    currency: str
    primary_ips: Many[IpPrice] = ()


class Snapshot(Value):
    """An image made from a server."""

    id: int
    status: str
    created: AwareDatetime


class Page(Value):
    """Where a page stands in its listing."""

    next_page: int | None = None
    total_entries: int | None = None
