"""Nodes that the gateway has forgotten: one by one they are lost; all at once, the gateway itself has lost something.

A gateway that was started over an empty database knows no node.  Were its word taken at once, the whole fleet would be
deleted before anybody could put the right database back.
"""

from typing import Final

from autoscaler.core.lookup import node_of, nodes_by_instance
from autoscaler.core.model import FleetPolicy, Wait, WaitKind, World
from autoscaler.core.states import IntentState

MANY: Final = 3
"""So many forgotten nodes are still taken for single ones; the cluster autoscaler's bounds for an unhealthy cluster."""
SHARE: Final = 0.45
"""Part of all nodes that may be forgotten at once."""
_WITH_NODE: Final = frozenset({IntentState.READY, IntentState.DRAINING})


def forgotten(world: World, policy: FleetPolicy) -> frozenset[str]:
    """Operations whose node is taken for lost because the gateway does not know it, twice in a row.

    Of many at once, only those that it has not known for `FleetPolicy.silent_seconds`.
    """
    unknown = _unknown(world)
    if not _are_too_many(world, unknown):
        return unknown
    return frozenset(each for each in unknown if world.unknown_nodes_before[each] >= policy.silent_seconds)


def warning(world: World, policy: FleetPolicy) -> Wait | None:
    """What a person should look at while the gateway's word is not taken."""
    unknown = _unknown(world)
    if not _are_too_many(world, unknown) or not unknown - forgotten(world, policy):
        return None
    return Wait(
        "fleet",
        WaitKind.GATEWAY_AMNESIA,
        f"the gateway does not know {len(unknown)} nodes any more, so it may have lost its database; "
        f"their instances are kept for {policy.silent_seconds:.0f} s; look at the gateway",
    )


def _unknown(world: World) -> frozenset[str]:
    if world.nodes is None or not world.unknown_nodes_before:
        return frozenset()
    nodes = nodes_by_instance(world)
    return frozenset(
        intent.operation_id
        for intent in world.intents
        if intent.state in _WITH_NODE
        and intent.operation_id in world.unknown_nodes_before
        and node_of(intent, nodes) is None
    )


def _are_too_many(world: World, unknown: frozenset[str]) -> bool:
    every = sum(1 for intent in world.intents if intent.state in _WITH_NODE)
    return len(unknown) > MANY and len(unknown) > SHARE * every
