"""Actions and findings as sentences, for people who look at a plan."""

from collections.abc import Mapping
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


def action(value: Action, names: Mapping[str, str]) -> str:
    """What is to be done.

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
            return f"order {_name(value.operation_id, names)} under its name"
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
    """What has become clear; see `action` for the arguments."""
    match value:
        case Move():
            return f"instance {_name(value.operation_id, names)} is {value.to.value}"
        case BootStarted():
            return f"instance {_name(value.operation_id, names)} runs; its node must register by {time(value.deadline)}"
        case BootExtended():
            return f"instance {_name(value.operation_id, names)} goes on booting; it has until {time(value.deadline)}"
        case Adopt():
            return f"instance {value.intent.name} of pool {value.intent.pool} gets its row back"
        case Learn():
            has = value.shape
            gpus = f", {has.gpus} GPUs" if has.gpus else ""
            room = f"{has.cpus:g} CPUs, {has.memory_mb} MiB, {has.disk_mb} MiB disk{gpus}"
            return f"a node of pool {value.pool} on {value.type} has {room}"


def euros(amount: Decimal | None) -> str:
    """Without trailing zeros."""
    return "unknown" if amount is None else f"{amount.normalize():f}"


def time(seconds: float) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _name(operation: str, names: Mapping[str, str]) -> str:
    return names.get(operation, operation)
