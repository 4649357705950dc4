"""What the emulated project holds, its time, and its generic rows."""

import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.hetzner import catalogue
from tests.fakes.hetzner.clock import Clock, iso
from tests.fakes.hetzner.labels import BadSelectorError, problem_with, selector
from tests.fakes.hetzner.refused import RefusedError, invalid, not_found

Row = dict[str, Any]
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
    """Whether listings tell ``total_entries``."""
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
    effects: "queue.SimpleQueue[Callable[[], None] | None]" = field(default_factory=queue.SimpleQueue)
    """Done outside the lock, in order, by one thread."""
    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    types: list[Row] = field(default_factory=catalogue.server_types)
    bucket: Bucket = field(init=False)
    calls: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(4711))

    def __post_init__(self) -> None:
        self.bucket = Bucket(float(self.knobs.rate_limit), self.clock.now())
        kinds = ("actions", "volumes", "primary_ips", "floating_ips", "ssh_keys", "networks", "firewalls", "images")
        self.rows = {kind: {} for kind in kinds}
        for number, (name, architecture) in enumerate(
            [("debian-12", "x86"), ("debian-12", "arm"), ("debian-13", "x86"), ("debian-13", "arm")], start=101
        ):
            self.rows["images"][number] = catalogue.image(number, name, architecture, iso(self.clock.now() - 86400))
        self.add("ssh_keys", {"name": "fleet", "fingerprint": "b7:2f", "public_key": "ssh-ed25519 AAAA fleet"})

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, moment: float, do: Callable[[], None]) -> None:
        """Does something later."""
        heapq.heappush(self._events, (moment, next(self._order), do))

    def settle(self) -> None:
        """Does what is due by now.  Call it with the lock held."""
        while self._events and self._events[0][0] <= self.clock.now():
            heapq.heappop(self._events)[2]()

    def next_due(self) -> float | None:
        """When the next thing happens."""
        return self._events[0][0] if self._events else None

    # -- rows ---------------------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        return next(self._ids)

    def add(self, kind: str, given: Mapping[str, Any]) -> Row:
        """A new row with what every row has."""
        number = int(given.get("id") or self.new_id())
        row = {"id": number, "created": iso(self.clock.now()), "labels": {}, "protection": {"delete": False}, **given}
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
        """A row by name or id."""
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
        """An action that ends by itself."""
        now = self.clock.now()
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
            row.update(status="error" if error else "success", progress=100, finished=iso(self.clock.now()))
            row["error"] = error

        self.at(now + seconds, end)
        return row


def _rest(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "id"}


def page_of(kind: str, rows: list[Row], query: Mapping[str, str], totals: bool) -> Row:
    """One page of a listing, filtered and sorted as the query says."""
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


__all__ = ["Knobs", "RefusedError", "Row", "State", "page_of"]
