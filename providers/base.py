"""All that the author of a provider needs: one class, six methods, one exception.

A provider turns calls into what one cloud understands.  It decides nothing, waits for nothing and remembers nothing
but its HTTP session: names, labels and operation ids are chosen by the caller, which writes them to its journal before
it calls.  This module imports the standard library only.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import ClassVar, Final, Self

# The labels by which an instance is recognised as the fleet's.  A typo in one of them would leak machines, so this is
# the only place that spells them; Terraform's and the shell's copies are held against it by a test.
LABEL_PREFIX: Final = "sandbox-fleet"
DEPLOYMENT_LABEL: Final = f"{LABEL_PREFIX}/deployment"
OPERATION_LABEL: Final = f"{LABEL_PREFIX}/op"
"""The operation that ordered an instance.  Only what carries it is ever adopted, drained or deleted."""
POOL_LABEL: Final = f"{LABEL_PREFIX}/pool"
ROLE_LABEL: Final = f"{LABEL_PREFIX}/role"
SPEC_LABEL: Final = f"{LABEL_PREFIX}/spec"
"""Digest of the pool's settings that an instance was made from; another one is drift."""
IMAGE_LABEL: Final = f"{LABEL_PREFIX}/image"
"""Id of the snapshot that an instance was made from, where a label selected it."""
NAME_LABEL: Final = f"{LABEL_PREFIX}/name"
"""Name of an instance, where the cloud's own name can be changed by a person."""
USER_DATA_LABEL: Final = f"{LABEL_PREFIX}/user-data"
"""User data of an instance, where the cloud has no other way to carry it."""
MANAGED_BY_LABEL: Final = f"{LABEL_PREFIX}/managed-by"
"""What made a resource that no operation made."""


class SettingsError(ValueError):
    """A provider's settings are wrong: the message names the key and what it should be."""


class ErrorKind(StrEnum):
    """What went wrong; the caller decides by this and never by a provider's own words."""

    CAPACITY = "capacity"  # this offer cannot be had now: back it off, try the next one
    QUOTA = "quota"  # a limit of the account: no creates anywhere in its scope for a while
    RATE_LIMIT = "rate_limit"  # too many calls: stop optional ones until `retry_after`
    AUTH = "auth"  # the credential is bad: freeze mutations; never read as "no instances"
    CONFIG = "config"  # the request is wrong and stays wrong: halt the pool and alert a person
    DEPRECATED = "deprecated"  # the offer is gone for good
    EXISTS = "exists"  # the name is taken by something that is not this operation's
    NOT_FOUND = "not_found"
    BUSY = "busy"  # locked or in conflict: later
    TRANSIENT = "transient"  # timeouts, broken connections, 5xx
    BUG = "bug"  # an answer that could not be understood


class Applied(StrEnum):
    """Whether the failed call had its effect."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class Scope(StrEnum):
    """How far the failure reaches."""

    INSTANCE = "instance"
    OFFER = "offer"
    LOCATION = "location"
    POOL = "pool"
    PROVIDER = "provider"


class ProviderError(Exception):
    """The one exception of a provider.

    Attributes:
        kind: what happened.
        applied: whether it took effect all the same.
        scope: how far it reaches.
        retry_after: seconds after which another try may help; ``None`` where the provider does not say.
        code: the provider's own code, for logs only.
        details: more of the provider's own, for logs only.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind,
        applied: Applied,
        scope: Scope,
        retry_after: float | None = None,
        code: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.applied = applied
        self.scope = scope
        self.retry_after = retry_after
        self.code = code
        self.details = dict(details or {})


class Billing(StrEnum):
    """How running time is charged."""

    PER_SECOND = "per_second"
    HOURLY_ROUND_UP = "hourly_round_up"
    PREPAID = "prepaid"


@dataclass(frozen=True)
class Caps:
    """Facts about the cloud that the caller relies on.

    The contract suite tests each as far as it can be seen.  How running time is billed cannot be, nor whether the
    numbers of ``calls_per_hour`` and ``settle_seconds`` are right.
    """

    unique_names: bool
    """Two instances can never have one name."""
    list_is_atomic: bool
    """A listing is a snapshot of one moment."""
    deleted_vanish: bool
    """A deleted instance leaves the listing, instead of staying as a final row."""
    billing: Billing
    max_user_data: int | None
    """Bytes; ``None`` when there is no bound."""
    calls_per_hour: int | None
    has_gpu: bool
    settle_seconds: float = 0.0
    """How long an order whose answer was lost may still come through.  Where names are not unique, it is sent again
    only after that; elsewhere zero does."""


@dataclass(frozen=True)
class Resources:
    """What one instance of an offer has.

    Raises:
        ValueError: an amount is negative.
    """

    cpus: float
    memory_mb: int
    disk_mb: int
    gpus: int = 0

    def __post_init__(self) -> None:
        # Here, where one provider's catalogue is read: in the plan it would stop all providers.
        if not min(self.cpus, self.memory_mb, self.disk_mb, self.gpus) >= 0:
            raise ValueError(f"no machine can have {self}")


@dataclass(frozen=True)
class Offer:
    """Something that can be bought: type × location × shape × price × availability.

    Raises:
        ValueError: the price is negative.
    """

    type: str
    location: str
    resources: Resources
    price_per_hour: Decimal | None
    """Euro, net; ``None`` when unknown."""
    available: bool
    """A hint: a create may be refused all the same."""
    gone_after: datetime | None = None

    def __post_init__(self) -> None:
        # It would be counted as room under the caps.
        if self.price_per_hour is not None and not self.price_per_hour >= 0:
            raise ValueError(f"{self.type} in {self.location} cannot cost {self.price_per_hour} euro an hour")


