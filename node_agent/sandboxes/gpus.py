"""Which of the node's GPUs a sandbox gets: pure, decided once, when its order is accepted.

Docker's own ``--gpus 1`` is the first device for everybody, and one that is named twice is passed on twice.  So the
node chooses by name, and the engine is given names alone.  A GPU is one sandbox's until that has ended, paused or not.

Instances that MIG made of a GPU are held one by one, and never beside their whole GPU.  The UUID of an instance does
not tell which GPU it is of, so it is taken to be of any.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gateway.wire.errors import ErrorCode
from gateway.wire.resources import ALL_GPUS, devices_of
from node_agent.errors import NodeError, bad_field
from node_agent.host.machine import Gpu


@dataclass(frozen=True)
class _Part:
    """A GPU, or a part of one.

    Attributes:
        gpu: number of the GPU; ``None`` where that is unknown.
        instance: the part; ``None`` for all of it.
    """

    gpu: int | None
    instance: str | None = None

    def overlaps(self, other: "_Part") -> bool:
        """Return whether both may have a device in common."""
        if self.gpu is None and other.gpu is None:
            return self.instance == other.instance
        if self.gpu is None or other.gpu is None:
            return True
        return self.gpu == other.gpu and (None in {self.instance, other.instance} or self.instance == other.instance)


def choose_gpus(
    asked: int | str, gpus: Sequence[Gpu], held: Iterable[str], former: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the names of the devices that a sandbox gets.

    Args:
        asked: ``gpus`` of its spec.
        gpus: those of the node.
        held: names of the devices that other sandboxes hold.
        former: names of those that its earlier generation had, which it keeps if it can.

    Raises:
        NodeError: ``NODE_REFUSED`` where others hold what it needs, as another node may have it free; ``CAPACITY``
            where the node has no such device; ``INVALID_REQUEST`` where it names one device in two ways.
    """
    parts = [_part(name, gpus) for name in held]
    if devices_of(asked):
        return _named(devices_of(asked), gpus, parts)
    free = [gpu for gpu in gpus if not any(_Part(gpu.number).overlaps(part) for part in parts)]
    free.sort(key=lambda gpu: (gpu.name not in former, gpu.number))
    count = len(gpus) if asked == ALL_GPUS else int(asked)
    if count > len(free):
        raise NodeError(
            ErrorCode.NODE_REFUSED, f"this node has no room: gpus={asked!r} of {len(free)} free, {len(gpus)} in all"
        )
    return tuple(gpu.name for gpu in sorted(free[:count], key=lambda gpu: gpu.number))


def _named(names: Sequence[str], gpus: Sequence[Gpu], held: Sequence[_Part]) -> tuple[str, ...]:
    """Return the devices of a request that names them, once each of them is known to be there and free."""
    taken: list[_Part] = []
    for name in names:
        part = _part(name, gpus)
        if part.gpu is None and not name.startswith("MIG-"):
            raise NodeError(ErrorCode.CAPACITY, f"gpus: this node has no GPU {name}; it has {_listed(gpus)}")
        if part.gpu is not None and any(part.overlaps(other) for other in taken if other.gpu is not None):
            raise bad_field("spec.gpus", f"{name} names a device of GPU {part.gpu} that is named before")
        if any(part.overlaps(other) for other in held):
            raise NodeError(ErrorCode.NODE_REFUSED, f"this node has no room: another sandbox holds GPU {name}")
        taken.append(part)
    return tuple(_engine_name(name, gpus) for name in names)


def _part(name: str, gpus: Sequence[Gpu]) -> _Part:
    """Return what a name stands for; the GPU is ``None`` where the node has none of that name."""
    whole, _, instance = name.partition(":")
    number = next((gpu.number for gpu in gpus if whole in {str(gpu.number), gpu.uuid}), None)
    return _Part(None, name) if number is None else _Part(number, instance or None)


def _engine_name(name: str, gpus: Sequence[Gpu]) -> str:
    """Return the name that the engine is given: one that no reordering of the host's devices makes another's."""
    return next((gpu.name for gpu in gpus if name == str(gpu.number)), name)


def _listed(gpus: Sequence[Gpu]) -> str:
    return ", ".join(str(gpu.number) for gpu in gpus) or "none"
