"""Jobs as instances, products as offers, orders as specifications.  Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from providers.base import (
    DEPLOYMENT_LABEL,
    NAME_LABEL,
    OPERATION_LABEL,
    USER_DATA_LABEL,
    Access,
    Create,
    ErrorKind,
    Instance,
    Offer,
    Phase,
    Resources,
    Scope,
)
from providers.ucloud.errors import not_sent
from providers.ucloud.models import Category, Job, Product, SupportedProduct
from providers.ucloud.settings import UCloudSettings

SCRIPT_LABELS: Final = ("ucloud.dk/init-script", "ucloud.dk/initscript")
"""The name of today and the one until August 2026; an instance reads one or the other."""
SERVICE_ADDRESS: Final = "ucloud.dk/service-ip-address"
RESERVED: Final = "ucloud.dk/"

MAX_USER_DATA: Final = 4096
"""Bytes.  It travels in a label, which comes back with every listing; UCloud has no user data of its own."""
MAX_KEY: Final = 256
FINAL: Final = frozenset({"SUCCESS", "FAILURE", "EXPIRED"})
QUEUED: Final = "IN_QUEUE"
WAITING: Final = frozenset({QUEUED, "SUSPENDED"})
PER_HOUR: Final[Mapping[str, Decimal]] = {
    "PERIODIC_MINUTE": Decimal(60),
    "PERIODIC_HOUR": Decimal(1),
    "PERIODIC_DAY": Decimal(1) / 24,
}
MICRO: Final = Decimal(1_000_000)
_SSH: Final = re.compile(r"^SSH\b.*?\bssh\s+(?P<user>[^\s@]+)@(?P<host>\S+)\s+-p\s+(?P<port>\d{1,5})\b")


# -- what is there ----------------------------------------------------------------------------------------------------


def is_final(job: Job) -> bool:
    """Return whether a job has ended for good."""
    return job.status.state in FINAL


def phase_of(job: Job, *, is_stopping: bool = False) -> Phase:
    """Return the phase of a job.

    SUSPENDED is part of every first boot, and a loss afterwards.  A queue without end stays booting: only the caller
    knows how long it will wait.  An unknown state proves nothing, so the job counts as what it was before.

    Args:
        job: as listed.
        is_stopping: its end was asked for a moment ago; UCloud has no state for that.
    """
    state, has_run = job.status.state, job.status.started_at is not None
    if state in FINAL:
        return Phase.GONE
    if is_stopping:
        return Phase.STOPPING
    if state in WAITING:
        return Phase.LOST if has_run else Phase.BOOTING
    return Phase.RUNNING if has_run or state == "RUNNING" else Phase.BOOTING


def instance(job: Job, *, is_stopping: bool = False, adopted: bool = False) -> Instance:
    """Return a job as an instance, without what travelled in its labels for the guest."""
    labels = {key: value for key, value in job.labels.items() if key != USER_DATA_LABEL}
    said = [update.status for update in job.updates if update.status]
    return Instance(
        id=job.id,
        name=job.labels.get(NAME_LABEL) or job.specification.name or job.id,
        labels=labels,
        phase=phase_of(job, is_stopping=is_stopping),
        type=job.specification.product.id,
        location=job.specification.product.provider,
        created_at=_time(job.created_at),
        address=job.labels.get(SERVICE_ADDRESS) or None,
        adopted=adopted,
        detail=f"{job.status.state}: {said[-1]}" if said else job.status.state,
        progress_at=_progress(job),
        expires_at=_time(job.status.expires_at) if job.status.expires_at is not None else None,
    )


def _progress(job: Job) -> datetime | None:
    """Return when it last came nearer to running: its machine was made, got a port for SSH, or began to run.

    What is said of a job in the queue is why it does not go on, so that is no progress.
    """
    times = [
        update.timestamp
        for update in job.updates
        if update.state not in (None, QUEUED) or _SSH.search(update.status or "") is not None
    ]
    if job.status.started_at is not None:
        times.append(job.status.started_at)
    return _time(max(times)) if times else None


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def access(job: Job) -> Access | None:
    """Return where sshd listens: the last port since the machine last stopped, which frees it."""
    found: Access | None = None
    runs = False
    for update in job.updates:
        if update.state in WAITING and runs:
            found, runs = None, False
        runs = runs or update.state == "RUNNING"
        if update.status and (match := _SSH.search(update.status)):
            found = Access(match["host"], int(match["port"]), match["user"])
    return None if is_final(job) else found


# -- what is sold -----------------------------------------------------------------------------------------------------


def offers(products: Iterable[SupportedProduct], settings: UCloudSettings) -> list[Offer]:
    """Return everything that can be a virtual machine under these settings."""
    return [_offer(item, settings) for item in products if _obstacle(item, settings) is None]


def product_for(want: Create, products: Iterable[SupportedProduct], settings: UCloudSettings) -> SupportedProduct:
    """Return the product that an order names.

    Raises:
        ProviderError: there is none, it may not be used, or it cannot be had at the moment.
    """
    here = want.location == settings.service_provider
    named = [item for item in products if here and item.product.name == want.type]
    found = [item for item in named if item.product.category.provider == want.location]
    if len(found) != 1:
        problem = "several products have that name" if found else "no such product"
    else:
        obstacle = _obstacle(found[0], settings)
        if obstacle is None:
            return _in_stock(found[0], want)
        problem = obstacle
    raise not_sent(ErrorKind.CONFIG, f"{want.type} at {want.location} cannot be ordered: {problem}", Scope.OFFER)


def _in_stock(item: SupportedProduct, want: Create) -> SupportedProduct:
    """Return the product if a machine is free; otherwise UCloud would take the order and let it wait without end."""
    if item.support.queue_status == "FULL":
        raise not_sent(ErrorKind.CAPACITY, f"no machine of {want.type} is free", Scope.OFFER)
    return item


def _obstacle(item: SupportedProduct, settings: UCloudSettings) -> str | None:
    product = item.product
    if product.category.provider != settings.service_provider:
        return f"it is sold by {product.category.provider}"
    if not item.support.virtual_machine.enabled:
        return "it takes no virtual machines"
    if product.gpu and not settings.allow_gpu:
        return "allow_gpu is off; turn it on once a test boot has shown that its virtual machines have the GPU"
    if not product.cpu or not product.memory_in_gigs:
        return "its size is unknown"
    return None


def _offer(item: SupportedProduct, settings: UCloudSettings) -> Offer:
    product = item.product
    resources = Resources(
        # A guest has whole cores of two threads each, so one becomes two and an odd number loses one.
        cpus=float(max(1, (product.cpu or 0) // 2) * 2),
        memory_mb=(product.memory_in_gigs or 0) * 10**9 // 2**20,
        disk_mb=settings.disk_gb * 1024,
        gpus=product.gpu or 0,
    )
    price = _price(product, settings.euro_per_unit.get(product.category.name))
    available = item.support.queue_status != "FULL"
    return Offer(product.name, product.category.provider, resources, price, available=available)


def _price(product: Product, euro_per_unit: Decimal | None) -> Decimal | None:
    """Return the price in Euro per hour; UCloud's own is in units of its category, or in millionths of them."""
    category: Category = product.category
    if category.free_to_use:
        return Decimal(0)
    per_hour = PER_HOUR.get(category.accounting_frequency)
    if euro_per_unit is None or per_hour is None:
        return None
    units = Decimal(product.price) / (MICRO if category.accounting_unit.floating_point else 1)
    return units * per_hour * euro_per_unit


