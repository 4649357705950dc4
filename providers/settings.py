"""What the built-in providers do alike with their tables of the settings file."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from providers.base import SettingsError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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
        raise SettingsError(f"{kind}: {problems(error, model.model_fields)}") from None


def problems(error: ValidationError, keys: Collection[str] = ()) -> str:
    """Return each wrong field with what is wrong about it.

    Args:
        error: what was found.
        keys: that there are, named where one is not.
    """
    found = ((".".join(map(str, item["loc"])), _phrase(item, keys)) for item in error.errors())
    return "; ".join(f"{path}: {message}" if path else message for path, message in found)


def _phrase(item: "ErrorDetails", keys: Collection[str]) -> str:
    if item["type"] == "missing":
        return "is missing"
    if item["type"] != "extra_forbidden":
        return item["msg"].removeprefix("Value error, ")
    close = difflib.get_close_matches(str(item["loc"][-1]), keys, n=1)
    listed = f" The keys are {', '.join(sorted(keys))}" if keys else ""
    return f"there is no such key{f'; did you mean {close[0]}?' if close else '.' if listed else ''}{listed}"


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
