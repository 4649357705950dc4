"""The six methods over the cloud API."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import ClassVar, Final, Self

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
from providers.hetzner.client import Api, read
from providers.hetzner.errors import refusal
from providers.hetzner.leftovers import Leftovers, Side
from providers.hetzner.listing import complete
from providers.hetzner.models import Image, Pricing, Server, ServerAnswer, ServerType
from providers.hetzner.settings import HetznerSettings, parse
from providers.rate_limit import CALLS_PER_HOUR, Need

BY_LABEL: Final = "label:"
SSH_PORT: Final = 22
USER: Final = "root"
MAX_NUMBER: Final = 2**63 - 1
# Refusals under which an earlier try of the same operation may stand: its server takes the name, fills the quota or
# uses up the place, and in which order the API looks at these is not told.
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
        self._api = Api(settings, token, monotonic=monotonic)
        self._leftovers = Leftovers(self._api, settings, deployment, monotonic)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        parsed = parse(settings)
        return cls(parsed, parsed.token(environ), deployment=deployment)

    def offers(self) -> list[Offer]:
        listing = complete(self._api, "/server_types", ServerType, need=Need.OPTIONAL, sort=None)
        answered = self._api.call("GET", "/pricing", need=Need.OPTIONAL)
        pricing = read(Pricing, answered.payload.get("pricing"))
        return mapping.offers(listing.items, pricing, self._settings, answered.at)

    def list(self) -> Inventory:
        listing = complete(self._api, "/servers", Server, need=Need.LIST, params=self._ours())
        instances = tuple(
            mapping.instance(server, listing.taken_at, self._settings)
            for server in listing.items
            if mapping.is_ours(server.labels, self._deployment)
        )
        return Inventory(instances, listing.taken_at, self._leftovers.ids())

    def get(self, ref: Ref) -> Instance | None:
        found = self._find(ref, Need.CREATE)
        return mapping.instance(*found, self._settings) if found is not None else None

    def create(self, want: Create) -> Instance:
        """See `ComputeProvider.create`.

        It calls once.  A create whose answer was lost is settled by the next call with the same name: the API refuses
        a second server of that name, and the first one is found and adopted.
        """
        if want.deployment != self._deployment:
            message = f"{want.name} is of deployment {want.deployment}, and this provider of {self._deployment}"
            raise refusal(ErrorKind.CONFIG, message)
        image, pinned = self._image(want)
        body = mapping.order(want, image, self._settings, pinned=pinned)
        try:
            answered = self._api.call("POST", "/servers", need=Need.CREATE, body=body, creating=True)
        except ProviderError as error:
            if error.kind not in _MAY_BE_THERE:
                raise
            return self._adopted(want, error)
        made = mapping.instance(answered.read(ServerAnswer).server, answered.at, self._settings)
        return replace(made, phase=Phase.BOOTING)

    def delete(self, ref: Ref) -> Deleted:
        """See `ComputeProvider.delete`; also takes the ids of `Inventory.leftovers`."""
        if ref.id is not None and (side := Side.parse(ref.id)) is not None:
            return self._leftovers.delete(side)
        found = self._find(ref, Need.DELETE)
        if found is None:
            return Deleted.GONE
        server = found[0]
        if mapping.phase(*found, self._settings.newborn_seconds) is Phase.STOPPING:
            return Deleted.ACCEPTED
        self._leftovers.claim(server)
        self._leftovers.look_again()
        try:
            self._api.call("DELETE", f"/servers/{server.id}", need=Need.DELETE)
        except ProviderError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return Deleted.GONE
            raise
        return Deleted.ACCEPTED

    def connect(self, instance: Instance) -> Access | None:
        return Access(instance.address, SSH_PORT, USER) if instance.address is not None else None

    # -- one server ---------------------------------------------------------------------------------------------------

    def _ours(self) -> dict[str, str | int]:
        return {"label_selector": mapping.selector(self._deployment)}

    def _find(self, ref: Ref, need: Need) -> tuple[Server, datetime] | None:
        """The deployment's server that is meant, and the provider's clock at the look."""
        if ref.id is not None:
            found = self._by_id(ref.id, need)
        elif ref.name is not None:
            found = self._by_name(ref.name, need)
        else:
            return None
        if found is None or not mapping.is_ours(found[0].labels, self._deployment):
            return None
        return found if ref.name in (None, found[0].name) else None

    def _by_id(self, number: str, need: Need) -> tuple[Server, datetime] | None:
        if not (number.isascii() and number.isdecimal() and int(number) <= MAX_NUMBER):
            return None
        try:
            answered = self._api.call("GET", f"/servers/{number}", need=need)
        except ProviderError as error:
            if error.kind is ErrorKind.NOT_FOUND:
                return None
            raise
        return answered.read(ServerAnswer).server, answered.at

    def _by_name(self, name: str, need: Need) -> tuple[Server, datetime] | None:
        """The server of that name, whosever it is."""
        if mapping.NAME.fullmatch(name) is None:
            return None
        answered = self._api.call("GET", "/servers", need=need, params={"name": name})
        for server in (read(Server, row) for row in answered.rows("servers")):
            if server.name == name:
                return server, answered.at
        return None

    def _adopted(self, want: Create, refused: ProviderError) -> Instance:
        """What an earlier try of the same operation made, or the refusal."""
        try:
            found = self._by_name(want.name, Need.CREATE)
        except ProviderError as error:
            # This operation's own server may be the reason of the refusal: only a look would tell.
            error.applied = Applied.MAYBE
            raise error from refused
        if found is not None and self._is_of(found[0], want):
            return replace(mapping.instance(*found, self._settings), adopted=True)
        if refused.kind is not ErrorKind.EXISTS:
            raise refused
        if found is None:
            raise ProviderError(
                f"hetzner: the name {want.name} was taken and a moment later was not; ask again",
                kind=ErrorKind.TRANSIENT,
                applied=Applied.MAYBE,
                scope=Scope.INSTANCE,
                code=refused.code,
            ) from refused
        message = f"the name {want.name} is taken by server {found[0].id}, which is not of this operation"
        raise refusal(ErrorKind.EXISTS, message, Scope.INSTANCE) from refused

    def _is_of(self, server: Server, want: Create) -> bool:
        mine = mapping.is_ours(server.labels, self._deployment)
        return mine and server.labels[OPERATION_LABEL] == want.operation_id

    # -- image --------------------------------------------------------------------------------------------------------

    def _image(self, want: Create) -> tuple[str | int, bool]:
        """What to boot from, and whether it was chosen among several."""
        image = want.image or self._settings.image
        if not image:
            raise refusal(ErrorKind.CONFIG, f"{want.name} has no image: set `image` of the pool or of the provider")
        if not image.startswith(BY_LABEL):
            return mapping.named(image), False
        return self._newest(image.removeprefix(BY_LABEL)), True

    def _newest(self, selector: str) -> int:
        """Id of the newest snapshot that carries the labels."""
        params: dict[str, str | int] = {
            "type": "snapshot",
            "status": "available",
            "architecture": self._settings.architecture,
            "label_selector": selector,
            "sort": "created:desc",
        }
        answered = self._api.call("GET", "/images", need=Need.CREATE, params=params)
        images = [read(Image, row) for row in answered.rows("images")]
        if not images:
            raise refusal(ErrorKind.CONFIG, f"no snapshot for {self._settings.architecture} carries {selector!r}")
        return max(images, key=lambda image: (image.created, image.id)).id
