"""Whatever goes wrong in a world, the invariants hold at every commit and call, and it comes to rest.

A failure is printed with its world, made as small as it goes; put it into `ONCE` when its cause is mended.
"""

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, seed, settings

from tests.scenario.autoscaler.happenings import worlds
from tests.scenario.autoscaler.worlds import Happening, play

SAMPLE = 200
SOAK = int(os.environ.get("SANDBOXES_SOAK_WORLDS", "2000"))
SEED = int(os.environ.get("SANDBOXES_SOAK_SEED", str(random.SystemRandom().randrange(10**6))))
"""Another one each night; with the one that a failure prints it is played again."""
CALM = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
ONCE: tuple[list[Happening], ...] = (
    # A lost journal: what boots is ordered again, and then found.
    [("ask", ("big", 3)), ("amnesia", None), ("wait", 1)],
    # The clock jumps while an order is under way whose answer was lost: it was sent again too soon.
    [("delay", 29), ("finish", 0), ("ask", ("gpu", 1)), ("skew", 2203), ("wait", 12)],
    # A lost journal, while an order is under way whose answer was lost.
    [
        ("ask", ("big", 1)),
        ("down", ("east", 6)),
        ("crash", 14),
        ("ask", ("big", 1)),
        ("down", ("east", 1)),
        ("wait", 3),
        ("delay", 0),
        ("amnesia", None),
    ],
    # A node of an older order has the name of what boots.
    [("wait", 2), ("ask", ("gpu", 1)), ("wait", 1), ("namesake", 0), ("wait", 8)],
    # It has the name of an order that made nothing: the delete that proves so named what another order had made.
    [
        ("wait", 2),
        ("crash", 0),
        ("ask", ("gpu", 1)),
        ("wait", 1),
        ("second", None),
        ("crash", 15),
        ("wait", 4),
        ("crash", 0),
        ("wait", 1),
        ("namesake", 0),
        ("crash", 0),
    ],
)
"""Worlds that once failed."""


def played(happenings: list[Happening]) -> None:
    """One world, in a directory that is gone afterwards."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        play(Path(directory), happenings)


@pytest.mark.timeout(600)
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
