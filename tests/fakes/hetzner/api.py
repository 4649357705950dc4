"""The emulated API: what a request meets on its way in and out, and what each path answers."""

import fnmatch
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tests.fakes.booting import Booter
from tests.fakes.emulation import Clock, FaultScript, ScriptedFault
from tests.fakes.hetzner import catalogue
from tests.fakes.hetzner.servers import Servers
from tests.fakes.hetzner.state import RefusedError, Row, State, iso, not_found, page_of
from tests.fakes.web import Reply, Request

HTML = b"<html><head><title>Maintenance</title></head><body><h1>We will be back soon</h1></body></html>"
PREFIX = "/v1"

Do = Literal[
    "drop",  # the connection breaks before anything was done
    "lost",  # it was done, and the connection breaks
    "hang",  # it was done, and the answer takes `seconds` of real time
    "slow",  # it is done after `seconds` of real time
    "error",  # answered with `status`, `code`, `message`, `details`; done all the same when `apply`
    "html",  # answered with a page in HTML and `status`
    "garbage",  # done, and answered with 200 and half a JSON document
    "stuck",  # a create whose server stays in the state `at` for ever
    "delete",  # done and answered, and then a server that `name` names (the oldest without it) is gone
    "replace",  # as `delete`, and a new server with the labels of the old one is there
    "page_again",  # a page is answered with the items of the one before it
    "no_totals",  # a listing whose `total_entries` is null
]


