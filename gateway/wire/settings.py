"""How every daemon reads its settings: a TOML file, over it the environment, over both the flags; nothing else.

The process's own environment is read only where no other one is given, so that a test or a tool that hands over its own
is never mixed with the shell it runs in.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.wire.text import form_of, no_such_key

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


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
        text, variables = _text_of(config), cls._from_environment(environ)
        try:
            return cls.model_validate(_parsed(config, text) | variables | flags)
        except ValidationError as error:
            shown = {**dict.fromkeys(flags, "an option"), **dict.fromkeys(variables, "the environment")}
            problems = describe(error, cls, text, shown=shown)
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


def _text_of(config: Path | None) -> str:
    if config is None:
        return ""
    try:
        return config.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"configuration file {config}: {why}") from error


def _parsed(config: Path | None, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"configuration file {config}: {error}") from error


# -- what is wrong ----------------------------------------------------------------------------------------------------

Place = tuple[int | str, ...]
"""Where a value stands: names of tables and keys, and indexes of lists."""
_MARKS: Final = frozenset({"[key]", "int", "float", "str"})
"""What pydantic puts into a place for a key of a mapping and for members of unions."""
_PLAINLY: Final = {
    "missing": "is missing",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
}
"""What pydantic says in Python's words, in those of TOML."""


def describe(
    error: ValidationError,
    model: type[BaseModel],
    text: str = "",
    *,
    table: Place = (),
    shown: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a phrase for each problem: the key, what is wrong with it, and where it stands.

    Args:
        error: what was found.
        model: what was validated.
        text: of the TOML file that it came from; empty where it came from elsewhere.
        table: place of the model in that file.
        shown: where keys come from that are not in the file.
    """
    phrases = []
    for item in error.errors(include_url=False):
        place = tuple(part for part in item["loc"] if part not in _MARKS)
        name = ".".join(map(str, place))
        source = shown.get(str(place[0])) if place else None
        line = None if source else line_of(text, (*table, *place))
        where = f" ({source})" if source else f" (line {line})" if line else ""
        phrases.append((f"{name}: " if name else "") + _phrase(item, model, place) + where)
    return "; ".join(phrases)


def _phrase(item: "ErrorDetails", model: type[BaseModel], place: Place) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        return no_such_key(str(place[-1]), _keys_at(model, place[:-1]))
    if kind == "string_pattern_mismatch":
        return form_of(item["ctx"]["pattern"]) or item["msg"]
    return _PLAINLY.get(kind) or item["msg"].removeprefix("Value error, ")


def _keys_at(model: type[BaseModel], place: Place) -> set[str]:
    """Return the keys of the table at a place."""
    models = [model]
    for part in place:
        inner = [each.model_fields[part].annotation for each in models if part in each.model_fields]
        if inner:  # otherwise it is an index, or a name in a mapping
            models = [found for annotation in inner for found in _models_in(annotation)]
    return {key for each in models for key in each.model_fields}


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def line_of(text: str, place: Place) -> int | None:
    """Return the line of a TOML file on which a key or table stands, or the table that holds it; ``None``: not there.

    Good for files as people write them: a key within an inline table is found at the line of that table.
    """
    found, depth = None, 0
    table: Place = ()
    counts: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line.strip())
        here: Place
        if header is None:
            here = (*table, *_dotted(line.partition("=")[0]))
        else:
            names = _dotted(header[2])
            if header[1] == "[[":
                counts[names] = counts.get(names, -1) + 1
            here = table = tuple(
                part
                for end in range(1, len(names) + 1)
                for part in ((names[end - 1], counts[names[:end]]) if names[:end] in counts else (names[end - 1],))
            )
        if place and here[: len(place)] == place:
            return number
        if len(here) > depth and place[: len(here)] == here:
            found, depth = number, len(here)
    return found


_HEADER: Final = re.compile(r"(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?")


def _dotted(key: str) -> tuple[str, ...]:
    """Return the names of a dotted key; none where it is no key."""
    try:
        value: object = tomllib.loads(f"{key.strip()} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    names: list[str] = []
    while isinstance(value, dict) and value:
        ((name, value),) = value.items()
        names.append(name)
    return tuple(names)
