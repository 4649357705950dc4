"""Whether this node takes one more sandbox."""

from collections.abc import Iterable

from gateway.wire.resources import Shape


def reserved(shapes: Iterable[Shape]) -> Shape:
    """The sum of what the given sandboxes hold."""
    total = Shape()
    for shape in shapes:
        total = total + shape
    return total


def disk_is_short(*, free_mb: int, least_mb: int, was_short: bool) -> bool:
    """Whether the host's disk is too full for one more sandbox.

    Args:
        free_mb: MiB free now.
        least_mb: below this it becomes short; from twice as much on it is not any more.
        was_short: whether it was at the last look.
    """
    return free_mb < (2 * least_mb if was_short else least_mb)


def refusal(*, total: Shape, held: Shape, wanted: Shape, draining: bool) -> str | None:
    """Why a sandbox of shape ``wanted`` is refused, as a sentence; ``None`` when it is taken.

    Args:
        total: what the node may give away.
        held: what the sandboxes that are there hold, without the one that ``wanted`` replaces.
        wanted: what the new one asks for.
        draining: whether the node takes nothing new.
    """
    if draining:
        return "this node is draining and takes no new sandbox; place it on another one"
    free = total.minus(held)
    short = wanted.shortfalls(free)
    if not short:
        return None
    details = ", ".join(f"{name} {getattr(wanted, name):.15g} of {getattr(free, name):.15g} free" for name in short)
    return f"this node has no room: {details}"
