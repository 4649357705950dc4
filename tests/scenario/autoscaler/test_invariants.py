"""Whatever goes wrong in a random world, the invariants hold at every commit and call, and it comes to rest."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.scenario.autoscaler.worlds import Violation, invented, play

SAMPLE = 60
SOAK = int(os.environ.get("SANDBOXES_SOAK_WORLDS", "2000"))


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_a_world_keeps_the_invariants(tmp_path: Path, seed: int) -> None:
    play(tmp_path, invented(seed))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_worlds_keep_the_invariants(tmp_path: Path) -> None:
    for seed in range(SAMPLE, SAMPLE + SOAK):
        with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
            try:
                play(Path(directory), invented(seed, 15 + seed % 25))
            except (AssertionError, Violation) as error:
                raise AssertionError(f"world {seed}: {error}") from error
