"""What the emulated project holds: generic rows, with the API's rules for labels, selectors, pages and errors."""

import itertools
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.fakes.booting import Effects
from tests.fakes.emulation import Clock
from tests.fakes.hetzner import catalogue

Row = dict[str, Any]


def iso(at: float) -> str:
    """Return a time as the API writes it: whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- errors -----------------------------------------------------------------------------------------------------------


class RefusedError(Exception):
    """Status and body of an answer that is no good one."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "details": self.details}}


def not_found(what: str) -> RefusedError:
    return RefusedError(404, "not_found", f"{what} not found")


def invalid(field: str, message: str) -> RefusedError:
    details = {"fields": [{"name": field, "messages": [message]}]}
    return RefusedError(422, "invalid_input", f"invalid input in field '{field}': {message}", details)


# -- labels -----------------------------------------------------------------------------------------------------------

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:(?P<prefix>[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?)/)?{_PART}")
_VALUE = re.compile(rf"(?:{_PART})?")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)")
_COMMA = re.compile(r",(?![^(]*\))")

LabelTest = Callable[[Mapping[str, str]], bool]


class BadSelectorError(ValueError):
    """It is not in the grammar."""


def problem_with(labels: object) -> str | None:
    """Return what is wrong with the labels of a request, if anything."""
    if not isinstance(labels, dict):
        return "labels must be an object"
    for key, value in labels.items():
        if _KEY.fullmatch(key) is None or key.startswith("hetzner.cloud/"):
            return f"label key {key!r} is not correctly formatted"
        if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
            return f"label value {value!r} is not correctly formatted"
    return None


