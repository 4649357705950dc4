"""The operator's policy: what the clients of each tenant may ask for, and how much a tenant may have at once.

One TOML file has a table for everybody and, by name, those of single tenants, whose keys override the former:

    [default.policy]
    isolations = ["gvisor"]

    [default.quota]
    sandboxes = 100

    [tenants.acme.quota]
    sandboxes = 500

Every value knows where it is set (`PolicyTable.where`), so that a refusal can name the line to change.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Final, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from gateway.wire import limits
from gateway.wire.sandboxes import Capability, Isolation, Network, RuntimeName
from gateway.wire.settings import ConfigurationError, describe
from gateway.wire.tenants import TenantName

BUILT_IN: Final = "the built-in default"
UNLIMITED: Final = "none"
"""Stands in the file for a limit that is lifted, since TOML has no null."""
MAX_PATTERNS: Final = 1000

_IMAGE_PATTERN: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._:/@*-]{0,511}")
_REGISTRY_PATTERN: Final = re.compile(
    r"[A-Za-z0-9*][A-Za-z0-9.*-]{0,252}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?"
)


def _image_pattern(text: str) -> str:
    if not _IMAGE_PATTERN.fullmatch(text):
        raise ValueError(
            f"{text!r} is no pattern of image references, such as 'docker.io/library/*'; only * is special"
        )
    return text


def _registry_pattern(text: str) -> str:
    if not _REGISTRY_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is no pattern of registries, such as 'docker.io', '*.example.com' or 'host:5000'")
    return text.lower()


def _lifted(value: object) -> object:
    return None if value == UNLIMITED else value


def _plain_capability(name: str) -> str:
    return name.removeprefix("CAP_")


ImagePattern = Annotated[str, AfterValidator(_image_pattern)]
RegistryPattern = Annotated[str, AfterValidator(_registry_pattern)]
Seconds = Annotated[int | None, Field(ge=1, le=limits.MAX_TTL_SECONDS), BeforeValidator(_lifted)]
Count = Annotated[int | None, Field(ge=0), BeforeValidator(_lifted)]
Amount = Annotated[float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(_lifted)]


class PolicyTable(BaseModel):
    """One table of the file, over the built-in defaults.  Unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def where(self, key: str) -> str:
        """Return where a key's value is set, for people: file, table and key, or `BUILT_IN`."""
        return self._origins.get(key, BUILT_IN)

    def described(self) -> dict[str, tuple[list[str] | int | float | None, str]]:
        """Return each value as JSON has it, and where it is set."""
        return {key: (value, self.where(key)) for key, value in self.model_dump(mode="json").items()}

    @classmethod
    def restored(cls, found: Mapping[str, tuple[object, str]]) -> Self:
        """Return the table that `described` itself so.

        Raises:
            ConfigurationError: another version has described it.
        """
        try:
            made = cls.model_validate({key: value for key, (value, _) in found.items()})
        except ValidationError as error:
            raise ConfigurationError(f"the gateway's {cls.__name__.lower()}: {describe(error, cls)}") from error
        made._origins = {key: where for key, (_, where) in found.items()}
        return made

    def overridden(self, values: Mapping[str, object], source: str, table: str, text: str = "") -> Self:
        """Return this table with the keys of a table of the file over its own.

        Args:
            values: as in the file.
            source: name of the file.
            table: name of the table in it, such as ``tenants.acme.policy``.
            text: of the file.

        Raises:
            ConfigurationError: a key is unknown or has a wrong value; the sentence names file, table and key.
        """
        try:
            made = type(self).model_validate(self.model_dump() | dict(values))
        except ValidationError as error:
            problems = describe(error, type(self), text, table=tuple(table.split(".")))
            raise ConfigurationError(f"{source} [{table}] {problems}") from error
        made._origins = self._origins | {key: f"{source} [{table}] {key}" for key in values}
        return made


