"""Hetzner Cloud's API: hcloud's resource clients and models over exchanges of our own.

hcloud's transport does two things that cannot stay, and has a switch for neither.  It repeats calls, creates too, and
sleeps up to a minute between two tries; and it hides headers, which hold the rate limit and the provider's clock.  So
its resource clients, which know paths, queries and models, get a `Conversation` in place of hcloud's `Client`.  They
reach the network through nothing else, whatever hcloud's own transport comes to do.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Self, TypeVar, cast

import hcloud
from hcloud.actions import ActionsClient
from hcloud.core import BoundModelBase, Meta
from hcloud.firewalls import FirewallsClient
from hcloud.floating_ips import FloatingIPsClient
from hcloud.images import ImagesClient
from hcloud.isos import IsosClient
from hcloud.locations import LocationsClient
from hcloud.networks import NetworksClient
from hcloud.placement_groups import PlacementGroupsClient
from hcloud.primary_ips import PrimaryIPsClient
from hcloud.server_types import ServerTypesClient
from hcloud.servers import ServersClient
from hcloud.volumes import VolumesClient

from providers.base import Applied, ErrorKind, ProviderError, Scope
from providers.hetzner import errors
from providers.hetzner.errors import ErrorAnswer
from providers.hetzner.models import Listed, Page
from providers.hetzner.settings import HetznerSettings
from providers.http import Call, Connection, NoAnswerError, Timeouts
from providers.rate_limit import Priority, RateLimit

PER_PAGE: Final = 50
"""The most that the API gives."""
MAX_PAGES: Final = 400
"""Far more than any project may hold; a listing without an end is a fault."""
READINGS: Final = 4
"""Tries at one listing; each costs calls, and the caller comes again anyway."""

M = TypeVar("M", bound=Listed)
GetPage = Callable[["Conversation", int], tuple[Sequence[BoundModelBase[Any]], Meta]]


class HetznerClient:
    """One project.  Each call is made once, bounded in time, and fails in the provider's terms only."""

    def __init__(
        self, settings: HetznerSettings, token: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate_limit = RateLimit(settings.reserve_calls, kind="hetzner", monotonic=monotonic)
        whole = settings.connect_seconds + 2 * settings.read_seconds
        self._connection = Connection(
            settings.endpoint, Timeouts(settings.connect_seconds, settings.read_seconds, whole)
        )
        self._token = token

    @contextmanager
    def talk(self, priority: Priority, *, creates: bool = False, sort: str | None = None) -> Iterator["Conversation"]:
        """Yield hcloud's resource clients for the calls of one ``with`` block.

        What they return has to be read into a value within the block: what of it does not fit is an error there.

        Args:
            priority: of the calls, when few are left.
            creates: whether a server is ordered; some error codes mean something else then.
            sort: order of the pages of a listing; hcloud does not know it for all kinds.

        Raises:
            ProviderError: a call failed; see `providers.hetzner.errors`.
        """
        conversation = Conversation(self, priority, creates=creates, sort=sort)
        try:
            yield conversation
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # hcloud reads answers without looking, and breaks on those of another shape.
            raise errors.unreadable(conversation.last_call, f"{type(error).__name__}: {error}"[:500]) from error

    def send(
        self, call: Call, priority: Priority, method: str, path: str, query: Mapping[str, Any] | None, body: object
    ) -> tuple[dict[str, Any], datetime]:
        """Make one call.

        Returns:
            The answer, and the provider's clock as it answered.

        Raises:
            ProviderError: it failed.
        """
        self.rate_limit.require(priority)
        try:
            answer = self._connection.exchange(method, path, token=self._token, query=query, body=body)
        except NoAnswerError as error:
            raise errors.unanswered(call, error) from error
        self.rate_limit.note(answer.headers, refused=answer.status == 429)
        if not answer.is_success:
            failed = errors.refused(call, ErrorAnswer.of(answer))
            if failed.kind is ErrorKind.RATE_LIMIT:
                failed.retry_after = self.rate_limit.wait(priority)
            raise failed
        if answer.date is None:
            raise errors.unreadable(call, f"its Date header is {answer.headers.get('Date')!r}")
        payload = json.loads(answer.body) if answer.body else {}
        if not isinstance(payload, dict):
            raise errors.unreadable(call, f"{method} {path} gave {type(payload).__name__}")
        return payload, answer.date


class Conversation:
    """What hcloud's resource clients take for their client: it sends what they ask, with one priority.

    Attributes:
        now: the provider's clock at the last answer.
        last_call: what was asked last.
    """

    now: datetime

    def __init__(self, client: HetznerClient, priority: Priority, *, creates: bool, sort: str | None) -> None:
        self._sender = client
        self._priority = priority
        self._creates = creates
        self._sort = sort
        self.last_call = Call.READ
        parent = cast("hcloud.Client", self)
        self.actions = ActionsClient(parent)
        self.firewalls = FirewallsClient(parent)
        self.floating_ips = FloatingIPsClient(parent)
        self.images = ImagesClient(parent)
        self.isos = IsosClient(parent)
        self.locations = LocationsClient(parent)
        self.networks = NetworksClient(parent)
        self.placement_groups = PlacementGroupsClient(parent)
        self.primary_ips = PrimaryIPsClient(parent)
        self.server_types = ServerTypesClient(parent)
        self.servers = ServersClient(parent)
        self.volumes = VolumesClient(parent)

    @property
    def _client(self) -> Self:
        """Under this name resource clients look for what sends their requests."""
        return self

    def request(
        self, method: str, url: str, *, params: Mapping[str, Any] | None = None, json: object = None
    ) -> dict[str, Any]:
        """Send one request, as `hcloud.Client.request` would.

        Raises:
            ProviderError: it failed.
        """
        self.last_call = Call.READ if method == "GET" else Call.CREATE if self._creates else Call.CHANGE
        query = {**(params or {}), **({"sort": self._sort} if self._sort is not None else {})}
        answer, self.now = self._sender.send(self.last_call, self._priority, method, url, query, json)
        return answer


# -- whole listings ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing(Generic[M]):
    """Everything, each once, by rising id."""

    items: tuple[M, ...]
    taken_at: datetime
    """The provider's clock at the first page."""


@dataclass(frozen=True)
class _Reading(Generic[M]):
    """One pass over all pages."""

    pages: tuple[tuple[M, ...], ...]
    totals: frozenset[int | None]
    started_at: datetime

    @property
    def items(self) -> tuple[M, ...]:
        return tuple(item for page in self.pages for item in page)

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """The ids, page by page."""
        return tuple(tuple(item.id for item in page) for page in self.pages)

    @property
    def is_consistent(self) -> bool:
        """Whether every page has the same total, and it is what was read, each item once."""
        ids = [item.id for item in self.items]
        return len(set(ids)) == len(ids) and self.totals <= {None, len(ids)} and len(self.totals) == 1

    @property
    def is_proof(self) -> bool:
        """Whether it shows by itself that nothing was missed."""
        if not self.is_consistent:
            return False
        if len(self.pages) == 1:
            return True
        # Times have whole seconds, so what was made within the first one may have been made while reading.
        made = [item.created for item in self.items if item.created is not None]
        return None not in self.totals and all(moment < self.started_at for moment in made)


def list_all(
    client: HetznerClient, get_page: GetPage, model: type[M], *, priority: Priority, sort: str | None = "id:asc"
) -> Listing[M]:
    """Return everything of one kind, or raise.

    hcloud's ``get_all`` only follows pages.  But pages are cut by offset from a set that goes on changing: when
    something of page 1 is deleted, the first of page 2 slips into page 1 unseen.  A reading is taken for whole when it
    shows that nothing of the kind can have happened: the total is the same on every page, it is the number of
    different items read, and none of them was made while reading (a create would hide a delete in the total).  Failing
    that, two readings in a row must be equal.

    Args:
        client: the project.
        get_page: returns one page by its number, of `PER_PAGE`.
        model: what each item is read as.
        priority: of the calls, when few are left.
        sort: the order of pages, in which what is new comes last; ``None`` where the API takes none.

    Raises:
        ProviderError: it cannot be read, or it changed at every try: `ErrorKind.TRANSIENT`.
    """
    before: _Reading[M] | None = None
    for _ in range(READINGS):
        with client.talk(priority, sort=sort) as hetzner:
            reading = _read(hetzner, get_page, model)
        is_repeated = before is not None and reading.is_consistent and before.shape == reading.shape
        if reading.is_proof or is_repeated:
            return Listing(tuple(sorted(reading.items, key=lambda item: item.id)), reading.started_at)
        before = reading
    raise ProviderError(
        f"hetzner: a listing changed during each of {READINGS} readings; the next one may be quieter",
        kind=ErrorKind.TRANSIENT,
        applied=Applied.NO,
        scope=Scope.PROVIDER,
    )


def _read(hetzner: Conversation, get_page: GetPage, model: type[M]) -> _Reading[M]:
    pages: list[tuple[M, ...]] = []
    totals: set[int | None] = set()
    times: list[datetime] = []
    number: int | None = 1
    while number is not None:
        items, meta = get_page(hetzner, number)
        times.append(hetzner.now)
        pages.append(tuple(model.of(item) for item in items))
        page = Page.of(meta.pagination)
        totals.add(page.total_entries)
        if page.next_page is not None and not number < page.next_page <= MAX_PAGES:
            raise ValueError(f"page {page.next_page} follows page {number}")
        number = page.next_page
    return _Reading(tuple(pages), frozenset(totals), times[0])