def selector(text: str) -> LabelTest:
    """Return the test that a selector stands for."""
    tests = [_term(term.strip()) for term in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def _term(term: str) -> LabelTest:
    if (found := _SET.fullmatch(term)) is not None:
        key = _key(found["key"])
        values = {_value(value.strip()) for value in found["values"].split(",")}
        if found["how"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for sign, wanted in (("!=", False), ("==", True), ("=", True)):
        if sign in term:
            left, _, right = term.partition(sign)
            key, value = _key(left.strip()), _value(right.strip())
            return lambda labels: (labels.get(key) == value) is wanted
    if term.startswith("!"):
        key = _key(term[1:])
        return lambda labels: key not in labels
    key = _key(term)
    return lambda labels: key in labels


def _key(text: str) -> str:
    if _KEY.fullmatch(text) is None:
        raise BadSelectorError(f"label selector key {text!r}")
    return text


def _value(text: str) -> str:
    if _VALUE.fullmatch(text) is None:
        raise BadSelectorError(f"label selector value {text!r}")
    return text


# -- rows -------------------------------------------------------------------------------------------------------------

PER_PAGE = 25
MOST_PER_PAGE = 50
SORTS: dict[str, frozenset[str]] = {
    "*": frozenset({"id", "name", "created"}),
    "primary_ips": frozenset({"id", "created"}),
    "floating_ips": frozenset({"id", "created"}),
    "actions": frozenset({"id", "command", "status", "started", "finished"}),
    "server_types": frozenset(),
}


@dataclass
class Knobs:
    """How the project behaves; control sets them by name."""

    create_seconds: float = 8.0
    """``initializing`` takes this long."""
    off_seconds: float = 1.0
    """A newborn is ``off`` this long before it is started."""
    start_seconds: float = 4.0
    """``starting`` takes this long."""
    delete_seconds: float = 3.0
    """``deleting`` takes this long."""
    server_limit: int = 1000
    """More servers are refused with ``resource_limit_exceeded``."""
    primary_ip_limit: int = 10_000
    """More addresses are refused with ``resource_limit_exceeded``, those that nobody uses any more included."""
    lock_stops_deletes: bool = False
    """Whether a delete is refused with ``locked`` while an action is at work."""
    start_fails: bool = False
    """Whether ``start_server`` of a create ends in an error, and the server stays off."""
    ips_auto_delete: bool = True
    """Whether addresses that come with a server go with it."""
    totals: bool = True
    """Whether listings include ``total_entries``."""
    rate_limit: int = 3600
    """Calls of an hour, and the size of the bucket."""
    token_mode: str = "rw"
    """``rw``, ``ro`` or ``expired``."""


@dataclass
class Bucket:
    """The budget of calls, which refills evenly."""

    left: float
    at: float

    def take(self, limit: int, now: float) -> bool:
        self.left = min(float(limit), self.left + max(0.0, now - self.at) * limit / 3600)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def headers(self, limit: int) -> dict[str, str]:
        full_at = self.at + (limit - self.left) * 3600 / limit
        return {
            "RateLimit-Limit": str(limit),
            "RateLimit-Remaining": str(int(self.left)),
            "RateLimit-Reset": str(int(full_at)),
        }


@dataclass
class State:
    """Everything, under one lock.  Times are seconds since 1970 by `clock`."""

    clock: Clock
    knobs: Knobs = field(default_factory=Knobs)
    lock: threading.RLock = field(default_factory=threading.RLock)
    effects: Effects = field(default_factory=Effects)
    """Done outside the lock."""
    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    types: list[Row] = field(default_factory=catalogue.server_types)
    bucket: Bucket = field(init=False)
    calls: int = 0
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(4711))

    def __post_init__(self) -> None:
        self.bucket = Bucket(float(self.knobs.rate_limit), self.clock.now)
        kinds = ("actions", "volumes", "primary_ips", "floating_ips", "ssh_keys", "networks", "firewalls", "images")
        self.rows = {kind: {} for kind in kinds}
        for number, (name, architecture) in enumerate(
            [("debian-12", "x86"), ("debian-12", "arm"), ("debian-13", "x86"), ("debian-13", "arm")], start=101
        ):
            self.rows["images"][number] = catalogue.image(number, name, architecture, iso(self.clock.now - 86400))
        self.add("ssh_keys", {"name": "fleet", "fingerprint": "b7:2f", "public_key": "ssh-ed25519 AAAA fleet"})

    # -- rows ---------------------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        return next(self._ids)

    def add(self, kind: str, given: Mapping[str, Any]) -> Row:
        """Add a row with what every row has."""
        number = int(given.get("id") or self.new_id())
        row = {"id": number, "created": iso(self.clock.now), "labels": {}, "protection": {"delete": False}, **given}
        row["id"] = number
        if kind == "images":
            row = catalogue.image(number, row.pop("name", None), row.pop("architecture", "x86"), **_rest(row))
        self.rows[kind][number] = row
        return row

    def row(self, kind: str, number: str | int) -> Row:
        try:
            return self.rows[kind][int(number)]
        except (KeyError, ValueError):
            raise not_found(f"{kind.removesuffix('s')} with ID '{number}'") from None

    def named(self, kind: str, key: object) -> Row:
        """Return a row by name or id."""
        for row in self.rows[kind].values():
            if key in (row["id"], str(row["id"]), row.get("name")):
                return row
        raise not_found(f"{kind.removesuffix('s')} '{key}'")

    def relabel(self, row: Row, body: Mapping[str, Any]) -> None:
        if (labels := body.get("labels")) is not None:
            if (problem := problem_with(labels)) is not None:
                raise invalid("labels", problem)
            row["labels"] = dict(labels)

    def action(self, command: str, resource: int, seconds: float, error: Row | None = None) -> Row:
        """Add an action that ends by itself."""
        now = self.clock.now
        row: Row = {
            "id": self.new_id(),
            "command": command,
            "status": "running",
            "progress": 0,
            "started": iso(now),
            "finished": None,
            "resources": [{"id": resource, "type": "server"}],
            "error": None,
        }
        self.rows["actions"][row["id"]] = row

        def end() -> None:
            row.update(status="error" if error else "success", progress=100, finished=iso(self.clock.now))
            row["error"] = error

        self.clock.after(seconds, end)
        return row


def _rest(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "id"}


def page_of(kind: str, rows: list[Row], query: Mapping[str, str], totals: bool) -> Row:
    """Return one page of a listing, filtered and sorted as the query says."""
    found = [row for row in rows if _fits(row, query)]
    key, _, way = query.get("sort", "").partition(":")
    if key:
        if key not in SORTS.get(kind, SORTS["*"]) or way not in ("", "asc", "desc"):
            raise invalid("sort", f"{kind} cannot be sorted by {query['sort']}")
        found.sort(key=lambda row: (row[key], row["id"]), reverse=way == "desc")
    try:
        page, size = int(query.get("page", 1)), int(query.get("per_page", PER_PAGE))
    except ValueError:
        raise invalid("page", "must be a number") from None
    if page < 1 or not 1 <= size <= MOST_PER_PAGE:
        raise invalid("per_page", f"must be between 1 and {MOST_PER_PAGE}")
    last = max(1, -(-len(found) // size))
    pagination = {
        "page": page,
        "per_page": size,
        "previous_page": page - 1 if page > 1 else None,
        "next_page": page + 1 if page < last else None,
        "last_page": last if totals else None,
        "total_entries": len(found) if totals else None,
    }
    return {kind: found[(page - 1) * size : page * size], "meta": {"pagination": pagination}}


def _fits(row: Row, query: Mapping[str, str]) -> bool:
    if (text := query.get("label_selector")) is not None:
        try:
            if not selector(text)(row.get("labels") or {}):
                return False
        except BadSelectorError as error:
            raise invalid("label_selector", str(error)) from None
    plain = ("name", "status", "type", "architecture")
    return all(key not in query or str(row.get(key)) == query[key] for key in plain)
