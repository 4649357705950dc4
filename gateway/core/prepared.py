"""Capacity that was asked for ahead, and which create takes a unit of it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName, SandboxSpec


class PreparedKind(StrEnum):
    """What is prepared."""

    SANDBOX = "sandbox"
    BUILDER = "builder"


@dataclass(frozen=True)
class Prepared:
    """Units of one kind, as the store has them."""

    id: str
    kind: PreparedKind
    shape: Shape
    count: int
    """Units that nobody has claimed yet."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    image: str | None = None
    batch: str = ""
    """Names these units; asking again under the same id makes others, which nobody has claimed."""

    @property
    def total(self) -> Shape:
        """All units together."""
        return self.shape.times(self.count)

    def is_for(self, spec: SandboxSpec) -> bool:
        """Whether a create of ``spec`` takes a unit: the same shape and engine, and the same image where one is named.

        An engine that either side leaves open is no difference.
        """
        engines = {self.runtime, spec.chosen_runtime} - {None}
        return (
            self.kind is PreparedKind.SANDBOX
            and spec.shape.fits(self.shape)
            and self.shape.fits(spec.shape)
            and len(engines) <= 1
            and self.isolation == spec.isolation
            and self.image in {None, spec.image}
        )
