"""Settings of the `local` provider."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from providers.base import SettingsError

NODE_COMMAND: Final = (sys.executable, "-m", "gateway.cli", "node", "run", "--config", "${dir}/node.toml")
CLEANUP_COMMAND: Final = (sys.executable, "-m", "gateway.cli", "node", "cleanup", "--root", "${dir}/node")


class LocalSettings(BaseModel):
    """The provider's table of the settings file.

    In both commands ``${dir}`` is the instance's directory, ``${name}`` its name and ``${address}`` its address.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path
    """Directory that holds one directory per instance."""
    address: str = "127.0.0.1"
    """Address of every instance."""
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


def parse(settings: Mapping[str, object]) -> LocalSettings:
    """The settings, checked.

    Raises:
        SettingsError: names each wrong key.
    """
    try:
        return LocalSettings.model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise SettingsError(f"local: {problems}") from None
