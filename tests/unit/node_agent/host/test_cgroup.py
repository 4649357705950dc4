"""Control groups: what is decided without one."""

import pytest

from node_agent.host.cgroup import Cgroup, cpu_quota, cpu_shares, io_weight


@pytest.mark.parametrize(("cpus", "quota"), [(1.0, 100_000), (0.5, 50_000), (2.25, 225_000), (0.000_1, 1_000)])
def test_quota_in_microseconds_of_each_100_ms(cpus: float, quota: int) -> None:
    assert cpu_quota(cpus) == quota


@pytest.mark.parametrize(
    ("cpus", "shares", "weight"), [(1.0, 1024, 100), (0.5, 512, 50), (0.000_1, 2, 10), (1024.0, 262_144, 1000)]
)
def test_weights_grow_with_the_cores_within_the_kernels_bounds(cpus: float, shares: int, weight: int) -> None:
    assert (cpu_shares(cpus), io_weight(cpus)) == (shares, weight)


def test_group_that_is_not_there_is_empty() -> None:
    group = Cgroup("00000000", "nobody")

    assert (group.pids(), group.oom_kills(), group.memory_mb()) == (set(), 0, 0)
    assert group.kill(timeout=0)
    assert not group.remove()
