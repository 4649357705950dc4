"""The control port of the emulator, and the handle on it that tests hold.

Everything crosses HTTP, so a test sees the same whether the emulator is a thread or a process.
"""

import dataclasses
import json
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from providers.base import OPERATION_LABEL
from tests.fakes.hetzner.cloud import Cloud
from tests.fakes.hetzner.faults import Fault, Script
from tests.fakes.hetzner.http import Handler
from tests.fakes.hetzner.refused import RefusedError
from tests.fakes.hetzner.state import Row


class ControlHandler(Handler):
    """``POST /<verb>`` with a JSON object."""

    cloud: ClassVar[Cloud]
    script: ClassVar[Script]
    changed: ClassVar[Callable[[], None]]

    def do_POST(self) -> None:  # noqa: N802 - the base class names it
        verb = getattr(self, f"_{self.path.strip('/')}", None)
        try:
            if verb is None:
                raise RefusedError(404, "not_found", f"no verb {self.path}")
            with self.cloud.state.lock:
                self.cloud.state.settle()
                answer = verb(**self.body())
                self.cloud.state.settle()
            type(self).changed()
        except (RefusedError, TypeError, ValueError, KeyError, AttributeError) as error:
            return self.answer(400, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode(), {})
        return self.answer(200, json.dumps(answer if answer is not None else {}).encode(), {})

    def _advance(self, seconds: float) -> Row:
        self.cloud.state.clock.advance(seconds)
        return {"now": self.cloud.state.clock.now()}

    def _fault(self, **fields: Any) -> None:
        self.script.add(Fault(**fields))

    def _calm(self) -> None:
        self.script.clear()

    def _knobs(self, **values: Any) -> None:
        for name, value in values.items():
            if not hasattr(self.cloud.state.knobs, name):
                raise ValueError(f"no knob {name}")
            setattr(self.cloud.state.knobs, name, value)

    def _budget(self, left: float) -> None:
        self.cloud.state.bucket.left = left
        self.cloud.state.bucket.at = self.cloud.state.clock.now()

    def _offer(self, type: str, location: str, **changes: Any) -> None:
        """Changes ``available`` or ``deprecation`` of a type in a location."""
        (row,) = [row for row in self.cloud.state.types if row["name"] == type]
        (there,) = [place for place in row["locations"] if place["name"] == location]
        there.update(changes)

    def _withdraw(self, type: str) -> None:
        """Takes a type out of the catalogue for good."""
        self.cloud.state.types[:] = [row for row in self.cloud.state.types if row["name"] != type]

    def _add(self, kind: str, row: Mapping[str, Any]) -> Row:
        return self.cloud.add(kind, row)

    def _server(self, name: str, **changes: Any) -> None:
        """Changes a server behind everybody's back: ``status``, ``labels``, ``protected``."""
        server = self.cloud.servers.named(name)
        if server is None:
            raise KeyError(name)
        if (status := changes.pop("status", None)) is not None:
            self.cloud.servers.put(server, status)
        for key, value in changes.items():
            setattr(server, key, value)

    def _audit(self) -> Row:
        state = self.cloud.state
        kinds = ("volumes", "primary_ips", "floating_ips", "images")
        return {
            "now": state.clock.now(),
            "calls": state.calls,
            "servers": self.cloud.servers.audit(),
            **{kind: list(state.rows[kind].values()) for kind in kinds},
        }


@dataclasses.dataclass(frozen=True)
class Control:
    """The handle on a running emulator."""

    url: str
    """Of the control port."""
    api: str
    """Of the API, with its version."""
    token: str

    def ask(self, verb: str, **fields: Any) -> Row:
        """Any verb; see `ControlHandler`."""
        request = urllib.request.Request(
            f"{self.url}/{verb}",
            data=json.dumps(fields).encode(),
            headers={"Content-Type": "application/json", "Connection": "close"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found: Row = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(error.read().decode()) from None
        return found

    def advance(self, seconds: float) -> None:
        self.ask("advance", seconds=seconds)

    def fault(self, do: str, on: str = "*", **fields: Any) -> None:
        """One more line of the fault script; see `faults.Fault`."""
        self.ask("fault", do=do, on=on, **fields)

    def calm(self) -> None:
        """Ends all faults."""
        self.ask("calm")

    def knobs(self, **values: Any) -> None:
        """Changes `state.Knobs`."""
        self.ask("knobs", **values)

    def add(self, kind: str, **row: Any) -> int:
        """A side resource, such as ``volumes``; its id."""
        return int(self.ask("add", kind=kind, row=row)["id"])

    def audit(self) -> Row:
        """The truth: every server that there ever was, what it was billed, side resources, and calls."""
        return self.ask("audit")

    def made(self, operation: str, label: str = OPERATION_LABEL) -> list[Row]:
        """Every server that was ever made for an operation."""
        return [server for server in self.audit()["servers"] if server["labels"].get(label) == operation]

    def here(self) -> list[Row]:
        """Every server that is there now."""
        return [server for server in self.audit()["servers"] if server["gone_at"] is None]
