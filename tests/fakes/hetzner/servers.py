"""Servers: what is checked before one is made, how it comes up, and what stays when it goes."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.booting import Booter
from tests.fakes.hetzner import catalogue
from tests.fakes.hetzner.state import RefusedError, Row, State, invalid, iso, not_found, problem_with

HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
MOST_USER_DATA = 32_768


@dataclass
class Server:
    """One server, gone ones too: the audit needs them."""

    id: int
    name: str
    type: Row
    location: str
    image: Row
    labels: dict[str, str]
    user_data: str
    created: float
    status: str = "initializing"
    working: int = 0
    """Actions at work on it; it is locked meanwhile."""
    stuck_at: str | None = None
    ips: dict[str, int] = field(default_factory=dict)
    private: list[Row] = field(default_factory=list)
    networks: list[int] = field(default_factory=list)
    volumes: list[int] = field(default_factory=list)
    protected: bool = False
    gone_at: float | None = None
    booted: bool = False


@dataclass(frozen=True)
class BootedServer:
    """A server as a `Booter` needs it."""

    id: int
    name: str
    user_data: str
    """Byte for byte as it was ordered."""
    ipv4: str
    private_ip: str | None
    server_type: str
    cores: int
    memory_gb: float
    disk_gb: float
    location: str
    image: str
    gpus: int = 0


class Servers:
    """All servers of the project."""

    def __init__(self, state: State, booter: Booter | None) -> None:
        self._state = state
        self._booter = booter
        self.all: dict[int, Server] = {}

    # -- looks --------------------------------------------------------------------------------------------------------

    def here(self) -> list[Server]:
        return [server for server in self.all.values() if server.gone_at is None]

    def one(self, number: str | int) -> Server:
        try:
            server = self.all[int(number)]
        except (KeyError, ValueError):
            server = None
        if server is None or server.gone_at is not None:
            raise not_found(f"server with ID '{number}'")
        return server

    def named(self, name: str) -> Server | None:
        return next((server for server in self.here() if server.name == name), None)

    def view(self, server: Server) -> Row:
        rows = self._state.rows["primary_ips"]
        ips: Row = {"ipv4": None, "ipv6": None}
        for family, number in server.ips.items():
            if number in rows:
                ip, reverse = rows[number]["ip"], "static.clients.example" if family == "ipv4" else []
                ips[family] = {"id": number, "ip": ip, "blocked": False, "dns_ptr": reverse}
        floating = [row["id"] for row in self._state.rows["floating_ips"].values() if row.get("server") == server.id]
        return {
            "id": server.id,
            "name": server.name,
            "status": server.status,
            "created": iso(server.created),
            "public_net": {**ips, "floating_ips": floating, "firewalls": []},
            "private_net": server.private,
            "server_type": server.type,
            "location": catalogue.location(server.location),
            "image": server.image,
            "iso": None,
            "rescue_enabled": False,
            "locked": server.working > 0,
            "backup_window": None,
            "outgoing_traffic": None,
            "ingoing_traffic": None,
            "included_traffic": 21990232555520,
            "protection": {"delete": server.protected, "rebuild": server.protected},
            "labels": dict(server.labels),
            "volumes": list(server.volumes),
            "load_balancers": [],
            "primary_disk_size": server.type["disk"],
            "placement_group": None,
        }

    def audit(self) -> list[Row]:
        """Return the truth about every server ever made."""
        now = self._state.clock.now
        return [
            {
                "id": server.id,
                "name": server.name,
                "labels": server.labels,
                "status": server.status if server.gone_at is None else "gone",
                "type": server.type["name"],
                "location": server.location,
                "user_data": server.user_data,
                "created_at": server.created,
                "gone_at": server.gone_at,
                "billed_seconds": 3600 * max(1, math.ceil(((server.gone_at or now) - server.created) / 3600)),
            }
            for server in self.all.values()
        ]

    # -- create -------------------------------------------------------------------------------------------------------

    def create(self, body: Mapping[str, Any], stuck_at: str | None = None) -> Row:
        """Make a server, or refuse it.  A full quota is checked before the name is."""
        state, name = self._state, body.get("name")
        if not isinstance(name, str) or HOST_NAME.fullmatch(name) is None:
            raise invalid("name", "is not a valid hostname")
        if len(self.here()) >= state.knobs.server_limit:
            details = {"limits": [{"name": "server_limit"}]}
            raise RefusedError(403, "resource_limit_exceeded", "server limit exceeded", details)
        if self.named(name) is not None:
            raise RefusedError(409, "uniqueness_error", "server name is already used", {"fields": [{"name": "name"}]})
        kind, place = self._sold(body)
        image = self._image(body.get("image"), kind)
        if (problem := problem_with(body.get("labels") or {})) is not None:
            raise invalid("labels", problem)
        user_data = body.get("user_data") or ""
        if len(user_data.encode()) > MOST_USER_DATA:
            raise invalid("user_data", f"is longer than {MOST_USER_DATA} bytes")
        self._keys_and_firewalls(body)
        self._limit_of_addresses(body.get("public_net") or {})
        server = Server(
            id=state.new_id(),
            name=name,
            type=kind,
            location=place,
            image=image,
            labels=dict(body.get("labels") or {}),
            user_data=user_data,
            created=state.clock.now,
            stuck_at=stuck_at,
            networks=self._networks(body.get("networks") or []),
        )
        self._addresses(server, body.get("public_net") or {})
        self.all[server.id] = server
        actions = self._come_up(server)
        password = None if body.get("ssh_keys") else "mailed"
        return {
            "server": self.view(server),
            "action": actions[0],
            "next_actions": actions[1:],
            "root_password": password,
        }

    def _sold(self, body: Mapping[str, Any]) -> tuple[Row, str]:
        wanted, place = body.get("server_type"), body.get("location") or "fsn1"
        kind = next((row for row in self._state.types if wanted in (row["name"], row["id"], str(row["id"]))), None)
        if kind is None:
            raise invalid("server_type", f"server type {wanted} does not exist")
        places = [catalogue.location(name) for name in catalogue.LOCATIONS]
        place = next((row["name"] for row in places if place in (row["name"], row["id"], str(row["id"]))), None)
        if place is None:
            raise invalid("location", f"location {body.get('location')} does not exist")
        there = next((row for row in kind["locations"] if row["name"] == place), None)
        if there is None:
            raise RefusedError(422, "invalid_input", "unsupported location for server type")
        if not there["available"]:
            raise RefusedError(412, "resource_unavailable", "error during placement")
        return kind, place

    def _image(self, wanted: object, kind: Row) -> Row:
        for row in self._state.rows["images"].values():
            if wanted in (row["id"], str(row["id"])):
                if row["architecture"] != kind["architecture"]:
                    raise invalid("image", "architecture of image and server type differ")
                return row
            if row["name"] is not None and wanted == row["name"] and row["architecture"] == kind["architecture"]:
                return row
        raise not_found(f"image '{wanted}'")

    def _keys_and_firewalls(self, body: Mapping[str, Any]) -> None:
        for key in body.get("ssh_keys") or []:
            self._state.named("ssh_keys", key)
        firewalls = [item["firewall"] for item in body.get("firewalls") or []]
        for number in firewalls:
            self._state.row("firewalls", number)
        public = body.get("public_net") or {}
        if firewalls and not public.get("enable_ipv4", True) and not public.get("enable_ipv6", True):
            raise RefusedError(422, "private_net_only_server", "a firewall needs a public interface")

    def _networks(self, wanted: list[int]) -> list[int]:
        for number in wanted:
            if not self._state.row("networks", number).get("subnets"):
                raise RefusedError(422, "no_subnet_available", "the network has no subnet")
        return list(wanted)

    def _limit_of_addresses(self, public: Mapping[str, Any]) -> None:
        more = sum(1 for family in ("ipv4", "ipv6") if public.get(f"enable_{family}", True))
        if more and len(self._state.rows["primary_ips"]) + more > self._state.knobs.primary_ip_limit:
            details = {"limits": [{"name": "primary_ip_limit"}]}
            raise RefusedError(403, "resource_limit_exceeded", "primary ip limit exceeded", details)

    def _addresses(self, server: Server, public: Mapping[str, Any]) -> None:
        for family in ("ipv4", "ipv6"):
            if not public.get(f"enable_{family}", True):
                continue
            number = self._state.new_id()
            if family == "ipv6":
                ip = f"2001:db8:{number % 65536:x}::/64"
            else:
                ip = self._wanted_address(server) or f"203.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            given = {
                "id": number,
                "name": f"primary_ip-{number}",
                "type": family,
                "ip": ip,
                "assignee_id": server.id,
                "assignee_type": "server",
                "blocked": False,
                "dns_ptr": [],
                "auto_delete": self._state.knobs.ips_auto_delete,
                "location": catalogue.location(server.location),
            }
            self._state.add("primary_ips", given)
            server.ips[family] = number

    def _wanted_address(self, server: Server) -> str | None:
        return self._booter.address(server.name) if self._booter is not None else None

    def _come_up(self, server: Server) -> list[Row]:
        """Schedule the states of a newborn, as late as the knobs say; a stuck one keeps its state for ever."""
        knobs, now = self._state.knobs, self._state.clock.now
        off_at = now + knobs.create_seconds
        start_at, run_at = off_at + knobs.off_seconds, off_at + knobs.off_seconds + knobs.start_seconds
        error = {"code": "server_error", "message": "start failed"} if knobs.start_fails else None
        made = self._state.action("create_server", server.id, knobs.create_seconds)
        started = self._state.action("start_server", server.id, run_at - now, error)
        nets = [self._state.action("attach_to_network", server.id, start_at - now) for _ in server.networks]
        server.working += 1
        self._state.clock.after(off_at - now, lambda: self._move(server, "off"))
        self._state.clock.after(start_at - now, lambda: self._attach(server))
        if not knobs.start_fails:
            self._state.clock.after(start_at - now, lambda: self._move(server, "starting"))
            self._state.clock.after(run_at - now, lambda: self._move(server, "running"))
        self._state.clock.after(run_at - now, lambda: self._release(server))
        return [made, started, *nets]

    def _release(self, server: Server) -> None:
        server.working -= 1

    def _attach(self, server: Server) -> None:
        for number in server.networks if server.gone_at is None else ():
            ip = f"10.{number >> 8 & 255}.{server.id >> 8 & 255}.{server.id & 255}"
            server.private.append({"network": number, "ip": ip, "alias_ips": [], "mac_address": "86:00:ff:2a:7d:e1"})

    # -- change -------------------------------------------------------------------------------------------------------

    def _move(self, server: Server, to: str) -> None:
        if server.gone_at is not None or server.status == "deleting" or server.stuck_at == server.status:
            return
        self.put(server, to)

    def put(self, server: Server, to: str) -> None:
        """Set the state, whatever it was, and boot or stop the machine."""
        server.status = to
        if to == "running" and not server.booted:
            server.booted = True
            if (booter := self._booter) is not None:
                machine = self.machine(server)
                self._state.effects.put(lambda: booter.boot(machine))
        if to in ("off", "deleting", "rebuilding"):
            self._stop(server)

    def power(self, server: Server, command: str) -> Row:
        """Switch a server by one of its actions."""
        self._not_locked(server)
        to = {"poweron": "running", "poweroff": "off", "shutdown": "off", "reboot": "running"}.get(command)
        if to is None:
            raise RefusedError(405, "method_not_allowed", f"no action {command}")
        if command == "shutdown":
            server.status = "stopping"
        if command == "reboot":
            self._stop(server)
        seconds = self._state.knobs.start_seconds
        server.working += 1
        self._state.clock.after(seconds, lambda: self._move(server, to))
        self._state.clock.after(seconds, lambda: self._release(server))
        return {"action": self._state.action(f"{command}_server", server.id, seconds)}

    def delete(self, server: Server) -> Row:
        if server.protected:
            raise RefusedError(423, "protected", "server is protected against deletion")
        if server.status == "deleting":
            raise RefusedError(423, "locked", "server is being deleted")
        if self._state.knobs.lock_stops_deletes:
            self._not_locked(server)
        seconds = self._state.knobs.delete_seconds
        self.put(server, "deleting")
        if server.stuck_at != "deleting":
            self._state.clock.after(seconds, lambda: self.remove(server))
        return {"action": self._state.action("delete_server", server.id, seconds)}

    def remove(self, server: Server) -> None:
        """Remove a server.  Addresses of its own go with it; all else is detached and stays."""
        if server.gone_at is not None:
            return
        self._stop(server)
        server.gone_at = self._state.clock.now
        for kind, key in (("primary_ips", "assignee_id"), ("volumes", "server"), ("floating_ips", "server")):
            for row in list(self._state.rows[kind].values()):
                if row.get(key) == server.id:
                    row[key] = None
                    if row.get("auto_delete"):
                        del self._state.rows[kind][row["id"]]

    def _not_locked(self, server: Server) -> None:
        if server.working > 0:
            raise RefusedError(423, "locked", "server is locked")

    def _stop(self, server: Server) -> None:
        if server.booted:
            server.booted = False
            if (booter := self._booter) is not None:
                name = server.name
                self._state.effects.put(lambda: booter.stop(name))

    def machine(self, server: Server) -> BootedServer:
        ipv4 = self._state.rows["primary_ips"].get(server.ips.get("ipv4", 0), {}).get("ip", "")
        return BootedServer(
            id=server.id,
            name=server.name,
            user_data=server.user_data,
            ipv4=ipv4,
            private_ip=server.private[0]["ip"] if server.private else None,
            server_type=server.type["name"],
            cores=server.type["cores"],
            memory_gb=server.type["memory"],
            disk_gb=server.type["disk"],
            location=server.location,
            image=server.image["name"] or str(server.image["id"]),
        )

    def stop_all(self) -> None:
        for server in self.here():
            self._stop(server)
