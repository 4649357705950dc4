"""What operators are shown: a plan as sentences, and what each pool may buy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from autoscaler.core.actions import (
    Action,
    Adopt,
    Boot,
    BootExtended,
    BootStarted,
    CancelDrain,
    Drain,
    Finding,
    Forget,
    Learn,
    Move,
    Retry,
    Stop,
    Sweep,
)
from autoscaler.core.doubts import Doubt
from autoscaler.core.offers import missing_offers, offers_for
from autoscaler.core.pools import PoolPolicy
from providers import registry
from providers.base import ComputeProvider, Offer, ProviderError

# -- a plan -----------------------------------------------------------------------------------------------------------


def action(value: Action, names: Mapping[str, str]) -> str:
    """Return what an action does.

    Args:
        value: one action of a plan.
        names: of instances, by operation id.
    """
    match value:
        case Boot():
            price = f"{euros(value.price)} €/h" if value.price is not None else "price unknown"
            offer = f"{value.offer} of {value.provider}, {price}"
            return f"boot a node of pool {value.pool}: {offer}, {value.seconds:g} s to run"
        case Retry():
            return f"create instance {_name(value.operation_id, names)}"
        case Drain():
            return f"close node {value.node_id} of {_name(value.operation_id, names)} to new sandboxes"
        case CancelDrain():
            return f"open node {value.node_id} of {_name(value.operation_id, names)} again"
        case Stop():
            return f"delete instance {_name(value.operation_id, names)}"
        case Sweep():
            return f"delete {value.instance_id} at {value.provider}"
        case Forget():
            return f"forget node {value.node_id}"


def finding(value: Finding, names: Mapping[str, str]) -> str:
    """Return what has become clear; see `action` for the arguments."""
    match value:
        case Move():
            return f"instance {_name(value.operation_id, names)} is {value.to.value}"
        case BootStarted():
            return f"instance {_name(value.operation_id, names)} runs; its node must register by {time(value.deadline)}"
        case BootExtended():
            return f"instance {_name(value.operation_id, names)} is still booting; it has until {time(value.deadline)}"
        case Adopt():
            return f"instance {value.intent.name} of pool {value.intent.pool} is adopted"
        case Learn():
            has = value.shape
            gpus = f", {has.gpus} GPUs" if has.gpus else ""
            room = f"{has.cpus:g} CPUs, {has.memory_mb} MiB, {has.disk_mb} MiB disk{gpus}"
            return f"a node of pool {value.pool} on {value.type} has {room}"
        case Doubt():
            return f"{value.subject} is left out"


def euros(amount: Decimal | None) -> str:
    """Return an amount without trailing zeros."""
    return "unknown" if amount is None else f"{amount.normalize():f}"


def time(seconds: float) -> str:
    """Return a moment in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _name(operation: str, names: Mapping[str, str]) -> str:
    return names.get(operation, operation)


# -- what pools may buy -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoolMarket:
    """What one pool may buy of what its provider sells now."""

    offers: tuple[Offer, ...] = ()
    problem: str = ""
    """Why that is nothing, or less than the pool names."""


def market(
    pools: Sequence[PoolPolicy], providers: Mapping[str, ComputeProvider], reasons: Mapping[str, str]
) -> dict[str, PoolMarket]:
    """Return what each pool may buy, by its name; needs no gateway and no journal, and asks each provider once.

    Args:
        pools: of the settings.
        providers: those that could be made.
        reasons: why the others could not.
    """
    asked = {pool.provider for pool in pools} & providers.keys()
    sold = {name: _offers_of(name, providers[name]) for name in asked}
    return {pool.name: _of_pool(pool, sold.get(pool.provider, reasons.get(pool.provider, ""))) for pool in pools}


def _offers_of(name: str, provider: ComputeProvider) -> list[Offer] | str:
    """Return the offers, or a sentence why there are none."""
    try:
        return provider.offers()
    except ProviderError as error:
        return f"{name} cannot be asked: {error}"
    except Exception as error:  # noqa: BLE001 - a plugin's own: its author looks at this
        return f"{name} is broken: {registry.describe(error)}"


def _of_pool(pool: PoolPolicy, sold: list[Offer] | str) -> PoolMarket:
    if isinstance(sold, str):
        return PoolMarket(problem=sold)
    return PoolMarket(tuple(offers_for(pool, sold)), missing_offers(pool, sold))
