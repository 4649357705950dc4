"""The one place that touches hcloud, and what of it is not public.

Two things that hcloud does by default cannot stay.  It repeats calls, creates too, and sleeps in between for up to a
minute each; the caller has a journal and its own back-off, and needs each outcome at once.  And it hides headers, which
hold the budget of calls and the provider's clock.  Neither has a public switch, so `_taken_in_hand` sets them inside.
"""

import email.utils
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import hcloud
import requests
from hcloud import APIException, Client
from pydantic import BaseModel, ValidationError

from providers.base import ProviderError
from providers.hetzner import errors
from providers.hetzner.settings import HetznerSettings
from providers.rate_limit import Budget, Need

APPLICATION: Final = "sandbox-fleet"

Method = Literal["GET", "POST", "PUT", "DELETE"]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Answered:
    """A good answer."""

    payload: Mapping[str, Any]
    at: datetime
    """The provider's clock as it answered."""
    mutating: bool

    def read(self, model: type[M]) -> M:
        """The answer as a checked value.

        Raises:
            ProviderError: `ErrorKind.BUG`, when it does not fit.
        """
        return read(model, self.payload, mutating=self.mutating)

    def rows(self, key: str) -> list[Mapping[str, Any]]:
        """The list under ``key``, as it came.

        Raises:
            ProviderError: `ErrorKind.BUG`, when there is none.
        """
        rows = self.payload.get(key)
        if not isinstance(rows, list):
            raise errors.not_understood(f"there is no list {key!r}", mutating=self.mutating)
        return rows


def read(model: type[M], value: object, *, mutating: bool = False) -> M:
    """A part of an answer as a checked value.

    Raises:
        ProviderError: `ErrorKind.BUG`, when it does not fit.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
        raise errors.not_understood(problems, mutating=mutating) from None


class Api:
    """Calls of one project, each made once, bounded in time, and answered or failed in the port's terms."""

    def __init__(
        self, settings: HetznerSettings, token: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget = Budget(settings.reserve_calls, monotonic)
        self._client = Client(
            token,
            api_endpoint=settings.endpoint,
            application_name=APPLICATION,
            timeout=(settings.connect_seconds, settings.read_seconds),
        )
        self._last = threading.local()
        """The answer that this thread got last: its status and its headers."""
        _taken_in_hand(self._client, token, self._heard)

    def call(
        self,
        method: Method,
        path: str,
        *,
        need: Need,
        params: Mapping[str, str | int] | None = None,
        body: Mapping[str, object] | None = None,
        creating: bool = False,
    ) -> Answered:
        """One call, made once.

        Args:
            method: anything but ``GET`` counts as able to change something.
            path: below the endpoint, with a leading slash.
            need: how much of the budget it leaves alone.
            params: the query.
            body: sent as JSON.
            creating: whether it makes a server; some codes mean something else then.

        Raises:
            ProviderError: it failed; see `providers.hetzner.errors`.
        """
        self.budget.require(need)
        mutating = method != "GET"
        self._last.status, self._last.date = None, None
        try:
            payload = self._client.request(method, path, params=params, json=body)
        except APIException as error:
            failed = errors.from_api(error, status=self._last.status, mutating=mutating, creating=creating)
            if failed.kind is errors.K.RATE_LIMIT:
                failed.retry_after = self.budget.wait(need)
            raise failed from error
        except requests.RequestException as error:
            raise errors.from_transport(error, mutating=mutating) from error
        except (KeyError, TypeError, AttributeError) as error:
            # hcloud reads error bodies without looking, and breaks on those of another shape.
            raise self._broken(error, mutating=mutating) from error
        if not isinstance(payload, dict):
            raise errors.not_understood(f"{method} {path} gave {type(payload).__name__}", mutating=mutating)
        return Answered(payload, self._clock(mutating), mutating)

    def _heard(self, response: requests.Response, **_: object) -> None:
        self._last.status = response.status_code
        self._last.date = response.headers.get("Date")
        self.budget.note(response.headers, refused=response.status_code == requests.codes.too_many_requests)

    def _broken(self, error: Exception, *, mutating: bool) -> ProviderError:
        status: int | None = self._last.status
        rule = errors.rule_for(status or 0, "")
        return errors.made(f"an error body of an unknown shape (status {status}): {error!r}", rule, mutating=mutating)

    def _clock(self, mutating: bool) -> datetime:
        try:
            return email.utils.parsedate_to_datetime(self._last.date).astimezone(UTC)
        except (TypeError, ValueError):
            raise errors.not_understood(f"its Date header is {self._last.date!r}", mutating=mutating) from None


def _taken_in_hand(client: Client, token: str, heard: Callable[..., None]) -> None:
    """Ends hcloud's own retries, and has each answer shown to ``heard``."""
    inside = client._client
    if not hasattr(inside, "_retry_max_retries") or not isinstance(getattr(inside, "_session", None), requests.Session):
        raise RuntimeError(f"hcloud {hcloud.__version__} is built in another way than 2.x: install hcloud<3")
    inside._retry_max_retries = 0
    session = inside._session
    session.hooks["response"].append(heard)
    session.max_redirects = 0  # a redirected POST would become a GET, and the token would travel along
    session.auth = _Bearer(token)  # else requests would put a password from ~/.netrc in the token's place


class _Bearer(requests.auth.AuthBase):
    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._header
        return request
