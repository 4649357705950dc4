"""Control groups: what is decided without one."""

import pytest

from node_agent.host.cgroup import Cgroup, cpu_quota


@pytest.mark.parametrize(("cpus", "quota"), [(1.0, 100_000), (0.5, 50_000), (2.25, 225_000), (0.000_1, 1_000)])
def test_quota_in_microseconds_of_each_100_ms(cpus: float, quota: int) -> None:
    assert cpu_quota(cpus) == quota


def test_group_that_is_not_there_is_empty() -> None:
    group = Cgroup("00000000", "nobody")

    assert (group.pids(), group.oom_kills(), group.memory_mb()) == (set(), 0, 0)
    assert group.kill(timeout=0)
    assert not group.remove()
