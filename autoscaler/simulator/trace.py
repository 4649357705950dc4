"""Demand over time: what a trace file says, and the single jobs that it stands for.

A trace is JSON Lines.  The first line names it and holds its seed; each other line is a `Batch`: so many equal jobs
that come within so many seconds.  Drawing is deterministic, so that a file of a few kilobytes stands for a whole day.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autoscaler.simulator import amounts
from autoscaler.simulator.amounts import Amounts
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName

SUFFIX: Final = ".jsonl"
MOST_JOBS: Final = 1_000_000
_NORMAL: Final = NormalDist()


class TraceError(Exception):
    """A trace cannot be played; the sentence says which line, and why."""


class Spread(BaseModel):
    """Seconds drawn from a log-normal distribution: most are near the median, some take much longer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    median: float = Field(gt=0)
    sigma: float = Field(default=0.0, ge=0, le=3)
    """Standard deviation of the logarithm; 0.1 is about ten percent."""
    least: float = Field(default=0.0, ge=0)
    most: float = Field(default=float("inf"), gt=0)

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

    at: float = Field(default=0.0, ge=0)
    """Seconds from the start of the trace; with ``after``, from the end of that build."""
    count: int = Field(default=1, ge=1, le=MOST_JOBS)
    over: float = Field(default=0.0, ge=0)
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
    ahead: float = Field(default=0.0, ge=0)
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


def shipped() -> list[str]:
    """Names of the traces that come with the package."""
    there = resources.files("autoscaler.simulator.traces").iterdir()
    return sorted(entry.name.removesuffix(SUFFIX) for entry in there if entry.name.endswith(SUFFIX))


def find(wanted: str, suffix: str) -> Path:
    """The file ``wanted``, or the one of that name that comes with the package.

    Raises:
        TraceError: there is neither.
    """
    path = Path(wanted)
    if path.is_file():
        return path
    if wanted in shipped():
        return Path(str(resources.files("autoscaler.simulator.traces") / f"{wanted}{suffix}"))
    raise TraceError(f"{wanted}: no such file, and none of the traces that are here already: {', '.join(shipped())}")


def load(path: Path) -> Trace:
    """The trace in a file.

    Raises:
        TraceError: it cannot be read, or a line is not what it should be.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path}: {error}") from error
    if not lines:
        raise TraceError(f"trace {path} is empty; its first line is {{'trace': NAME, 'seed': NUMBER}}")
    try:
        head = json.loads(lines[0])
        name, seed = str(head["trace"]), int(head["seed"])
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"trace {path}, line 1: it has to name the trace and its seed ({error!r})") from error
    trace = Trace(name, seed, tuple(_batches(path, lines[1:])))
    _check(path, trace)
    return trace


def dump(trace: Trace) -> str:
    """The text of a trace file; `load` reads it back."""
    lines: list[dict[str, object]] = [{"trace": trace.name, "seed": trace.seed}]
    lines += [batch.model_dump(mode="json", exclude_defaults=True) for batch in trace.batches]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def _batches(path: Path, lines: Sequence[str]) -> Iterable[Batch]:
    for number, line in enumerate(lines, start=2):
        try:
            yield Batch.model_validate_json(line)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'line'}: {e['msg']}" for e in error.errors())
            raise TraceError(f"trace {path}, line {number}: {problems}") from error


def _check(path: Path, trace: Trace) -> None:
    names = sorted(batch.name for batch in trace.batches if batch.name)
    twice = {one for one, other in pairwise(names) if one == other}
    unknown = {batch.after for batch in trace.batches if batch.after} - set(names)
    if twice:
        raise TraceError(f"trace {path}: the build {min(twice)!r} stands there twice")
    if unknown:
        raise TraceError(f"trace {path}: no build is named {min(unknown)!r}, which a batch comes after")
    count = sum(batch.count for batch in trace.batches)
    if not 0 < count <= MOST_JOBS:
        raise TraceError(f"trace {path}: it has {count} jobs; 1 to {MOST_JOBS} can be played")
