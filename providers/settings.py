"""What the built-in providers do alike with their tables of the settings file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from providers.base import SettingsError

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], settings: Mapping[str, object], *, kind: str) -> M:
    """Return a provider's table, checked.

    Args:
        model: the provider's settings.
        settings: the table as it stands in the file.
        kind: the provider's name, for the error.

    Raises:
        SettingsError: names each wrong key.
    """
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise SettingsError(f"{kind}: {problems(error)}") from None


def problems(error: ValidationError) -> str:
    """Return each wrong field with what is wrong about it."""
    found = ((".".join(map(str, item["loc"])), item["msg"]) for item in error.errors())
    return "; ".join(f"{path}: {message}" if path else message for path, message in found)


def read_token(where: str | Path, *, setting: str, environ: Mapping[str, str]) -> str:
    """Return a secret token.

    Args:
        where: name of an environment variable, or the file that holds it.
        setting: provider and key that name it, for the error.
        environ: the environment.

    Raises:
        SettingsError: there is none, or it cannot travel in a header.
    """
    if isinstance(where, Path):
        try:
            token = where.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{setting}: cannot read {where}: {error}") from None
    else:
        token = environ.get(where, "").strip()
    if not token:
        raise SettingsError(f"{setting}: {where} holds no token; put one line with the token there")
    if " " in token or not (token.isascii() and token.isprintable()):
        raise SettingsError(f"{setting}: {where} holds characters that no token has; put one line with the token there")
    return token