# -- what is ordered --------------------------------------------------------------------------------------------------


def specification(want: Create, item: SupportedProduct, settings: UCloudSettings) -> dict[str, object]:
    """Return the job that an order becomes.

    Raises:
        ProviderError: UCloud could not carry out the order as it stands.
    """
    application, _, version = want.image.rpartition("/")
    if not application or not version:
        message = f"the image {want.image!r} must be an application and its version, as vm-ubuntu/24.04"
        raise not_sent(ErrorKind.CONFIG, message)
    product = item.product
    return {
        "name": want.name,
        "hostname": want.name if settings.private_networks else None,
        "application": {"name": application, "version": version},
        "product": {"id": product.name, "category": product.category.name, "provider": product.category.provider},
        "replicas": 1,
        "parameters": {"diskSize": {"type": "integer", "value": settings.disk_gb}},
        "resources": _resources(settings),
        "labels": labels(want, settings),
        "timeAllocation": None,
        # An application that does not ask for SSH refuses true; virtual machines have SSH either way.
        "sshEnabled": False,
    }


def labels(want: Create, settings: UCloudSettings) -> dict[str, str]:
    """Return all labels that a job will ever carry: UCloud may undo a change that is made while it boots."""
    made: dict[str, str] = {}
    for key, value in want.labels.items():
        lower = key.strip().lower()
        if lower in made or lower.startswith(RESERVED) or not lower or len(lower) > MAX_KEY or "\n" in lower:
            raise not_sent(ErrorKind.CONFIG, f"the label {key!r} cannot be carried")
        made[lower] = value
    made |= {DEPLOYMENT_LABEL: want.deployment, OPERATION_LABEL: want.operation_id, NAME_LABEL: want.name}
    if settings.bootstrap_folder is not None:
        made |= dict.fromkeys(SCRIPT_LABELS, script_path(settings.bootstrap_folder, settings.init_script))
    return made | _user_data(want, settings)


def script_path(folder: str, script: str) -> str:
    """Return where an instance finds the script: a folder is mounted under its own last name."""
    return f"/work/{folder.rpartition('/')[2]}/{script}"


def _user_data(want: Create, settings: UCloudSettings) -> dict[str, str]:
    if not want.user_data.strip():
        return {}
    size = len(want.user_data.encode())
    if size > MAX_USER_DATA:
        message = f"user data is {size} bytes, over the {MAX_USER_DATA} that fit"
        raise not_sent(ErrorKind.CONFIG, message)
    if settings.bootstrap_folder is None:
        message = "there is user data, but no bootstrap_folder whose script could read it"
        raise not_sent(ErrorKind.CONFIG, message)
    return {USER_DATA_LABEL: want.user_data}


def _resources(settings: UCloudSettings) -> list[dict[str, object]]:
    mounted: list[dict[str, object]] = []
    if settings.bootstrap_folder is not None:
        mounted.append({"type": "file", "path": settings.bootstrap_folder, "mountPath": "", "readOnly": True})
    return mounted + [{"type": "private_network", "id": network} for network in settings.private_networks]
