"""What has lasted for how long, from one look to the next."""

from collections.abc import Iterable


class Lasting:
    """Remembers since when each thing has been seen without a break, on monotonic time."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}

    def seen(self, where: str, things: Iterable[str], now: float) -> dict[str, float]:
        """Takes a new look at one place; what it lacks is forgotten.

        Returns:
            The seconds for which each thing that it has was there in every look.
        """
        before = self._since.get(where, {})
        self._since[where] = {thing: before.get(thing, now) for thing in things}
        return {thing: now - since for thing, since in self._since[where].items()}
