"""The six methods over servers of a project."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import ClassVar, Final, Self

import hcloud

from providers.base import (
    OPERATION_LABEL,
    Access,
    Applied,
    Billing,
    Caps,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Inventory,
    Offer,
    Phase,
    ProviderError,
    Ref,
    Scope,
)
from providers.hetzner import mapping
from providers.hetzner.client import PER_PAGE, HetznerClient, list_all
from providers.hetzner.errors import not_sent
from providers.hetzner.leftovers import Leftovers, Side
from providers.hetzner.models import Pricing, Server, ServerType, Snapshot
from providers.hetzner.settings import HetznerSettings, parse
from providers.rate_limit import CALLS_PER_HOUR, Priority

BY_LABEL: Final = "label:"
SSH_PORT: Final = 22
USER: Final = "root"
MAX_NUMBER: Final = 2**63 - 1
# Refusals that an earlier try of the same operation may have caused: its server takes the name, fills the quota or uses
# up the place, and in which order the API checks these is unknown.
_MAY_BE_THERE: Final = frozenset({ErrorKind.EXISTS, ErrorKind.QUOTA, ErrorKind.CAPACITY, ErrorKind.CONFIG})


class HetznerProvider(ComputeProvider):
    """Servers of one project of Hetzner Cloud that carry the deployment's label and an operation's."""

    kind: ClassVar[str] = "hetzner"
    caps: ClassVar[Caps] = Caps(
        unique_names=True,
        list_is_atomic=False,
        deleted_vanish=True,
        billing=Billing.HOURLY_ROUND_UP,
        max_user_data=mapping.MAX_USER_DATA,
        calls_per_hour=CALLS_PER_HOUR,
        has_gpu=False,
    )

    def __init__(
        self,
        settings: HetznerSettings,
        token: str,
        *,
        deployment: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._deployment = deployment
        self._client = HetznerClient(settings, token, monotonic=monotonic)
        self._leftovers = Leftovers(self._client, settings, deployment, monotonic)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        parsed = parse(settings)
        return cls(parsed, parsed.token(environ), deployment=deployment)

    def offers(self) -> list[Offer]:
        listing = list_all(
            self._client,
            lambda hetzner, page: hetzner.server_types.get_list(page=page, per_page=PER_PAGE),
            ServerType,
            priority=Priority.OPTIONAL,
            sort=None,
        )
        with self._client.talk(Priority.OPTIONAL) as hetzner:
            pricing = Pricing.of(hetzner.request("GET", "/pricing")["pricing"])  # hcloud has no client for it
        return mapping.offers(listing.items, pricing, self._settings, hetzner.now)

    def list(self) -> Inventory:
        selector = mapping.selector(self._deployment)
        listing = list_all(
            self._client,
            lambda hetzner, page: hetzner.servers.get_list(label_selector=selector, page=page, per_page=PER_PAGE),
            Server,
            priority=Priority.LIST,
        )
        instances = tuple(
            mapping.instance(server, listing.taken_at, self._settings)
            for server in listing.items
            if mapping.is_ours(server.labels, self._deployment)
        )
        return Inventory(instances, listing.taken_at, self._leftovers.ids())

    def get(self, ref: Ref) -> Instance | None:
        found = self._find(ref, Priority.CREATE)
        return mapping.instance(*found, self._settings) if found is not None else None

    def create(self, want: Create) -> Instance:
        """See `ComputeProvider.create`.

        Orders once.  A create whose answer was lost is settled by the next call with the same name: the API refuses a
        second server of that name, and the first one is found and adopted.
        """
        if want.deployment != self._deployment:
            message = f"{want.name} is of deployment {want.deployment}, and this provider of {self._deployment}"
            raise not_sent(ErrorKind.CONFIG, message)
        image, pinned = self._image(want)
        order = mapping.order(want, image, self._settings, pinned=pinned)
        try:
            with self._client.talk(Priority.CREATE, creates=True) as hetzner:
                server = Server.of(hetzner.servers.create(**order).server)
        except ProviderError as error:
            if error.kind not in _MAY_BE_THERE:
                raise
            return self._adopt(want, error)
        return replace(mapping.instance(server, hetzner.now, self._settings), phase=Phase.BOOTING)

    def delete(self, ref: Ref) -> Deleted:
        """See `ComputeProvider.delete`; also takes the ids of `Inventory.leftovers`."""
        if ref.id is not None and (side := Side.parse(ref.id)) is not None:
            return self._leftovers.delete(side)
        found = self._find(ref, Priority.DELETE)
        if found is None:
            return Deleted.GONE
        server = found[0]
        if mapping.phase(*found, self._settings.newborn_seconds) is Phase.STOPPING:
            return Deleted.ACCEPTED
        self._leftovers.claim(server)
        self._leftovers.expire()
        try:
            with self._client.talk(Priority.DELETE) as hetzner:
                hetzner.servers.delete(hcloud.servers.Server(id=server.id))
        except ProviderError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return Deleted.GONE
            raise
        return Deleted.ACCEPTED

    def connect(self, instance: Instance) -> Access | None:
        return Access(instance.address, SSH_PORT, USER) if instance.address is not None else None

    # -- one server ---------------------------------------------------------------------------------------------------

    def _find(self, ref: Ref, priority: Priority) -> tuple[Server, datetime] | None:
        """Return the deployment's server that ``ref`` names, and the provider's clock at the look."""
        if ref.id is not None:
            found = self._by_id(ref.id, priority)
        elif ref.name is not None:
            found = self._by_name(ref.name, priority)
        else:
            return None
        if found is None or not mapping.is_ours(found[0].labels, self._deployment):
            return None
        is_meant = ref.name in (None, found[0].name) and ref.operation_id in (None, found[0].labels[OPERATION_LABEL])
        return found if is_meant else None

    def _by_id(self, number: str, priority: Priority) -> tuple[Server, datetime] | None:
        if not (number.isascii() and number.isdecimal() and int(number) <= MAX_NUMBER):
            return None
        try:
            with self._client.talk(priority) as hetzner:
                server = Server.of(hetzner.servers.get_by_id(int(number)))
        except ProviderError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return None
            raise
        return server, hetzner.now

    def _by_name(self, name: str, priority: Priority) -> tuple[Server, datetime] | None:
        """Return the server of that name, whosever it is."""
        if mapping.NAME.fullmatch(name) is None:
            return None
        with self._client.talk(priority) as hetzner:
            servers = [Server.of(server) for server in hetzner.servers.get_list(name=name).servers]
        return next(((server, hetzner.now) for server in servers if server.name == name), None)

    def _adopt(self, want: Create, refused: ProviderError) -> Instance:
        """Return what an earlier try of the same operation made, or raise the refusal."""
        try:
            found = self._by_name(want.name, Priority.CREATE)
        except ProviderError as error:
            # This operation's own server may be the reason of the refusal: only a look would show it.
            error.applied = Applied.MAYBE
            raise error from refused
        if found is not None and self._is_of(found[0], want):
            return replace(mapping.instance(*found, self._settings), adopted=True)
        if refused.kind is not ErrorKind.EXISTS:
            raise refused
        if found is None:
            raise ProviderError(
                f"hetzner: the name {want.name} was taken and a moment later was not; try again",
                kind=ErrorKind.TRANSIENT,
                applied=Applied.MAYBE,
                scope=Scope.INSTANCE,
                code=refused.code,
            ) from refused
        message = f"the name {want.name} is taken by server {found[0].id}, which is not of this operation"
        raise not_sent(ErrorKind.EXISTS, message, Scope.INSTANCE) from refused

    def _is_of(self, server: Server, want: Create) -> bool:
        is_ours = mapping.is_ours(server.labels, self._deployment)
        return is_ours and server.labels[OPERATION_LABEL] == want.operation_id

    # -- image --------------------------------------------------------------------------------------------------------

    def _image(self, want: Create) -> tuple[str | int, bool]:
        """Return what to boot from, and whether it was chosen among several."""
        image = want.image or self._settings.image
        if not image:
            raise not_sent(ErrorKind.CONFIG, f"{want.name} has no image: set `image` of the pool or of the provider")
        if not image.startswith(BY_LABEL):
            return image, False
        return self._newest_snapshot(image.removeprefix(BY_LABEL)), True

    def _newest_snapshot(self, selector: str) -> int:
        """Return the id of the newest snapshot that carries the labels."""
        architecture = self._settings.architecture
        with self._client.talk(Priority.CREATE) as hetzner:
            page = hetzner.images.get_list(
                type=["snapshot"],
                architecture=[architecture],
                label_selector=selector,
                sort=["created:desc"],
                per_page=PER_PAGE,
            )
            snapshots = [Snapshot.of(image) for image in page.images]
        # Filtered here: hcloud (2.27) sends the page's size as the status.
        snapshots = [snapshot for snapshot in snapshots if snapshot.status == "available"]
        if not snapshots:
            raise not_sent(ErrorKind.CONFIG, f"no snapshot for {architecture} carries {selector!r}")
        return max(snapshots, key=lambda snapshot: (snapshot.created, snapshot.id)).id
