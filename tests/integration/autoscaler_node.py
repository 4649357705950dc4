"""A whole node agent over the fake runtime, as a process: what an instance runs in tests of a fleet."""

import os
import sys
from pathlib import Path
from unittest import mock

from node_agent import main as agent
from node_agent.host.machine import Gpu
from node_agent.settings import NodeSettings
from tests.fakes.runtime import FakeGpuRuntime, FakeRuntime

ROOT = Path(__file__).parents[2]
CODE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.integration.autoscaler_node import main
main(sys.argv[1])
"""
COMMAND = (sys.executable, "-c", CODE, "${dir}/node.toml")
"""For ``node_command``."""
GPUS = "FAKE_GPUS"
"""Environment variable with the number of GPUs that the machine is said to have."""


def main(config: str) -> None:
    """Runs it until SIGTERM."""
    settings = NodeSettings.load(Path(config))
    gpus = int(os.environ.get(GPUS, "0"))
    engines = {
        "runsc": lambda _: FakeRuntime(settings.root / "fake"),
        "docker": lambda _: FakeGpuRuntime(settings.root / "fake-docker"),
    }
    with mock.patch.object(agent, "list_gpus", lambda: tuple(map(Gpu, range(gpus)))):
        agent.run(settings, engines)