class Policy(PolicyTable):
    """What clients of a tenant may ask for.  Operators are bound by none of it."""

    isolations: tuple[Isolation, ...] = Field(default=("gvisor",), strict=False)
    """Isolations that a spec may name."""
    runtimes: tuple[RuntimeName, ...] = Field(default=("runsc", "docker"), strict=False)
    """Runtimes that a spec may name; one that names none is not restricted."""
    capabilities: tuple[Annotated[Capability, AfterValidator(_plain_capability)], ...] = Field(default=(), strict=False)
    """Capabilities that a sandbox may keep or add; ``ALL``: every one.  With runc, those that reach the host never."""
    root: tuple[Isolation, ...] = Field(default=("gvisor",), strict=False)
    """Isolations in which processes may run as root, or become it through setuid programs."""
    images: tuple[ImagePattern, ...] = Field(default=("*",), strict=False, max_length=MAX_PATTERNS)
    """Patterns of whole names, ``registry/repository:tag``; of an id, the id itself."""
    registries: tuple[RegistryPattern, ...] = Field(default=("*",), strict=False, max_length=MAX_PATTERNS)
    """Patterns of registries, ``host`` or ``host:port``; private and loopback addresses must be named in full."""
    networks: tuple[Network, ...] = Field(default=("none", "bridge"), strict=False)
    """Networks that a spec may ask for."""
    gpus: Count = None
    """Most GPUs of one sandbox."""
    max_ttl_seconds: Seconds = None
    """Longest ttl that a spec may ask for."""
    default_ttl_seconds: Seconds = None
    """Ttl of a sandbox whose spec names none; without it the longest allowed."""
    max_idle_seconds: Seconds = None
    """Longest idle time that a spec may ask for; with it, a spec has to name one."""
    max_cpus: Amount = None
    """Most cores of one sandbox."""
    max_memory_mb: Count = None
    """Most MiB of memory of one sandbox."""
    max_disk_mb: Count = None
    """Most MiB of disk of one sandbox."""

    @property
    def ttl_without_one(self) -> int | None:
        """Seconds that a sandbox lives whose spec names no ttl; ``None``: until it is deleted."""
        return self.max_ttl_seconds if self.default_ttl_seconds is None else self.default_ttl_seconds

    @model_validator(mode="after")
    def _default_within_maximum(self) -> Self:
        longest, default = self.max_ttl_seconds, self.default_ttl_seconds
        if longest is not None and default is not None and default > longest:
            raise ValueError(f"default_ttl_seconds: {default} is more than max_ttl_seconds, which is {longest}")
        return self


class Quota(PolicyTable):
    """How much a tenant may have at once, all its clients together; ``None`` sets no limit.  Operators have none."""

    sandboxes: Count = None
    """Sandboxes that have not ended, those that wait for room included."""
    cpus: Amount = None
    """Cores of all its sandboxes."""
    memory_mb: Count = None
    """MiB of memory of all its sandboxes."""
    disk_mb: Count = None
    """MiB of disk of all its sandboxes; one that has ended keeps its own until it is deleted."""
    gpus: Count = None
    """GPUs of all its sandboxes."""
    creates_per_second: Amount = None
    """Creates a second, on average; one second's worth may come at once."""
    prepared_units: Count = None
    """Unclaimed units of prepared capacity, sandboxes and builders together."""


Table = TypeVar("Table", Policy, Quota)


class _Tables(BaseModel):
    """The tables of one tenant, or of everybody, as they are in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    policy: dict[str, object] = {}
    quota: dict[str, object] = {}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    default: _Tables = _Tables()
    tenants: dict[TenantName, _Tables] = {}


class Policies:
    """The policy and the quota of every tenant."""

    def __init__(
        self, default: tuple[Policy, Quota] | None = None, tenants: Mapping[str, tuple[Policy, Quota]] | None = None
    ) -> None:
        self._default = default or (Policy(), Quota())
        self._tenants = dict(tenants or {})

    def of(self, tenant: str) -> tuple[Policy, Quota]:
        """Return what holds for a tenant; one that the file does not name has the defaults."""
        return self._tenants.get(tenant, self._default)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy of the file, the default one first."""
        return (self._default[0], *(policy for policy, _ in self._tenants.values()))

    @property
    def tenants(self) -> tuple[str, ...]:
        """Names of the tenants with tables of their own, sorted."""
        return tuple(sorted(self._tenants))

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Read the text of a policy file.

        Args:
            text: TOML.
            source: name of the file, for errors and for `PolicyTable.where`.

        Raises:
            ConfigurationError: it is not TOML, or a table, a key or a value is wrong; the sentence names it.
        """
        try:
            file = _File.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{source}: {error}") from error
        except ValidationError as error:
            raise ConfigurationError(f"{source}: {describe(error, _File, text)}") from error
        default = _over((Policy(), Quota()), file.default, source, "default", text)
        tenants = {name: _over(default, own, source, f"tenants.{name}", text) for name, own in file.tenants.items()}
        return cls(default, tenants)


def _over(base: tuple[Policy, Quota], tables: _Tables, source: str, prefix: str, text: str) -> tuple[Policy, Quota]:
    return (
        base[0].overridden(tables.policy, source, f"{prefix}.policy", text),
        base[1].overridden(tables.quota, source, f"{prefix}.quota", text),
    )
