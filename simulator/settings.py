"""The configuration of a simulation: the autoscaler's own settings file, and a table on what the cloud is like."""

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autoscaler.settings import AutoscalerSettings
from gateway.wire.settings import ConfigurationError
from providers.base import Billing, Offer, Resources
from simulator.trace import Spread, problems

TABLE: Final = "simulation"
BILLINGS: Final = (Billing.PER_SECOND, Billing.HOURLY_ROUND_UP)
_UNUSED: Final = {"gateway_url": "http://gateway.invalid", "token_file": "none"}
"""Settings that a simulation has no use for, where the file leaves them out."""


class SimulatedOffer(BaseModel):
    """Something that the simulated cloud sells."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    location: str
    cpus: float = Field(gt=0)
    memory_mb: int = Field(gt=0)
    disk_mb: int = Field(gt=0)
    gpus: int = Field(default=0, ge=0)
    price: Annotated[Decimal, Field(gt=0, strict=False)]
    """Euro an hour, net."""
    stock: int | None = Field(default=None, ge=0)
    """Most instances of it at once; the next create is refused for lack of capacity.  ``None`` is no end."""

    def offer(self) -> Offer:
        """Return it as a provider lists it."""
        has = Resources(self.cpus, self.memory_mb, self.disk_mb, self.gpus)
        return Offer(self.type, self.location, has, self.price, available=True)


class CloudSettings(BaseModel):
    """What a provider of the settings is like."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    offers: tuple[SimulatedOffer, ...] = Field(min_length=1)
    billing: Billing = Field(default=Billing.PER_SECOND, strict=False)
    """``hourly_round_up`` charges every started hour of an instance."""
    boot: Spread = Spread(median=40.0, sigma=0.06)
    """From the accepted order to the running instance."""
    join: Spread = Spread(median=30.0, sigma=0.06)
    """From there to the node's first heartbeat."""
    delete_seconds: float = Field(default=5.0, ge=0)
    """How long a deleted instance is still listed, and paid for."""
    refusals: float = Field(default=0.0, ge=0, lt=1)
    """Share of orders that are refused for lack of capacity."""
    boot_failures: float = Field(default=0.0, ge=0, lt=1)
    """Share of instances that run and never register."""

    @field_validator("billing")
    @classmethod
    def _can_be_billed(cls, billing: Billing) -> Billing:
        if billing not in BILLINGS:
            raise ValueError(f"what is {billing.value} has no bill to simulate; choose {' or '.join(BILLINGS)}")
        return billing

    @property
    def boot_seconds(self) -> float:
        """Median time from the order to the node."""
        return self.boot.median + self.join.median


class SimulationSettings(BaseModel):
    """The table ``simulation`` of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    providers: dict[str, CloudSettings] = {}
    """One for each provider that pools name."""
    seed: int = 1
    """Of boot times and refusals."""
    heartbeat_seconds: float = Field(default=5.0, gt=0)
    """Between two heartbeats of a node."""
    builds_per_node: int = Field(default=2, ge=1)
    """Builds that a builder runs at once."""
    tail_seconds: float = Field(default=7200.0, ge=0)
    """How long the run goes on at most while nothing moves."""


class Setup(BaseModel):
    """Both halves of the file."""

    model_config = ConfigDict(frozen=True)

    autoscaler: AutoscalerSettings
    simulation: SimulationSettings

    def billed(self, billing: Billing) -> "Setup":
        """Return the same setup under providers that charge like this.

        Raises:
            ConfigurationError: no bill can be simulated for it.
        """
        if billing not in BILLINGS:
            raise ConfigurationError(
                f"--billing {billing.value}: it has no bill to simulate; choose {' or '.join(BILLINGS)}"
            )
        changes = {"billing": billing}
        clouds = {name: cloud.model_copy(update=changes) for name, cloud in self.simulation.providers.items()}
        return self.model_copy(update={"simulation": self.simulation.model_copy(update={"providers": clouds})})

    @model_validator(mode="after")
    def _every_provider_is_described(self) -> Self:
        used = {pool.provider for pool in self.autoscaler.pools}
        if not used:
            raise ValueError("pools: there is none, so there is nothing to scale")
        if unknown := sorted(used - set(self.simulation.providers)):
            raise ValueError(
                f"[{TABLE}.providers.{unknown[0]}] is missing; it says what the cloud sells and how it boots"
            )
        return self


def load(path: Path) -> Setup:
    """Read a configuration file.

    Raises:
        ConfigurationError: it cannot be read, or a key is unknown, missing or has a wrong value.
    """
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"configuration file {path}: {error}") from error
    simulation = values.pop(TABLE, {})
    described = simulation.get("providers", {}) if isinstance(simulation, dict) else {}
    values.setdefault("providers", {name: {} for name in described})
    halves: dict[str, BaseModel] = {}
    wrong: list[str] = []
    for name, model, given in (
        ("autoscaler", AutoscalerSettings, _UNUSED | values),
        (TABLE, SimulationSettings, simulation),
    ):
        try:
            halves[name] = model.model_validate(given)
        except ValidationError as error:
            wrong.append(problems(error, within=TABLE if name == TABLE else ""))
    if not wrong:
        try:
            return Setup.model_validate(halves)
        except ValidationError as error:
            wrong.append(problems(error))
    raise ConfigurationError(f"configuration file {path}: {'; '.join(wrong)}")