@dataclass(kw_only=True)
class Fault(ScriptedFault):
    """One entry of the script."""

    do: Do
    on: str = "*"
    """``METHOD /path`` below the endpoint, with ``*`` and ``?``."""
    match: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the body or the query that must be equal."""
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

    def fits(self, method: str, path: str, fields: Mapping[str, Any]) -> bool:
        """Return whether it strikes a call."""
        if not fnmatch.fnmatchcase(f"{method} {path}", self.on):
            return False
        return all(str(fields.get(key)) == str(value) for key, value in self.match.items())


class Api:
    """The project on a socket: its token, its rate limit, its headers, and the fault script."""

    def __init__(self, clock: Clock, booter: Booter | None, token: str) -> None:
        self.cloud = Cloud(clock, booter)
        self.faults: FaultScript[Fault] = FaultScript(random.Random(1))
        self.token = token

    def answer(self, request: Request) -> Reply:
        path = request.path.removeprefix(PREFIX)
        headers = {"X-Correlation-Id": f"{self.cloud.state.calls:016x}"}
        try:
            body = _object(request)
            fields = {**request.query, **body}
            fault = self.faults.take(lambda fault: fault.fits(request.method, path, fields))
            if fault is not None and fault.do == "drop":
                return Reply(cut=0)
            if fault is not None and fault.do == "slow":
                time.sleep(fault.seconds)
            headers |= self._admit(request)
            if fault is not None and fault.do in ("error", "html") and not fault.apply:
                return self._spoiled(fault, headers)
            status, answer = self.cloud.call(request.method, path, request.query, body, fault)
        except RefusedError as error:
            # The rate limit is in the headers of refusals too.
            headers |= self.cloud.state.bucket.headers(self.cloud.state.knobs.rate_limit)
            return self._reply(error.status, json.dumps(error.body()).encode(), headers)
        return self._finish(status, answer, headers, fault)

    def _finish(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault | None) -> Reply:
        match fault.do if fault is not None else None:
            case "lost":
                return Reply(cut=0)
            case "hang" if fault is not None:
                time.sleep(fault.seconds)
                return Reply(cut=0)
            case "garbage":
                return self._reply(200, body[: len(body) // 2], headers)
            case "error" | "html" if fault is not None:
                return self._spoiled(fault, headers)
        return self._reply(status, body if status != 204 else b"", headers)

    def _spoiled(self, fault: Fault, headers: Mapping[str, str]) -> Reply:
        if fault.do == "html":
            return self._reply(fault.status, HTML, headers, "text/html")
        error = RefusedError(fault.status, fault.code, fault.message, fault.details)
        return self._reply(fault.status, json.dumps(error.body()).encode(), headers)

    def _reply(
        self, status: int, body: bytes, headers: Mapping[str, str], content_type: str = "application/json"
    ) -> Reply:
        return Reply(status, body, content_type, dict(headers), at=float(int(self.cloud.state.clock.now)))

    def _admit(self, request: Request) -> dict[str, str]:
        """Check token and rate limit, and return the headers that report the latter."""
        state = self.cloud.state
        with state.lock:
            state.clock.catch_up()
            state.calls += 1
            if request.headers.get("authorization") != f"Bearer {self.token}" or state.knobs.token_mode == "expired":
                raise RefusedError(401, "unauthorized", "unable to authenticate")
            if not state.bucket.take(state.knobs.rate_limit, state.clock.now):
                raise RefusedError(429, "rate_limit_exceeded", "limit of 3600 requests per hour reached")
            if request.method != "GET" and state.knobs.token_mode == "ro":
                raise RefusedError(403, "token_readonly", "the token is only allowed to read")
            return state.bucket.headers(state.knobs.rate_limit)


def _object(request: Request) -> Mapping[str, Any]:
    try:
        value = request.json()
    except ValueError:
        raise RefusedError(400, "json_error", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(400, "json_error", "the body is not an object")
    return value


# -- what each path answers -------------------------------------------------------------------------------------------

SIDES = {"volumes": "volume", "primary_ips": "primary_ip", "floating_ips": "floating_ip", "ssh_keys": "ssh_key"}
SIDES |= {"networks": "network", "firewalls": "firewall", "images": "image"}
ADDRESS = {"ip": "203.0.113.9", "type": "ipv4", "blocked": False, "dns_ptr": []}
DEFAULTS: dict[str, Row] = {
    "volumes": {"server": None, "size": 10, "location": catalogue.location("fsn1"), "linux_device": "/dev/disk/by-id/0"}
    | {"status": "available", "format": None},
    "floating_ips": {**ADDRESS, "server": None, "home_location": catalogue.location("fsn1"), "description": ""},
    "primary_ips": {**ADDRESS, "assignee_id": None, "assignee_type": "server", "auto_delete": False}
    | {"location": catalogue.location("fsn1")},
    "networks": {"ip_range": "10.0.0.0/8", "subnets": [], "routes": [], "servers": [], "load_balancers": []}
    | {"expose_routes_to_vswitch": False},
    "firewalls": {"rules": [], "applied_to": []},
}
USED_BY = {"volumes": "server", "primary_ips": "assignee_id", "floating_ips": "server"}


class Cloud:
    """One project.  Every call takes the lock."""

    def __init__(self, clock: Clock, booter: Booter | None) -> None:
        self.state = State(clock)
        self.servers = Servers(self.state, booter)

    def call(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any], fault: Fault | None
    ) -> tuple[int, bytes]:
        """Return what the API answers.

        Raises:
            RefusedError: with an error.
        """
        parts = path.strip("/").split("/")
        with self.state.lock:
            self.state.clock.catch_up()
            status, answer = self._routed(method, parts, query, body, fault)
            body_now = json.dumps(answer).encode()  # as it is now: rows go on changing once the lock is free
            if fault is not None and fault.do in ("delete", "replace"):
                self._snatch(fault)
            return status, body_now

    def _routed(
        self, method: str, parts: list[str], query: Mapping[str, str], body: Mapping[str, Any], fault: Fault | None
    ) -> tuple[int, Row]:
        match method, parts:
            case "GET", ["pricing"]:
                return 200, {"pricing": catalogue.pricing()}
            case "GET", ["locations"]:
                return 200, self._page("locations", [catalogue.location(n) for n in catalogue.LOCATIONS], query, fault)
            case _, ["datacenters", *_]:
                raise RefusedError(410, "deprecated_api_endpoint", "the endpoint is gone; use locations")
            case "GET", ["server_types"]:
                return 200, self._page("server_types", self._sold(), query, fault)
            case "GET", ["actions", number]:
                return 200, {"action": self.state.row("actions", number)}
            case _, ["servers", *rest]:
                return self._server(method, rest, query, body, fault)
            case _, [kind, *rest] if kind in SIDES:
                return self._side(method, kind, rest, query, body, fault)
        raise not_found("/".join(parts))

    def _sold(self) -> list[Row]:
        """Return the catalogue without what has gone out of sale everywhere."""
        now = iso(self.state.clock.now)
        return [
            row
            for row in self.state.types
            if any(not p["deprecation"] or p["deprecation"]["unavailable_after"] > now for p in row["locations"])
        ]

    def _server(
        self, method: str, rest: list[str], query: Mapping[str, str], body: Mapping[str, Any], fault: Fault | None
    ) -> tuple[int, Row]:
        servers = self.servers
        match method, rest:
            case "GET", []:
                return 200, self._page("servers", [servers.view(s) for s in servers.here()], query, fault)
            case "POST", []:
                return 201, servers.create(body, fault.at if fault is not None and fault.do == "stuck" else None)
            case "GET", [number]:
                return 200, {"server": servers.view(servers.one(number))}
            case "DELETE", [number]:
                return 200, servers.delete(servers.one(number))
            case "PUT", [number]:
                row: Row = {"labels": None}
                self.state.relabel(row, body)
                server = servers.one(number)
                server.labels = row["labels"] if row["labels"] is not None else server.labels
                return 200, {"server": servers.view(server)}
            case "GET", [number, "actions"]:
                id_ = servers.one(number).id
                rows = [r for r in self.state.rows["actions"].values() if r["resources"][0]["id"] == id_]
                return 200, self._page("actions", rows, query, fault)
            case "POST", [number, "actions", command]:
                return 201, servers.power(servers.one(number), command)
        raise RefusedError(405, "method_not_allowed", f"no {method} here")

    def _side(
        self,
        method: str,
        kind: str,
        rest: list[str],
        query: Mapping[str, str],
        body: Mapping[str, Any],
        fault: Fault | None,
    ) -> tuple[int, Row]:
        state = self.state
        match method, rest:
            case "GET", []:
                return 200, self._page(kind, list(state.rows[kind].values()), query, fault)
            case "POST", []:
                return 201, {SIDES[kind]: self.add(kind, body)}
            case "GET", [number]:
                return 200, {SIDES[kind]: state.row(kind, number)}
            case "PUT", [number]:
                row = state.row(kind, number)
                state.relabel(row, body)
                return 200, {SIDES[kind]: row}
            case "DELETE", [number]:
                row = state.row(kind, number)
                if row["protection"]["delete"]:
                    raise RefusedError(423, "protected", "it is protected against deletion")
                if row.get(USED_BY.get(kind, "")) is not None:
                    raise RefusedError(409, "conflict", "it is still assigned")
                del state.rows[kind][row["id"]]
                return 204, {}
        raise RefusedError(405, "method_not_allowed", f"no {method} here")

    def add(self, kind: str, given: Mapping[str, Any]) -> Row:
        """Add a side resource; a volume with a ``server`` is attached to it."""
        row = self.state.add(kind, {**DEFAULTS.get(kind, {}), **given})
        if kind == "volumes" and row["server"] is not None:
            self.servers.one(row["server"]).volumes.append(row["id"])
        return row

    def _page(self, kind: str, rows: list[Row], query: Mapping[str, str], fault: Fault | None) -> Row:
        totals = self.state.knobs.totals and not (fault is not None and fault.do == "no_totals")
        answer = page_of(kind, rows, query, totals)
        page = answer["meta"]["pagination"]["page"]
        if fault is not None and fault.do == "page_again" and page > 1:
            answer[kind] = page_of(kind, rows, {**query, "page": str(page - 1)}, totals)[kind]
        return answer

    def _snatch(self, fault: Fault) -> None:
        """Remove a server between two calls, and perhaps make another in its place."""
        servers = self.servers
        here = servers.here()
        server = servers.named(fault.name) if fault.name is not None else (here[0] if here else None)
        if server is None:
            return
        servers.remove(server)
        if fault.do == "replace":
            body = {"name": f"{server.name}-b", "server_type": server.type["name"], "location": server.location}
            servers.create({**body, "image": server.image["id"], "labels": server.labels})
