"""Base classes of all wire models, and the checks that every request shares."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints, model_validator

from gateway.wire.limits import ID_PATTERN

SandboxId = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
NodeId = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
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


class WireRequest(WireModel):
    """A body that we receive: unknown keys, wrong types and NUL bytes are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="after")
    def _refuse_nul(self) -> Self:
        for name in type(self).model_fields:
            if any("\0" in text for text in _strings(getattr(self, name))):
                raise ValueError(f"{name}: must not contain a NUL byte")
        return self


class WireAnswer(WireModel):
    """A body that we send: readers ignore unknown keys."""

    model_config = ConfigDict(extra="ignore")
