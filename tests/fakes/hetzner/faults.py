"""The fault script: which of the coming calls go wrong, and how."""

import fnmatch
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Do = Literal[
    "drop",  # the connection breaks before anything was done
    "lost",  # it was done, and the connection breaks
    "hang",  # it was done, and the answer takes `seconds` of real time
    "slow",  # it is done after `seconds` of real time
    "error",  # answered with `status`, `code`, `message`, `details`; done all the same when `apply`
    "html",  # answered with a page in HTML and `status`
    "garbage",  # done, and answered with 200 and half a JSON document
    "stuck",  # a create whose server stays in the state `at` for ever
    "delete",  # done and answered, and then a server that `name` names (the oldest without it) is no more
    "replace",  # as `delete`, and a new server with the labels of the old one is there
    "page_again",  # a page is answered with the items of the one before it
    "no_totals",  # a listing whose `total_entries` is null
]


@dataclass
class Fault:
    """One line of the script."""

    do: Do
    on: str = "*"
    """``METHOD /path`` below the endpoint, with ``*`` and ``?``."""
    match: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the body or the query that must be equal."""
    times: int | None = 1
    """Calls that it hits; ``None`` for all."""
    skip: int = 0
    """Calls that it lets pass before."""
    status: int = 500
    code: str = "server_error"
    message: str = "scripted"
    details: Mapping[str, Any] | None = None
    apply: bool = False
    seconds: float = 0.0
    at: str = "off"
    name: str | None = None

    def __post_init__(self) -> None:
        if self.do not in get_args(Do):
            raise ValueError(f"no fault {self.do!r}; there are {', '.join(get_args(Do))}")


class Script:
    """Hands each call its fault; the first line that fits wins."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, method: str, path: str, fields: Mapping[str, Any]) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if not fnmatch.fnmatchcase(f"{method} {path}", fault.on):
                    continue
                if any(str(fields.get(key)) != str(value) for key, value in fault.match.items()):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                return fault
        return None
