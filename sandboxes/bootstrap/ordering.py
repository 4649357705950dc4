"""One order to a cloud that knows no unique names: never sent again while the last one may still come through."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from providers.base import OPERATION_LABEL, Applied, ComputeProvider, Create, ErrorKind, Instance, Phase, ProviderError
from sandboxes.errors import CommandFailed

POLL_SECONDS: Final = 5.0
SIGHTINGS_SECONDS: Final = 10.0
"""Between two sightings of a job: one that was seen once may still be taken back."""
TELL_SECONDS: Final = 15.0
PASSING: Final = frozenset({ErrorKind.TRANSIENT, ErrorKind.BUSY, ErrorKind.RATE_LIMIT, ErrorKind.BUG})


class Note:
    """The order that may be under way, in a file: written before it is sent, removed when its outcome is known."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def age(self, operation: str | None = None) -> float | None:
        """Seconds since an order was sent of which nobody knows what came of it; ``None`` for no such order.

        Args:
            operation: asks for that order only.
        """
        try:
            noted = json.loads(self._path.read_text())
            age = max(0.0, time.time() - float(noted["sent_at"]))
            return age if operation in (None, noted["operation"]) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{self._path} cannot be read ({error}); if no order was sent in the last minutes, remove it"
            raise CommandFailed(message) from error

    def write(self, operation: str) -> None:
        """The order is about to be sent."""
        try:
            self._path.write_text(json.dumps({"operation": operation, "sent_at": time.time()}) + "\n")
        except OSError as error:
            message = f"the order cannot be noted, so it was not sent: {error}; make that directory writable"
            raise CommandFailed(message) from error

    def remove(self) -> None:
        """Its outcome is known."""
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Ordering:
    """Sends an order until it is known what came of it.

    Attributes:
        provider: of the cloud.
        note: of what was sent.
        tell: takes a line about how it goes.
    """

    provider: ComputeProvider
    note: Note
    tell: Callable[[str], None]

    def place(self, want: Create, within: float) -> Instance:
        """The instance of an order, new or found again.

        Args:
            want: the order; the same at every call.
            within: seconds in which it is to be known.

        Raises:
            ProviderError: it was refused, and nothing was made.
            CommandFailed: the time is over; the same command goes on.
        """
        deadline = time.monotonic() + within
        while True:
            age = self.note.age(want.operation_id)
            if age is not None and (found := self._settled(want, age, deadline)) is not None:
                self.note.remove()
                return found
            self.note.write(want.operation_id)
            try:
                made = self.provider.create(want)
            except ProviderError as error:
                if error.applied is Applied.NO:
                    self.note.remove()
                    raise
                self.tell(f"it is not known whether the order came through: {error}")
                continue
            self.note.remove()
            return made

    def _settled(self, want: Create, age: float, deadline: float) -> Instance | None:
        """What came of the last order, sent ``age`` seconds ago; ``None`` once it is sure that nothing did."""
        over = time.monotonic() + self.provider.caps.settle_seconds - age
        first_seen: float | None = None
        absent, told_at = 0, float("-inf")
        while True:
            found, problem = self._look(want)
            now = time.monotonic()
            if found is not None:
                absent = 0
                first_seen = first_seen if first_seen is not None else now
                if now - first_seen >= SIGHTINGS_SECONDS:
                    return found
            elif not problem:
                first_seen = None
                absent += now >= over
                if absent > 1:
                    self.tell("nothing came of it, so it is ordered again")
                    return None
            if now >= deadline:
                raise CommandFailed(
                    f"the answer to the order was lost, and whether it came through shows {max(0.0, over - now):.0f} s"
                    " from now; nothing is ordered until then, so run this again to go on"
                )
            if now - told_at >= TELL_SECONDS:
                told_at = now
                seen = "a machine is seen, and shall be seen once more" if found is not None else problem
                rest = f"it is ordered again {max(0.0, over - now):.0f} s from now at the earliest"
                self.tell(f"looking for what came of the order; {seen or rest}")
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - now)))

    def _look(self, want: Create) -> tuple[Instance | None, str]:
        """The order's instance in a complete listing, or why there is no listing."""
        try:
            listed = self.provider.list().instances
        except ProviderError as error:
            if error.kind not in PASSING:
                raise
            return None, f"the cloud does not answer: {error}"
        mine = [each for each in listed if each.labels.get(OPERATION_LABEL) == want.operation_id]
        return min(mine, key=lambda each: each.phase is Phase.GONE, default=None), ""
