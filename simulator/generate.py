"""Write the traces that come with the package: ``python -m simulator.generate``.

Everything is drawn from seeds, so that the same program writes the same files.
"""

import random
from pathlib import Path
from typing import Final

from simulator.trace import SUFFIX, JobBatch, Spread, Trace, dump

HERE: Final = Path(__file__).parent / "traces"
MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY_SHARES: Final = (1, 1, 1, 1, 1, 2, 4, 12, 34, 62, 80, 84, 62, 70, 88, 90, 82, 60, 34, 22, 16, 12, 6, 2)
"""Sessions that begin in each hour of the day, of the busiest hour's hundred."""


def rl_bursts() -> Trace:
    """Return six hours of reinforcement learning: every ten minutes a step asks for 1,000 episodes at once.

    Episodes have a budget of turns, so that most take about as long; steps overlap, as they do where a trainer does not
    wait for the slowest episodes.
    """
    step = Spread(median=30 * MINUTE, sigma=0.25, least=5 * MINUTE, most=45 * MINUTE)
    batches = [
        JobBatch(at=5 * MINUTE + number * 10 * MINUTE, count=1000, seconds=step, cpus=1, memory_mb=2048, disk_mb=4096)
        for number in range(36)
    ]
    return Trace("RL bursts of 1,000 sandboxes", 11, tuple(batches))


def agents_day() -> Trace:
    """Return a working day of coding agents, from midnight to midnight: few at night, many around ten and three."""
    chance = random.Random(12)  # noqa: S311 - it has to be repeatable
    kinds = (
        (0.6, Spread(median=25 * MINUTE, sigma=0.6, least=2 * MINUTE, most=2 * HOUR), 2.0, 4096, 10_240),
        (0.3, Spread(median=50 * MINUTE, sigma=0.5, least=5 * MINUTE, most=3 * HOUR), 2.0, 8192, 20_480),
        (0.1, Spread(median=12 * MINUTE, sigma=0.5, least=MINUTE, most=HOUR), 4.0, 16_384, 20_480),
    )
    batches: list[JobBatch] = []
    for quarter in range(96):
        weight = DAY_SHARES[quarter // 4] * (0.8 + 0.4 * chance.random())
        for share, seconds, cpus, memory, disk in kinds:
            if count := round(weight * share * 1.5 + chance.random() - 0.5):
                at = quarter * 15 * MINUTE
                batches.append(
                    JobBatch(
                        at=at, count=count, over=15 * MINUTE, seconds=seconds, cpus=cpus, memory_mb=memory, disk_mb=disk
                    )
                )
    return Trace("a working day of coding agents", 13, tuple(batches))


def eval_sweep() -> Trace:
    """Return an evaluation sweep: 80 images are built, and each is followed by the 100 tasks that run on it."""
    batches: list[JobBatch] = []
    build = Spread(median=6 * MINUTE, sigma=0.3, least=2 * MINUTE, most=15 * MINUTE)
    task = Spread(median=18 * MINUTE, sigma=0.4, least=2 * MINUTE, most=45 * MINUTE)
    for number in range(80):
        name = f"image-{number + 1}"
        batches.append(JobBatch(at=number * 3 * MINUTE, seconds=build, kind="build", name=name))
        batches.append(JobBatch(after=name, at=10.0, count=100, seconds=task, cpus=2, memory_mb=4096, disk_mb=10_240))
    return Trace("an evaluation sweep with builds", 14, tuple(batches))


SHIPPED: Final = {"rl-bursts": rl_bursts, "agents-day": agents_day, "eval-sweep": eval_sweep}


def main() -> None:
    """Write all of them."""
    for name, make in SHIPPED.items():
        (HERE / f"{name}{SUFFIX}").write_text(dump(make()))


if __name__ == "__main__":
    main()
