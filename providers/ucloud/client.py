"""A thin typed client of the five UCloud calls that are needed.

Every call has a deadline and a bounded answer, and none is sent twice but for one reason: UCloud said that the access
token has expired, which it checks before it does anything.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

import requests
import urllib3.exceptions
from pydantic import BaseModel, Field, ValidationError

from providers.ucloud import errors
from providers.ucloud.credential import Secret
from providers.ucloud.errors import Call, Refusal
from providers.ucloud.models import Acknowledged, Catalogue, Job, JobPage, Submitted, SupportedProduct, Tokens

CONNECT_SECONDS: Final = 5.0
MAX_ANSWER: Final = 64 * 2**20
_CHUNK: Final = 64 * 1024
TOKEN_SECONDS: Final = 540.0
"""An access token lives ten minutes; a new one is fetched before it ends."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Listing:
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


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def at(self) -> datetime:
        """When it was given, by the server's clock where it says so."""
        try:
            moment = parsedate_to_datetime(self.headers["Date"])
        except (KeyError, ValueError):
            return datetime.now(UTC)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

    def refusal(self) -> Refusal:
        """What is known of an answer that is no success."""
        try:
            body = _ErrorBody.model_validate_json(self.body)
        except ValidationError:
            words = self.body[:500].decode(errors="replace")
            return Refusal(self.status, words, retry_after=self._retry_after())
        return Refusal(self.status, body.why, body.error_code or "", is_json=True, retry_after=self._retry_after())

    def _retry_after(self) -> float | None:
        value = self.headers.get("Retry-After", "")
        return float(value) if value.isdecimal() else None


class _ErrorBody(BaseModel):
    why: str
    error_code: str | None = Field(default=None, alias="errorCode")


class _Bearer(requests.auth.AuthBase):
    """Being there keeps a ``.netrc`` from replacing the header."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _Sessions(threading.local):
    """A `requests.Session` is not promised to be safe between threads, so each has its own connections."""

    def __init__(self) -> None:
        self.session = requests.Session()


class UCloudClient:
    """UCloud's Core, for one project."""

    def __init__(
        self,
        base_url: str,
        secret: Secret,
        *,
        project: str | None,
        seconds: float,
        page_size: int,
        max_pages: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base_url = base_url
        self._secret = secret
        self._project = project
        self._seconds = seconds
        self._page_size = page_size
        self._max_pages = max_pages
        self._clock = clock
        self._sessions = _Sessions()
        self._lock = threading.Lock()
        self._access = "" if secret.is_refresh_token else secret.value
        self._fresh_until = float("-inf") if secret.is_refresh_token else float("inf")

    def browse(self, labels: Mapping[str, str], *, ids: Sequence[str] = (), updates: bool = False) -> Listing:
        """Every job, ended ones too, that has all these labels.

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
            taken_at = taken_at or answer.at
            last = _checked(page, last, cursor)
            found += [job for job in page.items if _has(job, labels, ids)]
            if page.next is None:
                return Listing(tuple(found), taken_at)
            cursor = page.next
        raise errors.unreadable(
            Call.READ, f"the listing did not end within {self._max_pages} pages; raise max_pages or page_size"
        )

    def products(self) -> tuple[SupportedProduct, ...]:
        """Everything that is sold, by all service providers."""
        answer = self._ask(Call.READ, "GET", "/api/jobs/retrieveProducts")
        catalogue = _read(Call.READ, Catalogue, answer).products_by_provider
        return tuple(item for sold in catalogue.values() for item in sold)

    def submit(self, specification: Mapping[str, object]) -> Accepted:
        """Orders one job.  Never sent again after it may have arrived."""
        answer = self._ask(Call.SUBMIT, "POST", "/api/jobs", body={"items": [specification]})
        responses = _read(Call.SUBMIT, Submitted, answer).responses
        if len(responses) != 1:
            raise errors.unreadable(Call.SUBMIT, f"it has {len(responses)} ids for one job")
        return Accepted(responses[0].id, answer.at)

    def terminate(self, job_id: str) -> None:
        """Asks for the end of one job.  Success says that it was asked, and nothing more."""
        answer = self._ask(Call.TERMINATE, "POST", "/api/jobs/terminate", body={"items": [{"id": job_id}]})
        _read(Call.TERMINATE, Acknowledged, answer)

    # -- one exchange -------------------------------------------------------------------------------------------------

    def _ask(
        self, call: Call, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> _Answer:
        """The answer to one call, if it is a success; with a new access token if the first was refused as expired."""
        token = self._token()
        answer = self._send(call, method, path, token, query, body)
        if self._secret.is_refresh_token and answer.status == 403 and answer.refusal().is_expired_token:
            answer = self._send(call, method, path, self._token(instead_of=token), query, body)
        if not 200 <= answer.status < 300:
            raise errors.refused(call, answer.refusal())
        return answer

    def _token(self, instead_of: str | None = None) -> str:
        """The access token, fetched anew when its time is over or when it is the one that was refused."""
        with self._lock:
            if self._clock() >= self._fresh_until or self._access == instead_of:
                answer = self._send(Call.REFRESH, "POST", "/auth/refresh", self._secret.value)
                if not 200 <= answer.status < 300:
                    raise errors.refused(Call.REFRESH, answer.refusal())
                self._access = _read(Call.REFRESH, Tokens, answer).access_token
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
    ) -> _Answer:
        """One request and its whole answer, within the deadline."""
        deadline = time.monotonic() + self._seconds
        try:
            with self._sessions.session.request(
                method,
                self._base_url + path,
                params=query,
                json=body,
                auth=_Bearer(token),
                headers={"Project": self._project} if self._project else {},
                timeout=(min(CONNECT_SECONDS, self._seconds), self._seconds),
                allow_redirects=False,
                stream=True,
            ) as response:
                return _Answer(response.status_code, response.headers, _body(call, response, deadline))
        except requests.RequestException as error:
            raise errors.unanswered(call, _reason(error), sent=not _never_sent(error)) from error


def _body(call: Call, response: requests.Response, deadline: float) -> bytes:
    parts = bytearray()
    for chunk in response.iter_content(_CHUNK):
        parts += chunk
        if len(parts) > MAX_ANSWER:
            raise errors.unreadable(call, f"it is over {MAX_ANSWER} bytes")
        if time.monotonic() > deadline:
            raise errors.unanswered(call, "it came too slowly", sent=True)
    return bytes(parts)


def _never_sent(error: requests.RequestException) -> bool:
    """Whether no connection was made at all."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(reason, urllib3.exceptions.NewConnectionError | urllib3.exceptions.NameResolutionError)


def _reason(error: requests.RequestException) -> str:
    """What happened, without the URL."""
    inner = getattr(error.args[0], "reason", None) if error.args else None
    return f"{type(error).__name__}: {inner or error}"[:200]


def _read(call: Call, model: type[Model], answer: _Answer) -> Model:
    try:
        return model.model_validate_json(answer.body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise errors.unreadable(call, f"{where}: {first['msg']}") from None


def _has(job: Job, labels: Mapping[str, str], ids: Sequence[str]) -> bool:
    """The filter again: UCloud drops a filter that it does not know without a word."""
    return labels.items() <= job.labels.items() and (not ids or job.id in ids)


def _checked(page: JobPage, last: int | None, cursor: str | None) -> int | None:
    """The last job's number, if the pages so far make one listing: numbers fall all the way, and the cursor moves.

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
