"""Whatever goes wrong in a world, the invariants hold at every commit and call, and it comes to rest.

A failure is printed with its world, made as small as it goes; put it into `ONCE` when its cause is mended.
"""

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, seed, settings

from providers.base import Applied, ErrorKind
from tests.scenario.autoscaler.happenings import worlds
from tests.scenario.autoscaler.worlds import Happening, play

SAMPLE = 200
SOAK = int(os.environ.get("SANDBOXES_SOAK_WORLDS", "2000"))
SEED = int(os.environ.get("SANDBOXES_SOAK_SEED", str(random.SystemRandom().randrange(10**6))))
"""Another one each night; with the one that a failure prints it is played again."""
CALM = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
ONCE: tuple[list[Happening], ...] = (
    [("ask", ("big", 3)), ("amnesia", None), ("wait", 1)],
    [("wait", 2), ("hide", 0), ("wait", 1), ("hide", 0)],
    [("fault", ("west", "create", ErrorKind.TRANSIENT, Applied.MAYBE)), ("skew", 4000), ("wait", 40)],
)
"""Worlds that once failed."""


def played(happenings: list[Happening]) -> None:
    """One world, in a directory that is gone afterwards."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        play(Path(directory), happenings)


@settings(CALM, max_examples=SAMPLE, derandomize=True)
@given(worlds)
def test_a_world_keeps_the_invariants(happenings: list[Happening]) -> None:
    played(happenings)


@pytest.mark.parametrize("happenings", ONCE)
def test_what_once_failed_holds(happenings: list[Happening]) -> None:
    played(happenings)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_many_worlds_keep_the_invariants(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{SOAK} worlds of SANDBOXES_SOAK_SEED={SEED}", flush=True)

    @seed(SEED)
    @settings(CALM, max_examples=SOAK)
    @example(ONCE[0])
    @given(worlds)
    def many(happenings: list[Happening]) -> None:
        played(happenings)

    many()
