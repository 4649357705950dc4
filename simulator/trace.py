"""Demand over time: batches of equal jobs, and the single jobs that they stand for.

Drawing is deterministic, so that a trace file of a few kilobytes (`simulator.tracefile`) stands for a whole
day.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from simulator import amounts
from simulator.amounts import Amounts

MOST_JOBS: Final = 1_000_000
_NORMAL: Final = NormalDist()


class Spread(BaseModel):
    """Seconds drawn from a log-normal distribution: most are near the median, some take much longer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    median: float = Field(gt=0)
    sigma: float = Field(default=0.0, ge=0, le=3)
    """Standard deviation of the logarithm; 0.1 is about ten percent."""
    least: float = Field(default=0.0, ge=0)
    most: float = Field(default=float("inf"), gt=0)

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"'least' is {self.least:g}, more than 'most', which is {self.most:g}")
        return self

    def draw(self, chance: random.Random) -> float:
        """One of them.  Uses nothing of ``chance`` but ``random()``, whose numbers are the same in every Python."""
        drawn = self.median
        if self.sigma:
            drawn = _NORMAL.inv_cdf(min(max(chance.random(), 1e-12), 1 - 1e-12)) * self.sigma
            drawn = self.median * 2.718281828459045**drawn
        return min(max(drawn, self.least), self.most)


class Batch(BaseModel):
    """Equal jobs that come together or spread over a while."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds from the start of the trace; with ``after``, from the end of that build."""
    count: int = Field(default=1, ge=1, le=MOST_JOBS)
    over: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """They come at random moments within so many seconds."""
    seconds: Spread
    """How long each runs once it has room."""
    kind: str = Field(default="sandbox", pattern="^(sandbox|build)$")
    """A build takes a place on a builder node, and no shape."""
    name: str = ""
    """Of a build, so that other batches can come ``after`` it."""
    after: str = ""
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: int = Field(default=1024, ge=1)
    disk_mb: int = Field(default=4096, ge=0)
    gpus: int = Field(default=0, ge=0)
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    ahead: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The client prepares capacity for the whole batch so many seconds before it comes."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.name and (self.kind != "build" or self.count > 1):
            raise ValueError("only a single build has a name")
        if self.ahead and (self.after or self.kind == "build"):
            raise ValueError("only sandboxes with a fixed time can be prepared for")
        return self

    @property
    def shape(self) -> Shape:
        """What one of them needs."""
        return Shape(cpus=self.cpus, memory_mb=self.memory_mb, disk_mb=self.disk_mb, gpus=self.gpus, slots=1)


@dataclass(frozen=True)
class Job:
    """One sandbox or one build."""

    id: str
    at: float
    """When it is asked for; with ``after``, seconds after that build has ended."""
    seconds: float
    shape: Shape
    batch: Batch

    @property
    def is_build(self) -> bool:
        """Whether it runs on a builder."""
        return self.batch.kind == "build"

    @cached_property
    def needs(self) -> Amounts:
        """What it takes while it runs."""
        return amounts.ONE_BUILD if self.is_build else amounts.of_shape(self.shape)


@dataclass(frozen=True)
class Trace:
    """A named list of batches."""

    name: str
    seed: int
    batches: tuple[Batch, ...]

    def jobs(self) -> tuple[Job, ...]:
        """All jobs, always the same ones, in the order of their batches."""
        chance = random.Random(self.seed)  # noqa: S311 - it has to be repeatable
        found: list[Job] = []
        for number, batch in enumerate(self.batches, start=1):
            shape = batch.shape
            for each in range(batch.count):
                at = batch.at + (batch.over * chance.random() if batch.over else 0.0)
                found.append(Job(f"j{number}-{each + 1}", at, batch.seconds.draw(chance), shape, batch))
        return tuple(found)


def earliest(jobs: Sequence[Job]) -> list[tuple[float, int]]:
    """For each job the moment at which it starts if nothing ever waits, and how many builds come before it."""
    builds = {job.batch.name: job for job in jobs if job.batch.name}
    ends: dict[str, tuple[float, int]] = {"": (0.0, 0)}
    for name in builds:
        chain = []
        while name not in ends:
            chain.append(builds[name])
            name = builds[name].batch.after
        for build in reversed(chain):
            end, before = ends[build.batch.after]
            ends[build.batch.name] = (end + build.at + build.seconds, before + 1)
    return [(ends[job.batch.after][0] + job.at, ends[job.batch.after][1]) for job in jobs]
