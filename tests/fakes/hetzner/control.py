"""The control port of the emulator, and a test's handle on it."""

from collections.abc import Callable, Mapping
from typing import Any

from providers.base import OPERATION_LABEL
from tests.fakes.emulation import ControlClient
from tests.fakes.hetzner.api import Api, Fault
from tests.fakes.hetzner.state import Row


class ControlPort:
    """Each method is one verb."""

    def __init__(self, api: Api) -> None:
        self.cloud, self.faults = api.cloud, api.faults

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {
            verb.__name__: verb
            for verb in (
                self.advance,
                self.fault,
                self.calm,
                self.knobs,
                self.budget,
                self.offer,
                self.withdraw,
                self.add,
                self.server,
                self.audit,
            )
        }

    def advance(self, seconds: float) -> Row:
        self.cloud.state.clock.advance(seconds)
        return {"now": self.cloud.state.clock.now}

    def fault(self, **fields: Any) -> None:
        self.faults.add(Fault(**fields))

    def calm(self) -> None:
        self.faults.clear()

    def knobs(self, **values: Any) -> None:
        for name, value in values.items():
            if not hasattr(self.cloud.state.knobs, name):
                raise ValueError(f"no knob {name}")
            setattr(self.cloud.state.knobs, name, value)

    def budget(self, left: float) -> None:
        self.cloud.state.bucket.left = left
        self.cloud.state.bucket.at = self.cloud.state.clock.now

    def offer(self, type: str, location: str, **changes: Any) -> None:
        """Change ``available`` or ``deprecation`` of a type in a location."""
        (row,) = [row for row in self.cloud.state.types if row["name"] == type]
        (there,) = [place for place in row["locations"] if place["name"] == location]
        there.update(changes)

    def withdraw(self, type: str) -> None:
        """Take a type out of the catalogue for good."""
        self.cloud.state.types[:] = [row for row in self.cloud.state.types if row["name"] != type]

    def add(self, kind: str, row: Mapping[str, Any]) -> Row:
        return self.cloud.add(kind, row)

    def server(self, name: str, **changes: Any) -> None:
        """Change a server behind everybody's back: ``status``, ``labels``, ``protected``."""
        server = self.cloud.servers.named(name)
        if server is None:
            raise KeyError(name)
        if (status := changes.pop("status", None)) is not None:
            self.cloud.servers.put(server, status)
        for key, value in changes.items():
            setattr(server, key, value)

    def audit(self) -> Row:
        state = self.cloud.state
        kinds = ("volumes", "primary_ips", "floating_ips", "images")
        return {
            "now": state.clock.now,
            "calls": state.calls,
            "servers": self.cloud.servers.audit(),
            **{kind: list(state.rows[kind].values()) for kind in kinds},
        }


class Control(ControlClient):
    """The handle on a running emulator.

    Args:
        url: of the control port.
        api: of the API, with its version.
        token: the project's only API token.
    """

    def __init__(self, url: str, api: str, token: str) -> None:
        super().__init__(url)
        self.api = api
        self.token = token

    def fault(self, do: str, on: str = "*", **fields: Any) -> None:
        """Add an entry to the fault script; see `api.Fault`."""
        self.ask("fault", do=do, on=on, **fields)

    def calm(self) -> None:
        """End all faults."""
        self.ask("calm")

    def knobs(self, **values: Any) -> None:
        """Change `state.Knobs`."""
        self.ask("knobs", **values)

    def add(self, kind: str, **row: Any) -> int:
        """Add a side resource, such as ``volumes``, and return its id."""
        return int(self.ask("add", kind=kind, row=row)["id"])

    def audit(self) -> Row:
        """Return the truth: every server ever made, what it was billed, side resources, and calls."""
        found: Row = self.ask("audit")
        return found

    def made(self, operation: str, label: str = OPERATION_LABEL) -> list[Row]:
        """Return every server ever made for an operation."""
        return [server for server in self.audit()["servers"] if server["labels"].get(label) == operation]

    def here(self) -> list[Row]:
        """Return every server that is there now."""
        return [server for server in self.audit()["servers"] if server["gone_at"] is None]
