"""How every daemon reads its settings: a TOML file, over it the environment, over both the flags; nothing else.

The process's own environment is read only where no other one is given, so that a test or a tool that hands over its own
is never mixed with the shell it runs in.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigurationError(Exception):
    """The configuration cannot be used; the sentence names the source, the key and what is wrong with it."""


class DaemonSettings(BaseModel):
    """Base class of a daemon's settings: one frozen value in which unknown keys are refused.

    Attributes:
        env_prefix: environment variables that begin with it set the field named by the rest, in upper case.
        owner: the daemon's name in error messages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    env_prefix: ClassVar[str]
    owner: ClassVar[str]

    @classmethod
    def load(cls, config: Path | None = None, environ: Mapping[str, str] | None = None, **flags: object) -> Self:
        """Read and check the settings.

        Args:
            config: TOML file; ``None`` reads none.
            environ: variables to read instead of the process's own.
            **flags: fields that win over both sources.

        Raises:
            ConfigurationError: the file cannot be read, or a key is unknown, missing or has a wrong value.
        """
        try:
            return cls.model_validate(_from_file(config) | cls._from_environment(environ) | flags)
        except ValidationError as error:
            problems = "; ".join(f"{_name_of(item['loc'])}: {item['msg']}" for item in error.errors())
            raise ConfigurationError(f"configuration of the {cls.owner}: {problems}") from error

    @classmethod
    def _from_environment(cls, environ: Mapping[str, str] | None) -> dict[str, object]:
        variables = os.environ if environ is None else environ
        return {
            name.removeprefix(cls.env_prefix).lower(): cls._parsed(name, value)
            for name, value in variables.items()
            if name.startswith(cls.env_prefix)
        }

    @classmethod
    def _parsed(cls, variable: str, value: str) -> object:
        """Parse the values of tables and lists, which are JSON in the environment; leave others to the field."""
        field = cls.model_fields.get(variable.removeprefix(cls.env_prefix).lower())
        if field is None or get_origin(field.annotation) not in {dict, tuple}:
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"environment variable {variable}: must be JSON: {error}") from error


def _from_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"configuration file {config}: {why}") from error


def _name_of(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "settings"
