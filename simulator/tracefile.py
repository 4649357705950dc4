"""Trace files: JSON Lines.  The first line names the trace and holds its seed; each other line is a `Batch`."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from simulator.trace import MOST_JOBS, Batch, Spread, Trace, earliest
from simulator.wording import problems

SUFFIX: Final = ".jsonl"
MOST_DAYS: Final = 31
"""A trace whose last job ends later than that is refused: playing it would take hours."""
DAY: Final = 86_400.0
_SHAPE: Final = 'its first line is {"trace": NAME, "seed": NUMBER}, and each other line one batch of jobs'
Line = TypeVar("Line", bound=BaseModel)


class TraceError(Exception):
    """A trace cannot be played; the sentence says which line, and why."""


class Head(BaseModel):
    """The first line of a trace file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trace: str
    seed: int


def shipped() -> list[str]:
    """Names of the traces that come with the package."""
    there = resources.files("simulator.traces").iterdir()
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
        return Path(str(resources.files("simulator.traces") / f"{wanted}{suffix}"))
    raise TraceError(f"{wanted}: no such file, and nothing that comes with the package: {', '.join(shipped())}")


def load(path: Path) -> Trace:
    """The trace in a file.

    Raises:
        TraceError: it cannot be read, or a line is not what it should be.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path}: {error}") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise TraceError(f"trace {path} is empty; {_SHAPE}")
    head = _parsed(path, *lines[0], Head)
    batches = {number: _parsed(path, number, line, Batch) for number, line in lines[1:]}
    if not batches:
        raise TraceError(f"trace {path} has a first line and no jobs; {_SHAPE}")
    _check_names(path, batches)
    count = sum(batch.count for batch in batches.values())
    if count > MOST_JOBS:
        raise TraceError(f"trace {path}: it has {count} jobs; at most {MOST_JOBS} can be played")
    trace = Trace(head.trace, head.seed, tuple(batches.values()))
    _check_end(path, trace, list(batches))
    return trace


def dump(trace: Trace) -> str:
    """The text of a trace file; `load` reads it back."""
    lines: list[dict[str, object]] = [{"trace": trace.name, "seed": trace.seed}]
    lines += [batch.model_dump(mode="json", exclude_defaults=True) for batch in trace.batches]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def _parsed(path: Path, number: int, line: str, model: type[Line]) -> Line:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        inner = any(each["loc"][:1] == ("seconds",) for each in error.errors())
        known = tuple(Spread.model_fields if inner else model.model_fields)
        raise TraceError(f"trace {path}, line {number}: {problems(error, known=known)}") from error


def _check_names(path: Path, batches: Mapping[int, Batch]) -> None:
    """Every build has a name of its own, and whatever comes after one comes in the end."""
    lines: dict[str, int] = {}
    for number, batch in batches.items():
        if batch.name in lines:
            raise TraceError(
                f"trace {path}, line {number}: the build {batch.name!r} stands there twice, first in line "
                f"{lines[batch.name]}"
            )
        if batch.name:
            lines[batch.name] = number
    for number, batch in batches.items():
        seen: list[str] = []
        while batch.after:
            if batch.after in seen:
                raise TraceError(
                    f"trace {path}, line {number}: it never comes: the build {batch.after!r} waits for itself"
                )
            if batch.after not in lines:
                raise TraceError(
                    f"trace {path}, line {number}: no build is named {batch.after!r}, which it comes after"
                )
            seen.append(batch.after)
            batch = batches[lines[batch.after]]


def _check_end(path: Path, trace: Trace, numbers: Sequence[int]) -> None:
    jobs = trace.jobs()
    for job, (start, _) in zip(jobs, earliest(jobs), strict=True):
        if (end := start + job.seconds) > MOST_DAYS * DAY:
            number = numbers[int(job.id.removeprefix("j").partition("-")[0]) - 1]
            raise TraceError(
                f"trace {path}, line {number}: a job runs until day {end / DAY:.0f} of the trace; at most {MOST_DAYS} "
                "days can be played. 'seconds.most' bounds how long a job runs"
            )
