"""A demand trace: batches of equal jobs, the jobs that are drawn from them, and the file that holds the batches.

Drawing is deterministic, so a file of a few kilobytes stands for a whole day.  A trace file is JSON Lines: the first
line names the trace and holds its seed, each other line is a `JobBatch`.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from statistics import NormalDist
from typing import Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autoscaler.core.packing import vector
from autoscaler.core.pools import PoolPolicy
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName

MAX_JOBS: Final = 1_000_000
MAX_DAYS: Final = 31
"""A trace whose last job ends later than that is refused: playing it would take hours."""
DAY: Final = 86_400.0
SUFFIX: Final = ".jsonl"
_FORMAT: Final = 'its first line is {"trace": NAME, "seed": NUMBER}, and each other line one batch of jobs'
_NORMAL: Final = NormalDist()

# -- amounts ----------------------------------------------------------------------------------------------------------

Amounts = tuple[float, ...]
"""How much of each of `RESOURCES` a job takes or a node gives."""
RESOURCES: Final = ("cpus", "memory_mb", "disk_mb", "gpus", "slots", "builds")
NOTHING: Final[Amounts] = (0.0,) * len(RESOURCES)
ONE_BUILD: Final[Amounts] = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def amounts_of(shape: Shape) -> Amounts:
    """Return what a sandbox of this shape takes, or what a node of it gives to sandboxes."""
    return (*vector(shape), 0.0)


def amounts_of_node(pool: PoolPolicy, shape: Shape, builds: int) -> Amounts:
    """Return what a node gives to jobs: its shape to sandboxes, places to builds, or both.

    Args:
        pool: the node's pool, whose role decides.
        shape: what the node has for sandboxes.
        builds: how many builds a builder runs at once.
    """
    given = amounts_of(shape) if pool.hosts_sandboxes else NOTHING
    return plus(given, ONE_BUILD, builds) if pool.hosts_builds else given


def plus(some: Amounts, more: Amounts, times: float = 1.0) -> Amounts:
    """Return ``some + times * more``."""
    return tuple(a + times * b for a, b in zip(some, more, strict=True))


# -- jobs -------------------------------------------------------------------------------------------------------------


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
            raise ValueError(f"'least' is {self.least:.12g}, more than 'most', which is {self.most:.12g}")
        return self

    def draw(self, chance: random.Random) -> float:
        """Draw one duration.

        Only ``random()`` of ``chance`` is used, whose numbers are the same in every version of Python.
        """
        drawn = self.median
        if self.sigma:
            deviation = _NORMAL.inv_cdf(min(max(chance.random(), 1e-12), 1 - 1e-12))
            drawn = self.median * math.e ** (deviation * self.sigma)
        return min(max(drawn, self.least), self.most)


class JobBatch(BaseModel):
    """Equal jobs that arrive together or spread over a while."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds from the start of the trace; with ``after``, from the end of that build."""
    count: int = Field(default=1, ge=1, le=MAX_JOBS)
    over: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds within which the jobs arrive, each at a random moment."""
    seconds: Spread
    """How long each job runs once it has room."""
    kind: str = Field(default="sandbox", pattern="^(sandbox|build)$")
    """A build takes a place on a builder node, and no shape."""
    name: str = ""
    """Name of a build, so that other batches can come ``after`` it."""
    after: str = ""
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: int = Field(default=1024, ge=1)
    disk_mb: int = Field(default=4096, ge=0)
    gpus: int = Field(default=0, ge=0)
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    ahead: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds before its arrival at which the client prepares capacity for the whole batch."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.name and (self.kind != "build" or self.count > 1):
            raise ValueError("only a single build has a name")
        if self.ahead and (self.after or self.kind == "build"):
            raise ValueError("only sandboxes with a fixed time can be prepared for")
        return self

    @property
    def shape(self) -> Shape:
        """Shape of each job."""
        return Shape(cpus=self.cpus, memory_mb=self.memory_mb, disk_mb=self.disk_mb, gpus=self.gpus, slots=1)


@dataclass(frozen=True)
class TraceJob:
    """One sandbox or one build."""

    id: str
    at: float
    """Seconds from the start of the trace to its request; with ``after``, from the end of that build."""
    seconds: float
    shape: Shape
    batch: JobBatch

    @property
    def is_build(self) -> bool:
        """Whether it runs on a builder."""
        return self.batch.kind == "build"

    @cached_property
    def needs(self) -> Amounts:
        """What it takes while it runs."""
        return ONE_BUILD if self.is_build else amounts_of(self.shape)


@dataclass(frozen=True)
class Trace:
    """A named list of batches."""

    name: str
    seed: int
    batches: tuple[JobBatch, ...]

    def jobs(self) -> tuple[TraceJob, ...]:
        """Draw all jobs, always the same ones, in the order of their batches."""
        chance = random.Random(self.seed)  # noqa: S311 - it has to be repeatable
        found: list[TraceJob] = []
        for number, batch in enumerate(self.batches, start=1):
            shape = batch.shape
            for each in range(batch.count):
                at = batch.at + (batch.over * chance.random() if batch.over else 0.0)
                found.append(TraceJob(f"j{number}-{each + 1}", at, batch.seconds.draw(chance), shape, batch))
        return tuple(found)


def earliest_starts(jobs: Sequence[TraceJob]) -> list[tuple[float, int]]:
    """Return for each job when it starts if nothing ever waits, and how many builds come before it."""
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


# -- files ------------------------------------------------------------------------------------------------------------


class TraceError(Exception):
    """A trace cannot be played.

    Attributes:
        line: number of the line at fault, from 1; ``None`` when it is the file as a whole.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class TraceHeader(BaseModel):
    """The first line of a trace file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trace: str
    seed: int


_Line = TypeVar("_Line", bound=BaseModel)


def shipped() -> list[str]:
    """Return the names of the traces that come with the package."""
    there = (resources.files("simulator") / "traces").iterdir()
    return sorted(entry.name.removesuffix(SUFFIX) for entry in there if entry.name.endswith(SUFFIX))


def find(wanted: str, suffix: str = SUFFIX) -> Path:
    """Return the file ``wanted``, or the one of that name that comes with the package.

    Args:
        wanted: a path or a name.
        suffix: of the file in the package; by default a trace's.

    Raises:
        TraceError: there is neither.
    """
    path = Path(wanted)
    if path.is_file():
        return path
    if wanted in shipped():
        return Path(str(resources.files("simulator") / "traces" / f"{wanted}{suffix}"))
    raise TraceError(f"{wanted}: no such file, and no such trace in the package; it has {', '.join(shipped())}")


def load(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        TraceError: it cannot be read, or a line is malformed.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path}: {error}") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise TraceError(f"trace {path} is empty; {_FORMAT}")
    header = _parsed(path, *lines[0], TraceHeader)
    batches = {number: _parsed(path, number, line, JobBatch) for number, line in lines[1:]}
    if not batches:
        raise TraceError(f"trace {path} has a first line and no jobs; {_FORMAT}")
    _check_names(path, batches)
    count = sum(batch.count for batch in batches.values())
    if count > MAX_JOBS:
        raise TraceError(f"trace {path}: it has {count} jobs; at most {MAX_JOBS} can be played")
    trace = Trace(header.trace, header.seed, tuple(batches.values()))
    _check_end(path, trace, list(batches))
    return trace


def dump(trace: Trace) -> str:
    """Return the text of a trace file, which `load` reads back."""
    lines: list[dict[str, object]] = [{"trace": trace.name, "seed": trace.seed}]
    lines += [batch.model_dump(mode="json", exclude_defaults=True) for batch in trace.batches]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def problems(error: ValidationError, *, known: Sequence[str] = (), within: str = "") -> str:
    """Return all problems that a validation has found, for the author of the file.

    Args:
        error: what was found.
        known: the valid keys, named where one is unknown.
        within: the table that was validated, put before each key.
    """
    found = []
    for each in error.errors():
        key = ".".join([within, *map(str, each["loc"])] if within else map(str, each["loc"]))
        match each["type"]:
            case "extra_forbidden":
                found.append(f"the key {key!r} is unknown" + (f"; valid keys: {', '.join(known)}" if known else ""))
            case "missing":
                found.append(f"the key {key!r} is missing")
            case _:
                found.append(f"{key}: {each['msg']}" if key else each["msg"])
    return "; ".join(found)


def _parsed(path: Path, number: int, line: str, model: type[_Line]) -> _Line:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        inner = any(each["loc"][:1] == ("seconds",) for each in error.errors())
        known = tuple(Spread.model_fields if inner else model.model_fields)
        raise _refusal(path, number, problems(error, known=known)) from error


def _check_names(path: Path, batches: Mapping[int, JobBatch]) -> None:
    """Raise unless every build has a name of its own, and every batch after a build comes in the end."""
    lines: dict[str, int] = {}
    for number, batch in batches.items():
        if batch.name in lines:
            raise _refusal(
                path, number, f"the build {batch.name!r} is defined twice, first in line {lines[batch.name]}"
            )
        if batch.name:
            lines[batch.name] = number
    for number, batch in batches.items():
        seen: list[str] = []
        while batch.after:
            if batch.after in seen:
                raise _refusal(path, number, f"it never comes: the build {batch.after!r} waits for itself")
            if batch.after not in lines:
                raise _refusal(path, number, f"it comes after {batch.after!r}, and no build has that name")
            seen.append(batch.after)
            batch = batches[lines[batch.after]]


def _check_end(path: Path, trace: Trace, numbers: Sequence[int]) -> None:
    jobs = trace.jobs()
    for job, (start, _) in zip(jobs, earliest_starts(jobs), strict=True):
        if (end := start + job.seconds) > MAX_DAYS * DAY:
            number = numbers[int(job.id.removeprefix("j").partition("-")[0]) - 1]
            raise _refusal(
                path,
                number,
                f"a job runs until day {end / DAY:.0f} of the trace; at most {MAX_DAYS} days can be played."
                " 'seconds.most' bounds how long a job runs",
            )


def _refusal(path: Path, line: int, reason: str) -> TraceError:
    return TraceError(f"trace {path}, line {line}: {reason}", line)
