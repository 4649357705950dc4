"""The six methods over jobs of a project."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import ClassVar, Final, Self

from providers.base import (
    DEPLOYMENT_LABEL,
    NAME_LABEL,
    OPERATION_LABEL,
    USER_DATA_LABEL,
    Access,
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
    Ref,
    Scope,
)
from providers.ucloud import mapping
from providers.ucloud.client import UCloudClient
from providers.ucloud.errors import SETTLE_SECONDS, not_sent
from providers.ucloud.mapping import MAX_USER_DATA
from providers.ucloud.models import Job
from providers.ucloud.settings import UCloudSettings, parse

STOPPING_SECONDS: Final = 60.0
"""How long a job counts as stopping once UCloud took the order; after that it is what UCloud says."""
IDS_AT_ONCE: Final = 100


class UCloudProvider(ComputeProvider):
    """Instances are jobs that run a virtual machine application."""

    kind: ClassVar[str] = "ucloud"
    caps: ClassVar[Caps] = Caps(
        unique_names=False,
        list_is_atomic=False,
        deleted_vanish=False,
        billing=Billing.PER_SECOND,
        max_user_data=MAX_USER_DATA,
        calls_per_hour=None,
        has_gpu=False,
        settle_seconds=SETTLE_SECONDS,
    )

    def __init__(
        self,
        settings: UCloudSettings,
        client: UCloudClient,
        *,
        deployment: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client = client
        self._deployment = deployment
        self._clock = clock
        self._stopping: dict[str, float] = {}
        """Until when each job counts as stopping."""
        if settings.allow_gpu:
            # Whether there are GPUs is a fact about an account, which a test boot has to show.
            self.caps = replace(self.caps, has_gpu=True)  # type: ignore[misc]

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, deployment: str, environ: Mapping[str, str]) -> Self:
        parsed = parse(settings)
        client = UCloudClient(
            parsed.base_url,
            parsed.credential(environ),
            project=parsed.project,
            seconds=parsed.request_seconds,
            page_size=parsed.page_size,
            max_pages=parsed.max_pages,
        )
        return cls(parsed, client, deployment=deployment)

    def offers(self) -> list[Offer]:
        return mapping.offers(self._client.products(), self._settings)

    def list(self) -> Inventory:
        """Return every job of the deployment, the ended ones as gone: UCloud lists them for ever."""
        listing = self._client.browse(self._mine())
        self._check_project(listing.jobs)
        now = self._clock()
        self._stopping = {job: until for job, until in self._stopping.items() if until > now}
        jobs = self._with_history(listing.jobs)
        return Inventory(tuple(self._view(job) for job in jobs), taken_at=listing.taken_at)

    def get(self, ref: Ref) -> Instance | None:
        found = self._find(ref)
        return self._view(found[0]) if found else None

    def create(self, want: Create) -> Instance:
        """Order one job, unless the operation has one already, even one that has ended.

        UCloud knows no unique names and no idempotency, so that look is all that there is, and it proves nothing about
        an order that may still be under way: after an outcome that is unknown, the caller lets ``settle_seconds`` pass
        and lists twice before it orders again.
        """
        mapping.labels(want, self._settings)  # what cannot be carried is refused before anything is asked
        known = self._client.browse({**self._mine(want.deployment), OPERATION_LABEL: want.operation_id}).jobs
        if known:
            return self._view(_best(known)[0], adopted=True)
        item = mapping.product_for(want, self._client.products(), self._settings)
        specification = mapping.specification(want, item, self._settings)
        accepted = self._client.submit(specification)
        return self._ordered(want, accepted.id, accepted.at)

    def delete(self, ref: Ref) -> Deleted:
        """End every live job that ``ref`` names: one by its id, all that share it by a name.

        Only a job read in a final state is gone; what UCloud answers to the order itself proves nothing.
        """
        alive = [job for job in self._find(ref) if not mapping.is_final(job)]
        for job in alive:
            self._client.terminate(job.id)
            self._stopping[job.id] = self._clock() + STOPPING_SECONDS
        return Deleted.ACCEPTED if alive else Deleted.GONE

    def connect(self, instance: Instance) -> Access | None:
        """Return the address that UCloud assigned for SSH, which may not answer yet."""
        jobs = self._client.browse(self._mine(), ids=(instance.id,), updates=True).jobs
        return mapping.access(jobs[0]) if jobs else None

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _mine(self, deployment: str | None = None) -> dict[str, str]:
        return {DEPLOYMENT_LABEL: deployment or self._deployment}

    def _find(self, ref: Ref) -> tuple[Job, ...]:
        """Return the jobs that ``ref`` names, the best first.

        A browse, because retrieving a job that does not exist is answered as a bad token is.
        """
        named = {NAME_LABEL: ref.name} if ref.name is not None and ref.id is None else {}
        jobs = self._client.browse(self._mine() | named, ids=(ref.id,) if ref.id is not None else (), updates=True).jobs
        self._check_project(jobs)
        return _best(tuple(job for job in jobs if _is_meant(job, ref)))

    def _with_history(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """Return the jobs, those that wait with their history, which says why."""
        waiting = [job.id for job in jobs if job.status.state in mapping.WAITING]
        known: dict[str, Job] = {}
        for start in range(0, len(waiting), IDS_AT_ONCE):
            ids = waiting[start : start + IDS_AT_ONCE]
            known |= {job.id: job for job in self._client.browse(self._mine(), ids=ids, updates=True).jobs}
        return tuple(known.get(job.id, job) for job in jobs)

    def _view(self, job: Job, *, adopted: bool = False) -> Instance:
        is_stopping = self._stopping.get(job.id, float("-inf")) > self._clock()
        return mapping.instance(job, is_stopping=is_stopping, adopted=adopted)

    def _ordered(self, want: Create, job_id: str, at: datetime) -> Instance:
        labels = {k: v for k, v in mapping.labels(want, self._settings).items() if k != USER_DATA_LABEL}
        return Instance(
            id=job_id,
            name=want.name,
            labels=labels,
            phase=Phase.BOOTING,
            type=want.type,
            location=want.location,
            created_at=at,
        )

    def _check_project(self, jobs: tuple[Job, ...]) -> None:
        """Raise if jobs are of another project: an API token brings its own, and UCloud ignores the one asked for."""
        wanted = self._settings.project
        other = next((job for job in jobs if wanted is not None and job.owner.project != wanted), None)
        if other is not None:
            message = f"job {other.id} is in project {other.owner.project}, not {wanted}; the token is for another one"
            raise not_sent(ErrorKind.CONFIG, message, Scope.PROVIDER)


def _is_meant(job: Job, ref: Ref) -> bool:
    """Return whether the name and the operation of a job are those of ``ref``, where it has them."""
    is_named = ref.name in (None, job.labels.get(NAME_LABEL))
    return is_named and ref.operation_id in (None, job.labels.get(OPERATION_LABEL))


def _best(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return live jobs first, and of several the oldest first, which is the one that is kept."""
    return tuple(sorted(jobs, key=lambda job: (mapping.is_final(job), job.number)))
