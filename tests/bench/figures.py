"""What was measured: samples in, medians, percentiles and ratios out.  Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

SERVICE: Final = "service"
PLAN_AIM_MS: Final = 50.0
"""Of a plan at the median."""


@dataclass(frozen=True)
class Summary:
    """One contender's samples of one measure, in the measure's unit."""

    median: float
    p95: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Summary":
        """Summarise at least one sample.  The 95th percentile is the smallest sample that 95 % do not exceed."""
        ordered = sorted(samples)
        rank = -(-95 * len(ordered) // 100)  # rounded up
        return cls(median(ordered), ordered[rank - 1], len(ordered))


@dataclass(frozen=True)
class Measure:
    """One measure over all contenders that took part."""

    name: str
    unit: str
    by: Mapping[str, Summary]

    def ratio(self, contender: str) -> float | None:
        """Return the service's median over that contender's; ``None`` where one of the two did not take part."""
        if SERVICE not in self.by or contender not in self.by or not self.by[contender].median:
            return None
        return self.by[SERVICE].median / self.by[contender].median

    def as_json(self) -> dict[str, Any]:
        """Return summaries and ratios by contender, for programs."""
        others = [name for name in self.by if name != SERVICE]
        return {
            "name": self.name,
            "unit": self.unit,
            "by": {name: asdict(summary) for name, summary in self.by.items()},
            "service_over": {name: self.ratio(name) for name in others},
        }


@dataclass(frozen=True)
class PlanTime:
    """One case of the plan's bench, in milliseconds."""

    case: str
    wall: Summary
    cpu: Summary
    tenth: Summary
    """Processor time with a tenth of the nodes and of the demand."""

    @property
    def growth(self) -> float:
        """Processor time over that of a tenth of the size; 10 is linear."""
        return self.cpu.median / self.tenth.median

    def as_json(self) -> dict[str, Any]:
        """Return the figures for programs."""
        return {**asdict(self), "growth": self.growth, "aim_ms": PLAN_AIM_MS}
