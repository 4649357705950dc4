"""Ways to find things in a `World` without walking through it again and again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from autoscaler.core import naming
from autoscaler.core.model import Intent, Node, ProviderView, World
from providers.base import Instance, Phase

WORDS_MOST: Final = 300
"""Letters of a provider's own words that go into a reason."""


class Listed:
    """The instances of one provider that are not gone, by the operation that made them, the oldest first."""

    def __init__(self, view: ProviderView) -> None:
        found: defaultdict[str | None, list[Instance]] = defaultdict(list)
        self._ended: dict[str | None, Instance] = {}
        for instance in view.instances or ():
            if instance.phase is not Phase.GONE:
                found[naming.operation_of(instance)].append(instance)
            else:
                self._ended[naming.operation_of(instance)] = instance
        for several in found.values():
            if len(several) > 1:
                several.sort(key=lambda instance: (instance.created_at, instance.id))
        self._found = dict(found)

    def of(self, operation_id: str | None) -> list[Instance]:
        """All of one operation."""
        return self._found.get(operation_id, [])

    def first(self, operation_id: str) -> Instance | None:
        """The one that its row stands for."""
        return next(iter(self.of(operation_id)), None)

    def ended(self, operation_id: str) -> Instance | None:
        """One that is gone, where the provider goes on listing what is."""
        return self._ended.get(operation_id)


def listed(world: World) -> Mapping[str, Listed]:
    """One for each provider that can be seen."""
    return {name: Listed(view) for name, view in world.providers.items() if view.instances is not None}


def nodes_by_instance(world: World) -> dict[str, Node]:
    """The gateway's nodes by the name of the instance behind each."""
    return {node.instance: node for node in world.nodes or ()}


def node_of(intent: Intent, nodes: Mapping[str, Node]) -> Node | None:
    """The node of one row; never one that another order of the same name has made."""
    node = nodes.get(intent.name)
    return None if node is not None and node.operation_id not in (None, intent.operation_id) else node


def rows_by_pool(intents: Iterable[Intent]) -> dict[str, list[Intent]]:
    """Rows by the name of their pool."""
    found: defaultdict[str, list[Intent]] = defaultdict(list)
    for intent in intents:
        found[intent.pool].append(intent)
    return dict(found)


def said(instance: Instance | None) -> str:
    """What the provider said of an instance last, to be put after a reason; the start of it where it is long."""
    text = " ".join(instance.detail.split()) if instance is not None else ""
    if not text:
        return ""
    return f"; the provider's last word: {text if len(text) <= WORDS_MOST else text[:WORDS_MOST] + ' …'}"
