"""Core's layer: its memory of jobs, what a caller may see of them, and the orders that it passes on."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.emulation import Clock
from tests.fakes.ucloud.auth import PROJECT, USER, Caller
from tests.fakes.ucloud.catalogue import Catalogue
from tests.fakes.ucloud.cluster import Cluster
from tests.fakes.ucloud.faults import ApiError, Faults

FIRST_ID = 5000
PHANTOM_SECONDS = 5.0
APPLICATIONS = {("vm-ubuntu", "24.04"): True, ("terminal", "1.0"): False}
"""Which of them are virtual machines."""
Flags = dict[str, str]
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
        """Take an update in; a final state is never left for another kind of state."""
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
        """Return it as a browse shows it: what was not asked for is stripped."""
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
    """Return milliseconds, as the API counts."""
    return int(seconds * 1000)


def is_true(flags: dict[str, str], name: str) -> bool:
    """Return a flag as Go reads it."""
    return flags.get(name, "") in ("true", "True", "TRUE", "1", "t", "T")


def value(sent: Any) -> dict[str, Any]:
    """Return a value object as it comes back: with all keys of its union."""
    return {key: sent.get(key) for key in VALUE_KEYS} if isinstance(sent, dict) else {}


class Core:
    """What browse shows, and who may order what."""

    def __init__(
        self, clock: Clock, chance: random.Random, catalogue: Catalogue, faults: Faults, cluster: Cluster
    ) -> None:
        self.clock, self.chance, self.catalogue, self.faults = clock, chance, catalogue, faults
        self.cluster = cluster
        self.jobs: dict[str, Job] = {}
        self.skew = 0.0
        self.audit: list[dict[str, Any]] = []
        self._numbers = itertools.count(FIRST_ID)

    # -- the cluster's side -------------------------------------------------------------------------------------------

    def report(self, job_id: str, state: str | None, text: str | None) -> None:
        if (job := self.jobs.get(job_id)) is not None:
            job.note(self.clock.now, state, text)

    def write_labels(self, job_id: str, labels: dict[str, str]) -> None:
        self.jobs[job_id].specification["labels"] = dict(labels)

    def knows(self, job_id: str) -> bool:
        return job_id in self.jobs

    # -- submission ---------------------------------------------------------------------------------------------------

    def submit(self, caller: Caller, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Submit jobs one after another; the first failure fails the call, and earlier ones stay."""
        made = [{"id": self._submit_one(caller, item)} for item in items]
        return {"responses": made} if made else {}

    def _submit_one(self, caller: Caller, item: dict[str, Any]) -> str:
        try:
            specification, product = self._validated(item)
        except ApiError as error:
            self._log("submit", None, item, f"rejected: {error.why}")
            raise
        job = Job(next(self._numbers), self.clock.now, caller.user, caller.project, specification)
        self.jobs[job.id] = job  # visible from here on, accepted or not
        try:
            if (fault := self.faults.strike("provider_timeout", "submit")) is not None:
                self._time_out(job, bool(fault.get("orphan", False)))
            self._reach_provider("submit")
            self.cluster.check(product)
            self.cluster.accept(job.id, dict(specification), product)
        except ApiError as error:
            if error.status != 502:
                del self.jobs[job.id]
            self._log("submit", job.id, item, f"rolled back: {error.status} {error.why}")
            raise
        job.note(self.clock.now, "IN_QUEUE", None)
        self._log("submit", job.id, item, "accepted")
        return job.id

    def _time_out(self, job: Job, orphan: bool) -> None:
        """Drop the job after five seconds, as Core does; the provider may have taken it all the same."""
        if orphan:
            product = self.catalogue.find(job.specification["product"])
            self.cluster.accept(job.id, dict(job.specification), product)
            self.cluster.orphan(job.id)
        self.clock.after(PHANTOM_SECONDS, lambda: self.jobs.pop(job.id, None))
        raise ApiError(502, "")

    def _validated(self, item: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        application = item.get("application") or {}
        if (is_vm := APPLICATIONS.get((application.get("name", ""), application.get("version", "")))) is None:
            raise ApiError(400, "Unknown application")
        product = self.catalogue.find(item.get("product"))
        if not is_vm:
            raise ApiError(400, "The application is not supported on this machine type")
        if item.get("sshEnabled"):
            raise ApiError(400, "This application does not support SSH but it is required")
        if item.get("replicas", 1) <= 0:
            raise ApiError(400, "You must request at least one replica")
        wallet = self.catalogue.wallet(product.category)
        if not wallet.allocated or self.faults.strike("no_allocation", "submit") is not None:
            raise ApiError(402, f"You do not have any valid allocations for '{product.category}'")
        parameters = {**item.get("parameters", {}), "ucMetricSampleRate": {"type": "text", "value": "0ms"}}
        resources = [dict(resource) for resource in item.get("resources", [])]
        cleaned = {**item, "labels": checked_labels(item.get("labels") or {}), "timeAllocation": None}
        return {**cleaned, "parameters": parameters, "resources": resources}, product

    def _reach_provider(self, call: str) -> None:
        if self.faults.strike("maintenance", call) is not None:
            raise ApiError(404, "Service is currently undergoing maintenance.")
        if self.faults.strike("provider_down", call) is not None:
            raise ApiError(503, "Service provider is unavailable")

    # -- changes ------------------------------------------------------------------------------------------------------

    def terminate(self, caller: Caller, items: list[dict[str, Any]]) -> dict[str, Any]:
        """End jobs; one unknown id fails them all, before anything is done, and success has no ids."""
        jobs = self._known(caller, items)
        self._reach_provider("terminate")
        fault = self.faults.strike("terminate_uncertain", "terminate")
        for job in jobs:
            if fault is None or fault.get("effect", True):
                self.cluster.terminate(job.id)
            self._log("terminate", job.id, None, "accepted" if fault is None else f"uncertain: {fault}")
        if fault is not None:
            status = int(fault.get("status", 502))
            raise ApiError(status, "Failed to delete VM" if status == 400 else "")
        return {"responses": [{} for _ in jobs]}

    def suspend(self, caller: Caller, items: list[dict[str, Any]]) -> dict[str, Any]:
        for job in (jobs := self._known(caller, items)):
            self.cluster.suspend(job.id)
        return {"responses": [{} for _ in jobs]}

    def unsuspend(self, caller: Caller, items: list[dict[str, Any]]) -> dict[str, Any]:
        for job in (jobs := self._known(caller, items)):
            self.cluster.unsuspend(job.id)
        return {"responses": [{} for _ in jobs]}

    def update_labels(self, caller: Caller, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Replace the whole map; the cluster's copy is another one, and wins at the first start."""
        for item in items:
            job = self.jobs.get(str(item.get("id")))
            if job is None or not self._may_see(caller, job):
                raise ApiError(403, "Permission denied")
            job.specification["labels"] = checked_labels(item.get("labels") or {})
        return {}

    def rename(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        for item in items:
            if (job := self.jobs.get(str(item.get("id")))) is not None:
                job.specification["name"] = item.get("newTitle")
        return {}

    def _known(self, caller: Caller, items: list[dict[str, Any]]) -> list[Job]:
        found = []
        for item in items:
            job = self.jobs.get(str(item.get("id")))
            if job is None or not self._may_see(caller, job):
                raise ApiError(404, f"Permission denied or job not found ({item.get('id')})")
            found.append(job)
        return found

    # -- reading ------------------------------------------------------------------------------------------------------

    def retrieve(self, caller: Caller, flags: Flags) -> dict[str, Any]:
        """Return a job; one that does not exist is answered as one that may not be read."""
        job = self.jobs.get(flags.get("id", ""))
        if job is None or not self._may_see(caller, job):
            raise ApiError(403, "Write permission is required")
        always = {"includeUpdates": "true", "includeParameters": "true", "includeApplication": "true"}
        return job.json({**flags, **always}, self.skew)

    def browse(self, caller: Caller, flags: Flags) -> dict[str, Any]:
        """Return a page: newest first, with the last id as cursor; or by offset over live data, where it is sorted."""
        size = page_size(flags)
        jobs = [job for job in self.jobs.values() if self._may_see(caller, job) and matches(job, flags)]
        jobs.sort(key=lambda job: -job.number)
        cursor = flags.get("next", "")
        if flags.get("sortBy"):
            return self._sorted_page(jobs, flags, size, int(cursor) if cursor.isdecimal() else 0)
        if cursor.isdecimal():
            jobs = [job for job in jobs if job.number < int(cursor)]
        shown = jobs[:size]
        following = shown[-1].id if len(jobs) > size or len(shown) == size else None
        return self._faulty({"items": [job.json(flags, self.skew) for job in shown], "next": following}, size, cursor)

    def search(self, caller: Caller, query: str, flags: Flags) -> dict[str, Any]:
        page = self.browse(caller, flags)
        page["items"] = [item for item in page["items"] if query in f"{item['id']} {item['specification'].get('name')}"]
        return page

    def _sorted_page(self, jobs: list[Job], flags: Flags, size: int, offset: int) -> dict[str, Any]:
        jobs.sort(key=lambda job: job.created_at, reverse=flags.get("sortDirection") != "ascending")
        shown = jobs[offset : offset + size]
        following = str(offset + size) if offset + size < len(jobs) else None
        return {"items": [job.json(flags, self.skew) for job in shown], "itemsPerPage": size, "next": following}

    def _faulty(self, page: dict[str, Any], size: int, cursor: str) -> dict[str, Any]:
        fault = self.faults.strike("pages", "browse") or {}
        mode = fault.get("mode")
        if mode == "repeat_cursor":
            page["next"] = cursor or page["next"] or "1"
        elif mode == "twice" and page["items"]:
            page["items"] = [page["items"][0], *page["items"]]
        elif mode == "skip" and page["items"]:
            page["items"] = page["items"][1:]
        elif mode == "repeat_page" and page["items"]:
            page["next"] = str(int(page["items"][0]["id"]) + 1)
        return page | {"itemsPerPage": size}

    @staticmethod
    def _may_see(caller: Caller, job: Job) -> bool:
        if caller.project is None:
            return job.project is None and job.user == caller.user
        return job.project == caller.project

    def _log(self, call: str, job_id: str | None, item: dict[str, Any] | None, verdict: str) -> None:
        labels = (item or {}).get("labels") or {}
        self.audit.append({"at": self.clock.now, "call": call, "job": job_id, "labels": labels, "verdict": verdict})

    # -- what was there before ----------------------------------------------------------------------------------------

    def add_history(self, count: int, labels: dict[str, str] | None = None) -> None:
        """Add ended jobs of several people, the oldest first."""
        for index in range(count):
            state = self.chance.choice(["SUCCESS", "SUCCESS", "FAILURE", "EXPIRED"])
            user = self.chance.choice([USER, "ada#2", "grace#3"])
            specification = {
                "name": f"old-{index}",
                "application": {"name": "vm-ubuntu", "version": "24.04"},
                "product": {"id": "cpu-old-4-vcpu", "category": "cpu-old", "provider": "ucloud"},
                "labels": dict(labels or {}),
            }
            created = self.clock.now - 86_400 * 30 + index
            job = Job(next(self._numbers), created, user, PROJECT, specification, state=state)
            job.started_at = created + 60
            self.jobs[job.id] = job

    def add_foreign(self, labels: dict[str, str], name: str = "not-ours") -> str:
        """Add somebody else's running machine of the same project, with our application."""
        specification = {
            "name": name,
            "application": {"name": "vm-ubuntu", "version": "24.04"},
            "product": {"id": "cpu-old-4-vcpu", "category": "cpu-old", "provider": "ucloud"},
            "labels": dict(labels),
        }
        now = self.clock.now
        job = Job(next(self._numbers), now, "ada#2", PROJECT, specification, state="RUNNING", started_at=now)
        self.jobs[job.id] = job
        return job.id


def page_size(flags: Flags) -> int:
    """Return the page size: fifty unless another one up to a thousand is asked for."""
    try:
        size = int(flags.get("itemsPerPage") or 0)
    except ValueError:
        raise ApiError(400, "Invalid request supplied") from None
    return 50 if size <= 0 else min(size, 1000)


def checked_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return labels with names in lower case, at most one of each."""
    made: dict[str, str] = {}
    for key, text in labels.items():
        lower = key.strip().lower()
        if lower in made or len(lower) > 256 or "\n" in lower:
            raise ApiError(400, "Invalid labels supplied")
        made[lower] = text
    return made


FILTERS: dict[str, Callable[[Job, str], bool]] = {
    "filterState": lambda job, value: job.state == value,
    "filterApplication": lambda job, value: job.specification.get("application", {}).get("name") == value,
    "filterType": lambda job, value: job.is_vm == (value == "VMS_ONLY"),
    "filterCreatedBy": lambda job, value: job.user == value,
    "filterCreatedAfter": lambda job, value: job.created_at * 1000 >= float(value),
    "filterCreatedBefore": lambda job, value: job.created_at * 1000 <= float(value),
    "filterProductId": lambda job, value: job.specification["product"]["id"] == value,
    "filterProductCategory": lambda job, value: job.specification["product"]["category"] == value,
    "filterProvider": lambda job, value: job.specification["product"]["provider"] == value,
    "filterIds": lambda job, value: job.id in value.split(","),
}


def matches(job: Job, flags: Flags) -> bool:
    """Return whether a job passes all filters; an unknown name is no filter."""
    for name, value in flags.items():
        if name.startswith("filterLabels.") and value:
            if job.labels.get(name.removeprefix("filterLabels.").lower()) != value:
                return False
        elif name in FILTERS and value and not FILTERS[name](job, value):
            return False
    return True
