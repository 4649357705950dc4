"""What runs inside emulated machines: a node agent over the fake runtime, started from the machine's user data."""

import base64
import json
import os
import subprocess
from pathlib import Path
from string import Template

import yaml

from autoscaler.user_data import ucloud_init_script
from tests.fakes.booting import Machine
from tests.fakes.ucloud.cluster import Guest
from tests.integration.autoscaler_node import COMMAND, GPUS

CONFIG = "/etc/sandbox-fleet/"


class Nodes:
    """Machines whose operating system does what the user data says: it starts a node agent over the fake runtime."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self.booted: list[str] = []
        """Every start of a machine."""

    def address(self, name: str) -> str | None:
        return "127.0.0.1"

    def boot(self, machine: Machine) -> None:
        self.booted.append(machine.name)
        if isinstance(machine, Guest) and machine.script != ucloud_init_script():
            return  # a machine without its script, or with half of it, runs and becomes nothing
        home = self._root / machine.name
        home.mkdir(parents=True, exist_ok=True)  # a machine that starts again has its disk still
        for name, content in node_files(machine.user_data).items():
            (home / name).write_bytes(content)
        # All machines share one file system and one address, so each gets other places than the user data names.
        places = {
            "ROOT": str(home / "node"),
            "JOIN_TOKEN_FILE": str(home / "join.token"),
            "BOOT_STAGES_FILE": str(home / "boot-stages"),
            "HOST": machine.ipv4,
            "PORT": "0",
        }
        with (home / "log").open("ab") as log:
            self._agents[machine.name] = subprocess.Popen(
                [Template(word).safe_substitute(dir=home) for word in COMMAND],
                env={
                    **os.environ,
                    **{f"SANDBOXES_NODE_{key}": value for key, value in places.items()},
                    GPUS: str(machine.gpus),
                },
                stdout=log,
                stderr=log,
            )

    def stop(self, name: str) -> None:
        agent = self._agents.pop(name, None)
        if agent is not None:
            agent.kill()  # a machine that is deleted says no good-bye
            agent.wait(20)

    def running(self) -> list[str]:
        """Return the names of the running machines."""
        return sorted(self._agents)


def node_files(user_data: str) -> dict[str, bytes]:
    """Return the files of the node's configuration, as the machine's own way of starting would write them."""
    if not user_data.startswith("#cloud-config"):
        return {name: text.encode() for name, text in json.loads(user_data)["files"].items()}
    files = yaml.safe_load(user_data)["write_files"]
    return {
        file["path"].removeprefix(CONFIG): base64.b64decode(file["content"])
        for file in files
        if file["path"].startswith(CONFIG)
    }
