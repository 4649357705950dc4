"""A whole node agent over the fake runtime, as a process: what an instance of the `local` provider runs in tests."""

import sys
from pathlib import Path

from node_agent.main import run
from node_agent.settings import load_settings
from tests.fakes.runtime import FakeRuntime

ROOT = Path(__file__).parents[2]
CODE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.integration.autoscaler_node import main
main(sys.argv[1])
"""
COMMAND = (sys.executable, "-c", CODE, "${dir}/node.toml")
"""For ``node_command``."""


def main(config: str) -> None:
    """Runs it until SIGTERM."""
    settings = load_settings(Path(config))
    runtime = FakeRuntime(settings.root / "fake")
    run(settings, {"runsc": lambda _: runtime})
