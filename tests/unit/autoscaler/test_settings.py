"""Settings of the autoscaler: what reaches the policy and the nodes, and what is refused."""

from pathlib import Path

import pytest

from autoscaler.settings import AutoscalerSettings
from gateway.wire.settings import ConfigurationError

GOOD = """
gateway_url = "http://127.0.0.1:1"
token_file = "/token"
[providers.local]
root = "/vms"
[[pools]]
name = "cpu"
provider = "local"
min = 1
max = 2
offers = [{ type = "local", location = "here" }]
node = { memory_mb = 100, docker_url = "unix:///x" }
"""


def load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> AutoscalerSettings:
    path = tmp_path / "as.toml"
    path.write_text(text)
    return AutoscalerSettings.load(path, environ or {})


def test_a_pool_reaches_the_policy_and_its_nodes(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD)
    (cpu,) = settings.policy().pools
    assert (cpu.name, cpu.min, cpu.max, [str(offer) for offer in cpu.offers]) == ("cpu", 1, 2, ["local@here"])
    assert cpu.gives == {"memory_mb": 100}
    assert settings.pools[0].node_settings == {
        "runtimes": ["runsc", "docker"],
        "cpu_overcommit": 4.0,
        "reserve_memory_mb": 512,
        "reserve_disk_mb": 2048,
        "slots": 250,
        "memory_mb": 100,
        "docker_url": "unix:///x",
    }


def test_gpus_and_holds_of_a_pool_reach_the_policy(tmp_path: Path) -> None:
    (cpu,) = load(tmp_path, GOOD.replace("max = 2", "max = 2\ngpus = 2\npressure_hold_seconds = 45")).policy().pools
    assert (cpu.gpus, cpu.pressure_hold_seconds) == (2, 45.0)


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD, {"SANDBOXES_AUTOSCALER_TICK_SECONDS": "7", "OTHER": "x"})
    assert settings.tick_seconds == 7.0
    assert settings.url.endswith("/journal.db")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"gateway_url: is missing; token_file: is missing"),
        (GOOD.replace("min = 1", "min = 3"), r"pools\.0: min must not be above max"),
        (GOOD.replace('name = "cpu"', 'name = "CPU!"'), r"pools\.0\.name: must be "),
        (GOOD.replace('provider = "local"', 'provider = "fog"'), r"cpu names the provider 'fog' \(there is: local\)"),
        (GOOD.replace("max = 2", "max = 2\nmaxx = 3"), r"pools\.0\.maxx: .* did you mean max\?.* slots.* \(line \d+\)"),
        ("tick = 1\n" + GOOD, r"tick: .* did you mean tick_seconds\?.*\(line 1\)"),
        (GOOD + GOOD[GOOD.index("[[pools]]") :], r"pools: each needs a name of its own"),
        ("tick_seconds = inf\n" + GOOD, r"tick_seconds: Input should be a finite number"),
        ("tick_seconds = 1e300\n" + GOOD, r"tick_seconds: Input should be less than or equal to 3600"),
        (GOOD.replace("max = 2", "max = 2\nboot_seconds = inf"), r"pools\.0\.boot_seconds: .* a finite number"),
        ("no toml", r"as\.toml: "),
    ],
)
def test_invalid_settings_are_refused_by_their_keys(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load(tmp_path, text)
