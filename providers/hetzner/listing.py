"""Whole listings out of pages, or none.

Pages are cut by offset from a set that goes on changing: when something of page 1 is deleted, the first of page 2 slips
into page 1 unseen.  A reading is taken for whole when it shows that nothing of the kind can have happened: the total is
the same on every page, it is the number of different items read, and none of them was made while reading (a create
would hide a delete in the total).  Failing that, two readings in a row must be equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from pydantic import AwareDatetime, BaseModel

from providers.base import Applied, ErrorKind, ProviderError, Scope
from providers.hetzner import errors
from providers.hetzner.client import Api, read
from providers.hetzner.models import Answer, Page
from providers.rate_limit import Need

PER_PAGE: Final = 50
"""The most that the API gives."""
MAX_PAGES: Final = 400
"""Far more than any project may hold; a listing without an end is a fault."""
READINGS: Final = 4
"""Tries at one listing; each costs calls of the budget, and the caller comes again anyway."""

M = TypeVar("M", bound=BaseModel)


class _Keyed(Answer):
    id: int
    created: AwareDatetime | None = None


@dataclass(frozen=True)
class Listing(Generic[M]):
    """Everything, each once, by rising id."""

    items: tuple[M, ...]
    taken_at: datetime
    """The provider's clock at the first page."""


@dataclass(frozen=True)
class _Reading:
    """One pass over all pages."""

    pages: tuple[tuple[Mapping[str, Any], ...], ...]
    totals: frozenset[int | None]
    started_at: datetime
    newest: datetime | None

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """The ids, page by page."""
        return tuple(tuple(item["id"] for item in page) for page in self.pages)

    @property
    def is_consistent(self) -> bool:
        """Whether every page told one total, and it is what was read, each item once."""
        ids = [number for page in self.shape for number in page]
        return len(set(ids)) == len(ids) and self.totals <= {None, len(ids)} and len(self.totals) == 1

    @property
    def is_proof(self) -> bool:
        """Whether it shows by itself that nothing was missed."""
        if not self.is_consistent:
            return False
        if len(self.pages) == 1:
            return True
        # Times have whole seconds, so what was made within the first one may have been made while reading.
        return None not in self.totals and (self.newest is None or self.newest < self.started_at)


def complete(
    api: Api,
    path: str,
    model: type[M],
    *,
    need: Need,
    params: Mapping[str, str | int] | None = None,
    sort: str | None = "id:asc",
) -> Listing[M]:
    """Everything under ``path``.

    Args:
        api: the project.
        path: such as ``/servers``; the items stand under its last part.
        model: what each item is read as.
        need: how much of the budget it leaves alone.
        params: filters.
        sort: the order of pages, in which what is new comes last; ``None`` where the API takes none.

    Raises:
        ProviderError: it cannot be read, or it changed at every try: `ErrorKind.TRANSIENT`.
    """
    query = {**(params or {}), **({"sort": sort} if sort is not None else {})}
    before: _Reading | None = None
    for _ in range(READINGS):
        reading = _read(api, path, need, query)
        same = before is not None and reading.is_consistent and before.shape == reading.shape
        if reading.is_proof or same:
            items = sorted((item for page in reading.pages for item in page), key=lambda item: int(item["id"]))
            return Listing(tuple(read(model, item) for item in items), reading.started_at)
        before = reading
    raise ProviderError(
        f"hetzner: the listing {path} changed during each of {READINGS} readings; the next one may be quieter",
        kind=ErrorKind.TRANSIENT,
        applied=Applied.NO,
        scope=Scope.PROVIDER,
    )


def _read(api: Api, path: str, need: Need, params: Mapping[str, str | int]) -> _Reading:
    key = path.rsplit("/", 1)[-1]
    pages: list[tuple[Mapping[str, Any], ...]] = []
    totals: set[int | None] = set()
    times: list[datetime] = []
    created: list[datetime] = []
    number: int | None = 1
    while number is not None:
        answered = api.call("GET", path, need=need, params={**params, "page": number, "per_page": PER_PAGE})
        times.append(answered.at)
        items = answered.rows(key)
        keyed = [read(_Keyed, item) for item in items]
        created += [item.created for item in keyed if item.created is not None]
        pages.append(tuple(items))
        pagination = answered.read(Page).meta.pagination
        totals.add(pagination.total_entries)
        number = _following(path, number, pagination.next_page)
    return _Reading(tuple(pages), frozenset(totals), times[0], max(created, default=None))


def _following(path: str, number: int, following: int | None) -> int | None:
    if following is not None and not number < following <= MAX_PAGES:
        raise errors.not_understood(f"{path} says that page {following} follows page {number}", mutating=False)
    return following
