"""Who calls: refresh tokens, access tokens of ten minutes, API tokens of a project."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.emulation import Clock
from tests.fakes.ucloud.faults import ApiError

ACCESS_SECONDS = 600.0
REFRESH_SECONDS = 14 * 86_400.0
CACHE_SECONDS = 60.0
"""A look at an API token that found it good counts for this long."""
USER = "service#1"
PROJECT = "6f1c1b1e-0000-4000-8000-000000000001"
REFRESH_TOKEN = "refresh-of-the-service"
API_TOKEN = "uc0a-secret-of-the-service"


@dataclass(frozen=True)
class Caller:
    """Who asks, and for which workspace."""

    user: str
    project: str | None


@dataclass
class _Access:
    user: str
    ends_at: float
    projects: frozenset[str]
    """Memberships at the time of the refresh: later changes are not seen."""


@dataclass
class _ApiToken:
    id: str
    user: str
    project: str | None
    ends_at: float
    revoked: bool = False
    good_until: float = float("-inf")


@dataclass
class Auth:
    """All credentials and memberships."""

    clock: Clock
    chance: random.Random
    members: set[tuple[str, str]] = field(default_factory=lambda: {(USER, PROJECT)})
    refresh: dict[str, tuple[str, float]] = field(default_factory=dict)
    """User and end of each refresh token."""
    access: dict[str, _Access] = field(default_factory=dict)
    api: dict[str, _ApiToken] = field(default_factory=dict)
    refreshes: int = 0

    def __post_init__(self) -> None:
        self.refresh[REFRESH_TOKEN] = (USER, self.clock.now + REFRESH_SECONDS)
        self.api[API_TOKEN] = _ApiToken("1", USER, PROJECT, self.clock.now + 365 * 86_400)

    def renew(self, bearer: str | None) -> dict[str, Any]:
        if bearer is None:
            raise ApiError(403, "Forbidden")
        user, ends_at = self.refresh.get(bearer, ("", 0.0))
        if ends_at <= self.clock.now:
            raise ApiError(401, "Unauthorized")
        self.refreshes += 1
        token = f"eyJ.{self.chance.getrandbits(96):x}.sig"
        projects = frozenset(project for member, project in self.members if member == user)
        self.access[token] = _Access(user, self.clock.now + ACCESS_SECONDS, projects)
        return {"accessToken": token, "csrfToken": "unused"}

    def caller(self, bearer: str | None, project: str | None) -> Caller:
        """Return who stands behind a bearer; an expired or unknown one is a guest, who may do nothing."""
        if bearer is not None and bearer.startswith("uc"):
            return self._api_caller(bearer)
        known = self.access.get(bearer or "")
        if known is None or known.ends_at <= self.clock.now:
            raise ApiError(403, "Forbidden")
        if project is not None and project not in known.projects:
            raise ApiError(403, "Bad token supplied")
        return Caller(known.user, project)

    def expire_access(self) -> None:
        self.access.clear()

    def kill_refresh(self) -> None:
        self.refresh.clear()

    def make_api_token(self, caller: Caller, item: dict[str, Any]) -> dict[str, Any]:
        number = str(len(self.api) + 1)
        token = f"uc{int(number):x}-{self.chance.getrandbits(64):x}"
        self.api[token] = _ApiToken(number, caller.user, caller.project, float(item.get("expiresAt", 0)) / 1000)
        return {"id": number, "specification": item, "status": {"token": token}}

    def revoke(self, token_id: str) -> None:
        for token in self.api.values():
            token.revoked = token.revoked or token.id == token_id

    def restore(self, token_id: str) -> None:
        """Undo `revoke`, as a new token in the old one's place would."""
        for token in self.api.values():
            token.revoked = token.revoked and token.id != token_id

    def _api_caller(self, bearer: str) -> Caller:
        if "-" not in bearer:
            raise ApiError(403, "Invalid token supplied")
        token = self.api.get(bearer)
        if token is None:
            raise ApiError(403, "Forbidden")
        if token.good_until <= self.clock.now:
            is_member = token.project is None or (token.user, token.project) in self.members
            if token.revoked or token.ends_at <= self.clock.now or not is_member:
                raise ApiError(403, "Forbidden")
            token.good_until = min(self.clock.now + CACHE_SECONDS, token.ends_at)
        return Caller(token.user, token.project)