class Phase(StrEnum):
    """Lifecycle phase of an instance, as the provider reports it."""

    BOOTING = "booting"
    RUNNING = "running"
    STOPPING = "stopping"
    LOST = "lost"  # it had been running and cannot come back
    GONE = "gone"


@dataclass(frozen=True)
class Instance:
    """A VM as the provider sees it."""

    id: str
    name: str
    labels: Mapping[str, str]
    phase: Phase
    type: str
    location: str
    created_at: datetime
    """By the provider's clock."""
    address: str | None = None
    adopted: bool = False
    """``create`` found it already there under the same operation."""
    detail: str = ""
    """The provider's own words about its state, for people; nothing is decided by it."""
    progress_at: datetime | None = None
    """When its boot last made progress, by the provider's clock; ``None`` where the provider reports none.  A late boot
    gets more time, once, when this is not long ago."""
    expires_at: datetime | None = None
    """When its paid time ends and the provider takes it away, by the provider's clock; ``None`` for never."""


@dataclass(frozen=True)
class Inventory:
    """Every instance that carries the deployment's label.  Never a part: a listing that is not complete raises."""

    instances: tuple[Instance, ...]
    taken_at: datetime
    leftovers: tuple[str, ...] = ()
    """Ids of side resources (volumes, addresses) of the deployment that no instance uses any more."""


@dataclass(frozen=True)
class Ref:
    """Names one instance by id, by name, or by both, which must then agree.

    Where names are not unique, a name alone means all that carry it: ``get`` finds the oldest that is not gone, and
    ``delete`` ends every one.  With an operation it means only what that operation has made.

    Raises:
        ValueError: neither is given; that would name everything.
    """

    id: str | None = None
    name: str | None = None
    operation_id: str | None = None

    def __post_init__(self) -> None:
        if self.id is None and self.name is None:
            raise ValueError("a Ref needs an id, a name, or both")

    def names(self, instance: Instance) -> bool:
        """Return whether an instance of the deployment is one that is meant."""
        return (
            self.id in (None, instance.id)
            and self.name in (None, instance.name)
            and self.operation_id in (None, instance.labels.get(OPERATION_LABEL))
        )


@dataclass(frozen=True)
class Create:
    """One instance to make.  Everything in it is already in the caller's journal."""

    name: str
    """At most 63 of ``[a-z0-9-]``, alphanumeric at both ends; derived from the operation id."""
    operation_id: str
    deployment: str
    pool: str
    type: str
    location: str
    image: str
    """As the pool's settings name it.  A cloud with one image may ignore it; one that has a choice refuses what it
    does not know with `ErrorKind.CONFIG`."""
    user_data: str
    """Must arrive byte for byte; nothing secret but a join token that works once."""
    labels: Mapping[str, str] = field(default_factory=dict)


class Deleted(StrEnum):
    """State of a delete."""

    ACCEPTED = "accepted"
    GONE = "gone"


@dataclass(frozen=True)
class Access:
    """How a person or the bootstrap logs in to an instance."""

    host: str
    port: int
    user: str


class ComputeProvider(ABC):
    """A cloud.  Six methods; each may block for one bounded call, none waits for something to happen."""

    kind: ClassVar[str]
    caps: ClassVar[Caps]

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        """Return the provider that these settings describe.  Calls nothing outside.

        Args:
            settings: the provider's own table of the settings file.  Unknown keys are refused.  A secret stands in it
                as the name of an environment variable or a file, never as itself.
            deployment: name of the fleet; every instance carries it, and no other instance is ever seen.
            environ: where secrets named by environment variable are looked up.

        Raises:
            SettingsError: a key is unknown, missing or has a wrong value.
        """

    @abstractmethod
    def offers(self) -> list[Offer]:
        """Return everything that could be bought, available or not."""

    @abstractmethod
    def list(self) -> Inventory:
        """Return every instance with the deployment's label, and its side resources that nothing uses any more.

        Raises rather than return a part.
        """

    @abstractmethod
    def get(self, ref: Ref) -> Instance | None:
        """Return one instance; ``None`` only when the provider proves that there is none.

        Where deleted instances stay listed, one of them is found by its id, as gone.  A name alone finds the oldest
        that is not gone.
        """

    @abstractmethod
    def create(self, want: Create) -> Instance:
        """Order one instance and return at once, in `Phase.BOOTING`.

        Idempotent: called again with the same name and operation it returns the instance that is there, `adopted`.
        One of this operation that is gone already may be returned as `Phase.GONE` or be made again: the caller counts
        by operation, and takes both.

        Raises:
            ProviderError: `ErrorKind.EXISTS` where ``caps.unique_names`` and another operation, of this deployment or
                of another, holds the name.  Where names are not unique, each operation gets an instance of its own.
        """

    @abstractmethod
    def delete(self, ref: Ref) -> Deleted:
        """Begin removal; an unknown instance is `Deleted.GONE`.  Also takes the id of a leftover of an `Inventory`.

        A name alone ends every instance of the deployment that carries it; a name with an operation, those of the
        operation only.
        """

    @abstractmethod
    def connect(self, instance: Instance) -> Access | None:
        """Return how to log in, or ``None`` where the provider has no way."""
