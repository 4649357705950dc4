"""Core's memory of a job, and how the API shows it."""

from dataclasses import dataclass, field
from typing import Any

FINAL = frozenset({"SUCCESS", "FAILURE", "EXPIRED"})
KEPT_UPDATES = 64
VALUE_KEYS = (
    *("type", "path", "mountPath", "readOnly", "value", "hostname", "jobId", "id"),
    *("specification", "modules", "port", "tls", "server", "token", "tokenType"),
)


@dataclass
class Job:
    """One row of Core."""

    number: int
    created_at: float
    user: str
    project: str | None
    specification: dict[str, Any]
    is_vm: bool = True
    state: str = "IN_QUEUE"
    started_at: float | None = None
    updates: list[dict[str, Any]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.specification.setdefault("labels", {})
        return labels

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    def note(self, now: float, state: str | None, text: str | None) -> bool:
        """Takes an update in; a final state is never left for another kind of state."""
        if state is not None and self.is_final and state not in FINAL:
            return False
        update = {"timestamp": ms(now), "state": state, "status": text, "outputFolder": None, "resourceList": None}
        self.updates = [*self.updates, update][-KEPT_UPDATES:]
        if state is not None:
            if state == "RUNNING" and self.state != "RUNNING":
                self.started_at = now
            self.state = state
        return True

    def json(self, flags: dict[str, str], skew: float) -> dict[str, Any]:
        """As a browse shows it: what was not asked for is stripped."""
        specification = {
            **self.specification,
            "parameters": {k: value(v) for k, v in self.specification.get("parameters", {}).items()},
            "resources": [value(v) for v in self.specification.get("resources", [])],
        }
        application = self.specification.get("application", {})
        started = None if self.started_at is None else ms(self.started_at + skew)
        return {
            "id": self.id,
            "createdAt": ms(self.created_at + skew),
            "owner": {"createdBy": self.user, "project": self.project},
            "permissions": {"myself": ["ADMIN", "READ", "EDIT"], "others": None},
            "updates": self.updates if is_true(flags, "includeUpdates") else [],
            "specification": specification,
            "status": {
                "state": self.state,
                "jobParametersJson": {"request": specification} if is_true(flags, "includeParameters") else None,
                "startedAt": started,
                "expiresAt": None,
                "resolvedApplication": {"metadata": application} if is_true(flags, "includeApplication") else None,
                "resolvedProduct": None,
                "resolvedSupport": None,
                "allowRestart": False,
            },
            "output": {"outputFolder": None},
        }


def ms(seconds: float) -> int:
    """Milliseconds, as the API counts."""
    return int(seconds * 1000)


def is_true(flags: dict[str, str], name: str) -> bool:
    """A flag as Go reads it."""
    return flags.get(name, "") in ("true", "True", "TRUE", "1", "t", "T")


def value(sent: Any) -> dict[str, Any]:
    """A value object as it comes back: with all keys of its union."""
    return {key: sent.get(key) for key in VALUE_KEYS} if isinstance(sent, dict) else {}
