"""The parts of UCloud's answers that are read, as types.  Whatever else is in them is left alone."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

T = TypeVar("T")
# UCloud is written in Go, where a list without elements may come as null.
Many = Annotated[tuple[T, ...], BeforeValidator(lambda value: () if value is None else value)]


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class Update(_Model):
    """One line of a job's history."""

    timestamp: int = 0
    """Milliseconds since the epoch."""
    state: str | None = None
    status: str | None = None


class Owner(_Model):
    """Whose job it is."""

    project: str | None = None
    """``None`` in a personal workspace."""


class ProductRef(_Model):
    """Names a product."""

    id: str
    category: str
    provider: str


class Specification(_Model):
    """What was ordered."""

    name: str | None = None
    product: ProductRef
    labels: dict[str, str] | None = None


class Status(_Model):
    """Where a job stands."""

    state: str
    started_at: int | None = None
    """When it last began to run; ``None`` when it never did."""
    expires_at: int | None = None
    """Milliseconds since the epoch; ``None`` for what has no end, as virtual machines had none in August 2026."""


class Job(_Model):
    """A virtual machine."""

    id: str
    created_at: int
    """Milliseconds since the epoch, by UCloud's clock."""
    owner: Owner = Owner()
    specification: Specification
    status: Status
    updates: Many[Update] = ()
    """Empty unless they were asked for."""

    @property
    def number(self) -> int:
        """The id as the growing number that it is."""
        return int(self.id)

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return self.specification.labels or {}


class JobPage(_Model):
    """One page of jobs, the newest first."""

    items: Many[Job]
    next: str | None = None


class AccountingUnit(_Model):
    """What a price is counted in."""

    name: str = ""
    floating_point: bool = False
    """Prices are millionths of a unit."""


class Category(_Model):
    """Products that are accounted together."""

    name: str
    provider: str
    accounting_unit: AccountingUnit = AccountingUnit()
    accounting_frequency: str = ""
    free_to_use: bool = False


class Product(_Model):
    """A kind of machine."""

    name: str
    category: Category
    price: int = 0
    cpu: int | None = None
    memory_in_gigs: int | None = None
    gpu: int | None = None


class MachineSupport(_Model):
    """What a product can do as a virtual machine."""

    enabled: bool = False


class Support(_Model):
    """What a product can do, and whether it could be had a moment ago."""

    virtual_machine: MachineSupport = MachineSupport()
    queue_status: str | None = None
    """``AVAILABLE`` for two or more, ``BUSY`` for one, ``FULL``; ``None`` when it is not known."""


class SupportedProduct(_Model):
    """A product with its support."""

    product: Product
    support: Support = Support()


class Catalogue(_Model):
    """Everything that is sold, by service provider."""

    products_by_provider: dict[str, Many[SupportedProduct]]


class JobId(_Model):
    """The answer to one submission."""

    id: str = Field(min_length=1)


class Submitted(_Model):
    """The answer to a submission of one job."""

    responses: Many[JobId] = ()


class Acknowledged(_Model):
    """The answer to an order for the end of jobs: one empty object for each."""

    responses: Many[dict[str, object]] = ()


class Tokens(_Model):
    """The answer to a refresh."""

    access_token: str = Field(min_length=1)
