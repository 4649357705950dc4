"""What is wrong with a line or a file, in words for whoever wrote it."""

from collections.abc import Sequence

from pydantic import ValidationError


def problems(error: ValidationError, *, known: Sequence[str] = (), within: str = "") -> str:
    """All problems that a validation has found.

    Args:
        error: what was found.
        known: the keys that there are, told where one is unknown.
        within: the table that was validated, named before each key.
    """
    found = []
    for each in error.errors():
        key = ".".join([within, *map(str, each["loc"])] if within else map(str, each["loc"]))
        match each["type"]:
            case "extra_forbidden":
                found.append(f"the key {key!r} is unknown" + (f"; there are {', '.join(known)}" if known else ""))
            case "missing":
                found.append(f"the key {key!r} is missing")
            case _:
                found.append(f"{key}: {each['msg']}" if key else each["msg"])
    return "; ".join(found)
