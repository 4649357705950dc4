"""Settings of the `local` provider."""

import ipaddress
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from providers import settings

NODE_COMMAND: Final = (sys.executable, "-m", "sandboxes", "node", "run", "--config", "${dir}/node.toml")
CLEANUP_COMMAND: Final = (sys.executable, "-m", "sandboxes", "node", "cleanup", "--root", "${dir}/node")


class LocalSettings(BaseModel):
    """The provider's table of the settings file.

    In both commands ``${dir}`` is the instance's directory, ``${name}`` its name and ``${address}`` its address.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path
    """Directory that holds one directory per instance."""
    address: str = "127.0.0.1"
    """Address of every instance, where they share this machine's network."""
    network: Literal["host", "namespace"] = "host"
    """``namespace`` gives each instance a network namespace and an address of its own, as a machine has; needs root."""
    subnet: str = "10.215.0.0/24"
    """Range of those addresses; the first is this machine's, where they reach a gateway that listens on it."""
    max_instances: int = Field(default=8, ge=1)
    """More are refused as a quota would be."""
    cpus: float | None = Field(default=None, gt=0)
    """Cores of one instance; this machine's by default."""
    memory_mb: int | None = Field(default=None, gt=0)
    """MiB of one instance; this machine's by default."""
    disk_mb: int | None = Field(default=None, gt=0)
    """MiB of one instance; what is free below ``root`` by default."""
    node_command: tuple[str, ...] = Field(default=NODE_COMMAND, min_length=1)
    """What an instance runs, and starts again when it dies."""
    cleanup_command: tuple[str, ...] = CLEANUP_COMMAND
    """Run once the instance is stopped, before its directory goes; removes what the node left on this machine.

    Empty for nothing.  It has `cleanup_seconds`, and it must be able to run twice.
    """
    stop_seconds: float = Field(default=20.0, gt=0)
    """What the node command has between SIGTERM and SIGKILL."""
    cleanup_seconds: float = Field(default=120.0, gt=0)
    """What one run of the cleanup command may take."""

    @field_validator("subnet")
    @classmethod
    def _private_range(cls, value: str) -> str:
        network = ipaddress.IPv4Network(value)
        if not network.is_private or network.num_addresses < 4:
            raise ValueError("must be a private IPv4 range with room for two addresses, such as 10.215.0.0/24")
        return str(network)


def parse(table: Mapping[str, object]) -> LocalSettings:
    """Return the provider's table, checked.

    Raises:
        SettingsError: names each wrong key.
    """
    return settings.parse(LocalSettings, table, kind="local")
