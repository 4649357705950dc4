"""Side resources that outlive their server and go on being billed: volumes and addresses.

A server's delete detaches them.  Those that no other owner has labelled are marked with the fleet's labels before the
delete, so that they are known again afterwards, by any process and without a memory.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from providers.base import DEPLOYMENT_LABEL, OPERATION_LABEL, Deleted, ErrorKind, ProviderError, Scope
from providers.hetzner import mapping
from providers.hetzner.client import Api, read
from providers.hetzner.errors import refusal
from providers.hetzner.listing import complete
from providers.hetzner.models import Server, SideResource
from providers.hetzner.settings import HetznerSettings
from providers.rate_limit import Need

log = logging.getLogger(__name__)

Kind = Literal["volume", "primary_ip", "floating_ip"]
PATHS: Final[dict[Kind, str]] = {"volume": "/volumes", "primary_ip": "/primary_ips", "floating_ip": "/floating_ips"}


@dataclass(frozen=True)
class Side:
    """Names one side resource; its text is an id in `Inventory.leftovers`."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def path(self) -> str:
        """Where it stands in the API."""
        return f"{PATHS[self.kind]}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Side | None":
        """The resource that an id names; ``None`` for the id of a server and for anything else."""
        for kind in PATHS:
            number = text.removeprefix(f"{kind}:")
            if number != text and number.isdecimal():
                return cls(kind, int(number))
        return None


class Leftovers:
    """Finds, marks and removes them for one deployment."""

    def __init__(
        self, api: Api, settings: HetznerSettings, deployment: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._settings = settings
        self._deployment = deployment
        self._monotonic = monotonic
        self._known: tuple[str, ...] = ()
        self._asked_at = float("-inf")

    def ids(self) -> tuple[str, ...]:
        """What no server uses any more, as of the last look; a new look is taken when it is due and affordable.

        Raises:
            ProviderError: the look failed.
        """
        now = self._monotonic()
        is_due = now - self._asked_at >= self._settings.leftovers_seconds
        if is_due and self._api.budget.wait(Need.OPTIONAL) == 0:
            self._known = tuple(self._found())
            self._asked_at = now
        return self._known

    def look_again(self) -> None:
        """A server goes: what it leaves is looked for at the next listing."""
        self._asked_at = float("-inf")

    def _found(self) -> Iterator[str]:
        params = {"label_selector": mapping.selector(self._deployment)}
        for kind, path in PATHS.items():
            for item in complete(self._api, path, SideResource, need=Need.OPTIONAL, params=params).items:
                if item.is_free and mapping.is_ours(item.labels, self._deployment):
                    yield str(Side(kind, item.id))

    def claim(self, server: Server) -> None:
        """Marks what the server will leave.  A failure is told and holds up nothing: the server costs more."""
        for side in self._hanging_on(server):
            try:
                self._mark(side, server)
            except ProviderError as error:
                log.warning("%s of %s could not be marked and may stay behind: %s", side, server.name, error)

    def delete(self, side: Side) -> Deleted:
        """Removes one; what is not this deployment's counts as gone.

        Raises:
            ProviderError: `ErrorKind.BUSY` when something uses it again, or the call failed.
        """
        item = self._get(side)
        if item is None or not mapping.is_ours(item.labels, self._deployment):
            return Deleted.GONE
        if not item.is_free:
            raise refusal(ErrorKind.BUSY, f"{side} is in use; detach it first", Scope.INSTANCE)
        try:
            self._api.call("DELETE", side.path, need=Need.DELETE)
        except ProviderError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
        self._known = tuple(known for known in self._known if known != str(side))
        return Deleted.GONE

    def _hanging_on(self, server: Server) -> Iterator[Side]:
        public = server.public_net
        hanging: dict[Kind, tuple[int | None, ...]] = {
            "volume": server.volumes,
            "primary_ip": tuple(ip.id for ip in (public.ipv4, public.ipv6) if ip is not None),
            "floating_ip": public.floating_ips,
        }
        for kind in self._settings.claim:
            yield from (Side(kind, number) for number in hanging[kind] if number is not None)

    def _mark(self, side: Side, server: Server) -> None:
        item = self._get(side)
        if item is None or item.auto_delete or item.labels:
            return
        labels = {key: server.labels[key] for key in (DEPLOYMENT_LABEL, OPERATION_LABEL)}
        self._api.call("PUT", side.path, need=Need.DELETE, body={"labels": labels})

    def _get(self, side: Side) -> SideResource | None:
        try:
            answered = self._api.call("GET", side.path, need=Need.DELETE)
        except ProviderError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return None
            raise
        return read(SideResource, answered.payload.get(side.kind))
