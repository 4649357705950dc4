"""UCloud's Core: the five calls that are needed, for one project.

None is sent twice but for one reason: UCloud said that the access token has expired, which it checks before it does
anything.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from providers.http import Answer, AnswerTooLargeError, Call, Connection, NoAnswerError, Timeouts
from providers.ucloud import errors
from providers.ucloud.errors import Refusal
from providers.ucloud.models import Acknowledged, Catalogue, Job, JobPage, Submitted, SupportedProduct, Tokens

CONNECT_SECONDS: Final = 5.0
TOKEN_SECONDS: Final = 540.0
"""An access token lives ten minutes; a new one is fetched before it ends."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Credential:
    """The secret of the account."""

    token: str = field(repr=False)
    is_refresh_token: bool


@dataclass(frozen=True)
class JobListing:
    """Every job that a browse found, the newest first."""

    jobs: tuple[Job, ...]
    taken_at: datetime
    """By UCloud's clock, when the first page was answered."""


@dataclass(frozen=True)
class Accepted:
    """One job that UCloud took on."""

    id: str
    at: datetime
    """By UCloud's clock."""


class UCloudClient:
    """UCloud's Core, for one project."""

    def __init__(
        self,
        base_url: str,
        credential: Credential,
        *,
        project: str | None,
        seconds: float,
        page_size: int,
        max_pages: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        timeouts = Timeouts(connect=min(CONNECT_SECONDS, seconds), silence=seconds, whole=seconds)
        self._connection = Connection(base_url, timeouts, {"Project": project} if project else None)
        self._credential = credential
        self._page_size = page_size
        self._max_pages = max_pages
        self._clock = clock
        self._lock = threading.Lock()
        self._access = "" if credential.is_refresh_token else credential.token
        self._fresh_until = float("-inf") if credential.is_refresh_token else float("inf")

    def browse(self, labels: Mapping[str, str], *, ids: Sequence[str] = (), updates: bool = False) -> JobListing:
        """Return every job, ended ones too, that has all these labels.

        Args:
            labels: names in lower case, with their values.
            ids: only these jobs.
            updates: whether each job's history is wanted.

        Raises:
            ProviderError: any page failed, or the pages do not make one complete listing.
        """
        query = {f"filterLabels.{name}": value for name, value in labels.items()}
        query |= {"itemsPerPage": str(self._page_size)}
        query |= {"filterIds": ",".join(ids)} if ids else {}
        query |= {"includeUpdates": "true"} if updates else {}
        found: list[Job] = []
        taken_at: datetime | None = None
        cursor: str | None = None
        last: int | None = None
        for _ in range(self._max_pages):
            answer = self._ask(Call.READ, "GET", "/api/jobs/browse", query | ({"next": cursor} if cursor else {}))
            page = _read(Call.READ, JobPage, answer)
            taken_at = taken_at or _date(answer)
            last = _check_order(page, last, cursor)
            found += [job for job in page.items if _matches(job, labels, ids)]
            if page.next is None:
                return JobListing(tuple(found), taken_at)
            cursor = page.next
        raise errors.unreadable(
            Call.READ, f"the listing did not end within {self._max_pages} pages; raise max_pages or page_size"
        )

    def products(self) -> tuple[SupportedProduct, ...]:
        """Return everything that is sold, by all service providers."""
        answer = self._ask(Call.READ, "GET", "/api/jobs/retrieveProducts")
        catalogue = _read(Call.READ, Catalogue, answer).products_by_provider
        return tuple(item for sold in catalogue.values() for item in sold)

    def submit(self, specification: Mapping[str, object]) -> Accepted:
        """Order one job.  Never sent again after it may have arrived."""
        answer = self._ask(Call.CREATE, "POST", "/api/jobs", body={"items": [specification]})
        responses = _read(Call.CREATE, Submitted, answer).responses
        if len(responses) != 1:
            raise errors.unreadable(Call.CREATE, f"it has {len(responses)} ids for one job")
        return Accepted(responses[0].id, _date(answer))

    def terminate(self, job_id: str) -> None:
        """Ask for the end of one job.  Success says that it was asked, and nothing more."""
        answer = self._ask(Call.CHANGE, "POST", "/api/jobs/terminate", body={"items": [{"id": job_id}]})
        _read(Call.CHANGE, Acknowledged, answer)

    # -- one exchange -------------------------------------------------------------------------------------------------

    def _ask(
        self, call: Call, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> Answer:
        """Return the answer to one call; with a new access token if the first was refused as expired."""
        token = self._token()
        answer = self._send(call, method, path, token, query, body)
        is_refused = answer.status == 403 and Refusal.of(answer).is_expired_token
        if self._credential.is_refresh_token and is_refused:
            answer = self._send(call, method, path, self._token(instead_of=token), query, body)
        if not answer.is_success:
            raise errors.refused(call, Refusal.of(answer))
        return answer

    def _token(self, instead_of: str | None = None) -> str:
        """Return the access token, fetched again when it has expired or is the one that was refused."""
        with self._lock:
            if self._clock() >= self._fresh_until or self._access == instead_of:
                answer = self._send(Call.SIGN_IN, "POST", "/auth/refresh", self._credential.token)
                if not answer.is_success:
                    raise errors.refused(Call.SIGN_IN, Refusal.of(answer))
                self._access = _read(Call.SIGN_IN, Tokens, answer).access_token
                self._fresh_until = self._clock() + TOKEN_SECONDS
            return self._access

    def _send(
        self,
        call: Call,
        method: str,
        path: str,
        token: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> Answer:
        try:
            return self._connection.exchange(method, path, token=token, query=query, body=body)
        except AnswerTooLargeError as error:
            raise errors.unreadable(call, str(error)) from error
        except NoAnswerError as error:
            raise errors.unanswered(call, error) from error


def _date(answer: Answer) -> datetime:
    """Return when an answer was given, by the server's clock where it says so."""
    return answer.date or datetime.now(UTC)


def _read(call: Call, model: type[Model], answer: Answer) -> Model:
    try:
        return model.model_validate_json(answer.body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise errors.unreadable(call, f"{where}: {first['msg']}") from None


def _matches(job: Job, labels: Mapping[str, str], ids: Sequence[str]) -> bool:
    """Apply the filter again: UCloud drops a filter that it does not know without a word."""
    return labels.items() <= job.labels.items() and (not ids or job.id in ids)


def _check_order(page: JobPage, last: int | None, cursor: str | None) -> int | None:
    """Return the last job's number if the pages so far make one listing: numbers fall, and the cursor moves.

    Raises:
        ProviderError: they do not.
    """
    try:
        numbers = [job.number for job in page.items]
    except ValueError:
        raise errors.unreadable(Call.READ, "a job's id is no number") from None
    seen = numbers if last is None else [last, *numbers]
    if any(before <= after for before, after in itertools.pairwise(seen)):
        raise errors.unreadable(Call.READ, "its pages overlap, so jobs may be missing")
    if page.next is not None and page.next == cursor:
        raise errors.unreadable(Call.READ, "its cursor stands still")
    return seen[-1] if seen else None
