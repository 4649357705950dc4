"""The emulated API: a method, a path and a body in, a status and a body out."""

import json
from collections.abc import Mapping
from typing import Any

from tests.fakes.hetzner import catalogue
from tests.fakes.hetzner.booter import Booter
from tests.fakes.hetzner.clock import Clock, iso
from tests.fakes.hetzner.faults import Fault
from tests.fakes.hetzner.refused import RefusedError, not_found
from tests.fakes.hetzner.servers import Servers
from tests.fakes.hetzner.state import Row, State, page_of

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
    """One project.  Every call takes the lock and does first what has fallen due."""

    def __init__(self, clock: Clock, booter: Booter) -> None:
        self.state = State(clock)
        self.servers = Servers(self.state, booter)

    def call(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any], fault: Fault | None
    ) -> tuple[int, bytes]:
        """What the API answers.

        Raises:
            RefusedError: with an error.
        """
        parts = path.strip("/").split("/")
        with self.state.lock:
            self.state.settle()
            status, answer = self._routed(method, parts, query, body, fault)
            told = json.dumps(answer).encode()  # as it is now: rows go on changing once the lock is free
            if fault is not None and fault.do in ("delete", "replace"):
                self._snatch(fault)
            return status, told

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
        """The catalogue without what has gone out of sale everywhere."""
        now = iso(self.state.clock.now())
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
        """A side resource; a volume with a ``server`` hangs on it."""
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
        """A server goes between two calls; a new one may come in its place."""
        servers = self.servers
        here = servers.here()
        server = servers.named(fault.name) if fault.name is not None else (here[0] if here else None)
        if server is None:
            return
        servers.remove(server)
        if fault.do == "replace":
            body = {"name": f"{server.name}-b", "server_type": server.type["name"], "location": server.location}
            servers.create({**body, "image": server.image["id"], "labels": server.labels})
