"""Base classes of all wire models, and the checks that every request shares."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel, ConfigDict, model_validator

from gateway.wire.limits import ID_PATTERN, MAX_ID_LENGTH
from gateway.wire.tenants import ID_FORM
from gateway.wire.text import of_form

SandboxId = Annotated[str, of_form(ID_PATTERN, ID_FORM, max_length=MAX_ID_LENGTH)]
NodeId = Annotated[str, of_form(ID_PATTERN, ID_FORM, max_length=MAX_ID_LENGTH)]
Timestamp = AwareDatetime


def _strings(value: object) -> Iterator[str]:
    """Yield every string in ``value``, including keys of mappings; nested models check themselves."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


class WireModel(BaseModel):
    """A frozen value that crosses a process border."""

    model_config = ConfigDict(frozen=True, ser_json_timedelta="float", use_enum_values=False)


def _takes_integers(annotation: object) -> bool:
    """Return whether a field of this type takes whole numbers and no others."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return any(_takes_integers(each) for each in get_args(annotation))
    return annotation is int


class WireRequest(WireModel):
    """A body that we receive: unknown keys, wrong types and NUL bytes are refused.

    ``53.0`` is a whole number, as in JSON Schema.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    _integers: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls._integers = frozenset(name for name, field in cls.model_fields.items() if _takes_integers(field.annotation))

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        whole = {
            name: int(value)
            for name in cls._integers
            if isinstance(value := data.get(name), float) and value.is_integer()
        }
        return {**data, **whole} if whole else data

    @model_validator(mode="after")
    def _refuse_nul(self) -> Self:
        for name in type(self).model_fields:
            if any("\0" in text for text in _strings(getattr(self, name))):
                raise ValueError(f"{name}: must not contain a NUL byte")
        return self


class WireAnswer(WireModel):
    """A body that we send: readers ignore unknown keys."""

    model_config = ConfigDict(extra="ignore")
