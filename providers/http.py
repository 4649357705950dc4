"""One exchange with a cloud's HTTP API: authenticated, bounded in time and size, and never repeated.

No retries: a provider's caller has a journal and its own back-off, and needs the outcome of each call at once.  No
redirects: a redirected POST would become a GET, and the token would travel along.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

import requests
import urllib3.exceptions

MAX_BODY: Final = 64 * 2**20
"""Bytes of one answer; far more than any page of a listing."""
USER_AGENT: Final = "sandbox-fleet"
_CHUNK: Final = 64 * 1024
_PREVIEW: Final = 200


class Call(StrEnum):
    """What a call to a cloud may do."""

    READ = "read"
    CREATE = "create"  # of an instance
    CHANGE = "change"  # anything else that may have an effect
    SIGN_IN = "sign-in"

    @property
    def mutates(self) -> bool:
        """Whether a lost answer leaves something unknown."""
        return self in (Call.CREATE, Call.CHANGE)


class NoAnswerError(Exception):
    """No answer came, or not a whole one.

    Attributes:
        sent: whether the request may have arrived; it has not where no connection was made.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class AnswerTooLargeError(NoAnswerError):
    """The answer is over `MAX_BODY`."""

    def __init__(self) -> None:
        super().__init__(f"the answer is over {MAX_BODY} bytes", sent=True)


@dataclass(frozen=True)
class Timeouts:
    """Bounds of one exchange, in seconds."""

    connect: float
    silence: float
    """Between two pieces of an answer."""
    whole: float
    """From the request to the end of its answer."""


@dataclass(frozen=True)
class Answer:
    """A whole answer, of whatever status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    @property
    def date(self) -> datetime | None:
        """When it was given, by the server's clock; ``None`` where it does not say."""
        return _date(self.headers.get("Date"))

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server wants to be asked again (RFC 9110, 10.2.3); ``None`` where it does not say."""
        value = self.headers.get("Retry-After", "").strip()
        if value.isascii() and value.isdecimal():
            return float(value)
        moment, now = _date(value), self.date
        return None if moment is None else max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


class _BearerAuth(requests.auth.AuthBase):
    """As an auth object, so that a password in ``.netrc`` does not replace the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _Sessions(threading.local):
    """A `requests.Session` is not promised to be safe between threads, so each has its own connections."""

    def __init__(self) -> None:
        self.session = requests.Session()
        self.session.headers.update({"Accept": "application/json", "User-Agent": USER_AGENT})


class Connection:
    """The API at one URL.  Safe to share between threads."""

    def __init__(self, base_url: str, timeouts: Timeouts, headers: Mapping[str, str] | None = None) -> None:
        self._base_url = base_url
        self._timeouts = timeouts
        self._headers = headers
        self._sessions = _Sessions()

    def exchange(
        self,
        method: str,
        path: str,
        *,
        token: str,
        query: Mapping[str, Any] | None = None,
        body: object = None,
    ) -> Answer:
        """Send one request, once, and return its whole answer.

        Args:
            method: such as ``GET``.
            path: below the base URL, with a leading slash.
            token: sent as the bearer.
            query: parameters; a list as value repeats its name.
            body: sent as JSON; ``None`` for none.

        Raises:
            NoAnswerError: no answer came within the bounds.
            AnswerTooLargeError: the answer is over `MAX_BODY`.
        """
        deadline = time.monotonic() + self._timeouts.whole
        try:
            with self._sessions.session.request(
                method,
                self._base_url + path,
                params=query,
                json=body,
                auth=_BearerAuth(token),
                headers=self._headers,
                timeout=(self._timeouts.connect, self._timeouts.silence),
                allow_redirects=False,
                stream=True,
            ) as response:
                return Answer(response.status_code, response.headers, _read_body(response, deadline))
        except requests.RequestException as error:
            raise NoAnswerError(_reason(error), sent=not _never_sent(error)) from error


def _read_body(response: requests.Response, deadline: float) -> bytes:
    body = bytearray()
    for chunk in response.iter_content(_CHUNK):
        body += chunk
        if len(body) > MAX_BODY:
            raise AnswerTooLargeError
        if time.monotonic() > deadline:
            raise NoAnswerError("the answer came too slowly", sent=True)
    return bytes(body)


def _never_sent(error: requests.RequestException) -> bool:
    """Return whether no connection was made at all."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    return isinstance(_cause(error), urllib3.exceptions.NewConnectionError | urllib3.exceptions.NameResolutionError)


def _reason(error: requests.RequestException) -> str:
    """Return what happened, without the URL."""
    return f"{type(error).__name__}: {_cause(error) or error}"[:_PREVIEW]


def _cause(error: requests.RequestException) -> object:
    return getattr(error.args[0], "reason", None) if error.args else None


def _date(text: str | None) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
