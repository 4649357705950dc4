"""The measures.  Contenders take turns sample by sample, so that a busy moment of the machine meets them all."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVarTuple
from uuid import uuid4

from tests.bench.contenders import Contender
from tests.bench.figures import Measure, Summary
from tests.bench.memory import pss

MIB: Final = 1024 * 1024
FILE_BYTES: Final = 256 * MIB
Given = TypeVarTuple("Given")


@dataclass
class Samples:
    """Samples of one measure, by contender."""

    name: str
    unit: str
    by: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contender: Contender, value: float) -> None:
        self.by.setdefault(contender.name, []).append(value)

    def measure(self) -> Measure:
        return Measure(self.name, self.unit, {name: Summary.of(values) for name, values in self.by.items()})


def milliseconds(act: Callable[[*Given], object], *given: *Given) -> float:
    """Return how long the call took, in milliseconds."""
    started = time.monotonic()
    act(*given)
    return (time.monotonic() - started) * 1000


def lives(contenders: Sequence[Contender], rounds: int) -> list[Measure]:
    """Measure create to the end of the first exec, and delete."""
    first, gone = Samples("create → first exec", "ms"), Samples("delete", "ms")
    for _ in range(rounds):
        for contender in contenders:
            name = new_id()
            try:
                took = milliseconds(contender.create, name) + milliseconds(contender.exec, name)
            finally:
                ended = milliseconds(contender.delete, name)
            first.add(contender, took)
            gone.add(contender, ended)
    return [first.measure(), gone.measure()]


def calls(contenders: Sequence[Contender], execs: int, pauses: int) -> list[Measure]:
    """Measure what is done to a running sandbox again and again."""
    execution, pause, resume = Samples("exec", "ms"), Samples("pause", "ms"), Samples("resume", "ms")
    with _one_each(contenders) as running:
        for contender, name in running:
            contender.exec(name)
        for _ in range(execs):
            for contender, name in running:
                execution.add(contender, milliseconds(contender.exec, name))
        for _ in range(pauses):
            for contender, name in running:
                pause.add(contender, milliseconds(contender.pause, name))
                resume.add(contender, milliseconds(contender.resume, name))
    return [execution.measure(), pause.measure(), resume.measure()]


def files(contenders: Sequence[Contender], rounds: int, directory: Path) -> list[Measure]:
    """Measure a file of 256 MiB in and out, checked by its size."""
    up, down = Samples("upload 256 MiB", "ms"), Samples("download 256 MiB", "ms")
    source, target = directory / "source", directory / "target"
    _write_random(source)
    with _one_each(contenders) as running:
        for _ in range(rounds):
            for contender, name in running:
                up.add(contender, milliseconds(contender.upload, name, source))
                down.add(contender, milliseconds(contender.download, name, target))
                if target.stat().st_size != FILE_BYTES:
                    raise RuntimeError(f"{contender.name}: the download has {target.stat().st_size} bytes")
                target.unlink()
    return [up.measure(), down.measure()]


def idle_memory(contenders: Sequence[Contender], count: int) -> Measure:
    """Measure the memory of one idle sandbox: of every process that is there for it alone."""
    held = Samples("memory of an idle sandbox", "MiB")
    for contender in contenders:
        names = [new_id() for _ in range(count)]
        try:
            for name in names:
                contender.create(name)
            for name in names:
                held.add(contender, pss(contender.processes(name)))
        finally:
            for name in names:
                contender.delete(name)
    return held.measure()


def new_id() -> str:
    """Return an id that nothing else on this machine has."""
    return f"bench-{uuid4().hex[:12]}"


@contextmanager
def _one_each(contenders: Sequence[Contender]) -> Iterator[list[tuple[Contender, str]]]:
    running: list[tuple[Contender, str]] = []
    try:
        for contender in contenders:
            running.append((contender, new_id()))
            contender.create(running[-1][1])
        yield running
    finally:
        for contender, name in running:
            contender.delete(name)


def _write_random(path: Path) -> None:
    block = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(block)
