"""Side resources that outlive their server and go on being billed: volumes and addresses.

A server's delete detaches them.  Those that no other owner has labelled are claimed with the fleet's labels before the
delete, so that they are known again afterwards, by any process and without a memory.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

from hcloud.floating_ips import BoundFloatingIP
from hcloud.primary_ips import BoundPrimaryIP
from hcloud.volumes import BoundVolume

from providers.base import DEPLOYMENT_LABEL, OPERATION_LABEL, Deleted, ErrorKind, ProviderError, Scope
from providers.hetzner import mapping
from providers.hetzner.client import PER_PAGE, Conversation, GetPage, HetznerClient, list_all
from providers.hetzner.errors import not_sent
from providers.hetzner.models import PublicNet, Server, SideResource
from providers.hetzner.settings import HetznerSettings
from providers.rate_limit import Priority

log = logging.getLogger(__name__)

SideKind = Literal["volume", "primary_ip", "floating_ip"]
KINDS: Final[tuple[SideKind, ...]] = get_args(SideKind)


@dataclass(frozen=True)
class Side:
    """Names one side resource; its text is an id in `Inventory.leftovers`."""

    kind: SideKind
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Side | None":
        """Return the resource that an id names; ``None`` for the id of a server and for anything else."""
        for kind in KINDS:
            number = text.removeprefix(f"{kind}:")
            if number != text and number.isdecimal():
                return cls(kind, int(number))
        return None


class Leftovers:
    """Finds, claims and removes the leftovers of one deployment."""

    def __init__(
        self,
        client: HetznerClient,
        settings: HetznerSettings,
        deployment: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._deployment = deployment
        self._monotonic = monotonic
        self._known: tuple[str, ...] = ()
        self._listed_at = float("-inf")

    def ids(self) -> tuple[str, ...]:
        """Return what no server uses any more, as of the last look; look again when it is due and calls allow it.

        Raises:
            ProviderError: a listing failed.
        """
        now = self._monotonic()
        is_due = now - self._listed_at >= self._settings.leftovers_seconds
        if is_due and self._client.rate_limit.wait(Priority.OPTIONAL) == 0:
            self._known = tuple(self._find())
            self._listed_at = now
        return self._known

    def expire(self) -> None:
        """Make the next `ids` look again: a server goes, and may leave something."""
        self._listed_at = float("-inf")

    def claim(self, server: Server) -> None:
        """Label what the server will leave.  A failure is logged and delays nothing: the server costs more."""
        for side in self._attached_to(server):
            try:
                self._label(side, server)
            except ProviderError as error:
                log.warning("%s of %s could not be labelled and may stay behind: %s", side, server.name, error)

    def delete(self, side: Side) -> Deleted:
        """Remove a leftover; what is not this deployment's counts as gone.

        Raises:
            ProviderError: `ErrorKind.BUSY` when something uses it again, or the call failed.
        """
        try:
            with self._client.talk(Priority.DELETE) as hetzner:
                bound = _fetch(hetzner, side)
                item = SideResource.of(bound)
                if not mapping.is_ours(item.labels, self._deployment):
                    return Deleted.GONE
                if not item.is_free:
                    raise not_sent(ErrorKind.BUSY, f"{side} is in use; detach it first", Scope.INSTANCE)
                bound.delete()
        except ProviderError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
        self._known = tuple(known for known in self._known if known != str(side))
        return Deleted.GONE

    def _find(self) -> Iterator[str]:
        for kind in KINDS:
            get_page = _pages(kind, mapping.selector(self._deployment))
            for item in list_all(self._client, get_page, SideResource, priority=Priority.OPTIONAL).items:
                if item.is_free and mapping.is_ours(item.labels, self._deployment):
                    yield str(Side(kind, item.id))

    def _attached_to(self, server: Server) -> Iterator[Side]:
        public = server.public_net or PublicNet()
        attached = {
            "volume": server.volumes,
            "primary_ip": tuple(ip for ip in (public.primary_ipv4, public.primary_ipv6) if ip is not None),
            "floating_ip": public.floating_ips,
        }
        for kind in self._settings.claim:
            yield from (Side(kind, each.id) for each in attached[kind] if each.id is not None)

    def _label(self, side: Side, server: Server) -> None:
        try:
            with self._client.talk(Priority.DELETE) as hetzner:
                bound = _fetch(hetzner, side)
                item = SideResource.of(bound)
                if not item.auto_delete and not item.labels:
                    bound.update(labels={key: server.labels[key] for key in (DEPLOYMENT_LABEL, OPERATION_LABEL)})
        except ProviderError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise


def _fetch(hetzner: Conversation, side: Side) -> BoundVolume | BoundPrimaryIP | BoundFloatingIP:
    match side.kind:
        case "volume":
            return hetzner.volumes.get_by_id(side.number)
        case "primary_ip":
            return hetzner.primary_ips.get_by_id(side.number)
        case "floating_ip":
            return hetzner.floating_ips.get_by_id(side.number)


def _pages(kind: SideKind, selector: str) -> GetPage:
    match kind:
        case "volume":
            return lambda hetzner, page: hetzner.volumes.get_list(label_selector=selector, page=page, per_page=PER_PAGE)
        case "primary_ip":
            return lambda hetzner, page: hetzner.primary_ips.get_list(
                label_selector=selector, page=page, per_page=PER_PAGE
            )
        case "floating_ip":
            return lambda hetzner, page: hetzner.floating_ips.get_list(
                label_selector=selector, page=page, per_page=PER_PAGE
            )
