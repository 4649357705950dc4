"""``sandboxes bootstrap``: orders, and ends, the machine of the gateway itself on a cloud that Terraform does not know.

The cloud is reached through its provider plugin, like the autoscaler's instances.  The gateway's machine belongs to a
deployment of its own, ``DEPLOYMENT-gateway``, so that the autoscaler of ``DEPLOYMENT`` never takes it for one of them.

Such a cloud knows no unique names, so an order is never sent again while an earlier one may still come through: a file
notes each order before it is sent, until its outcome is known.
"""

import base64
import hashlib
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

import click
import typer

from providers import registry
from providers.base import (
    OPERATION_LABEL,
    ROLE_LABEL,
    Applied,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Phase,
    ProviderError,
    Ref,
    SettingsError,
)
from sandboxes import output

T = TypeVar("T")

OPERATION_LENGTH: Final = 12
POLL_SECONDS: Final = 5.0
"""Between two polls; a provider has no way to wait."""
SIGHTINGS_SECONDS: Final = 10.0
"""Between two sightings of a job: one that was seen once may still be taken back."""
REPORT_SECONDS: Final = 15.0
TRANSIENT: Final = frozenset({ErrorKind.TRANSIENT, ErrorKind.BUSY, ErrorKind.RATE_LIMIT, ErrorKind.BUG})

app = typer.Typer()
bootstrap_app = typer.Typer(no_args_is_help=True)
app.add_typer(bootstrap_app, name="bootstrap", help="Order the gateway's own machine on a cloud without Terraform.")


@bootstrap_app.command("ucloud")
def ucloud(
    config: Annotated[Path, typer.Option(help="TOML with `deployment` and the table `\\[providers.ucloud]`.")],
    product: Annotated[str, typer.Option(help="Product of the machine, e.g. cpu-amd-zen5-4-vcpu.")] = "",
    image: Annotated[str, typer.Option(help="Virtual machine application and version.")] = "vm-ubuntu/24.04",
    location: Annotated[str, typer.Option(help="Who sells the product.")] = "ucloud",
    generation: Annotated[int, typer.Option(min=1, help="Increase it to order a new machine after the old one.")] = 1,
    within: Annotated[float, typer.Option(min=0, help="Seconds to wait until it runs or is gone.")] = 900.0,
    delete: Annotated[bool, typer.Option("--delete", help="End every generation instead, and wait for that.")] = False,
) -> None:
    """Order the gateway's machine on UCloud and wait until it runs; one that exists already is found again.

    When the response to an order is lost, it is not sent again before UCloud has had two minutes to show its outcome.
    A file beside the settings (`.sent`) notes an order in flight, so that this holds for the next run, too.
    Settings, init script and tokens of the machine come from the bootstrap folder that the table names.  Prints JSON.
    """
    deployment, table = _read(config, "ucloud")
    own = f"{deployment}-gateway"
    with _provider_errors():
        provider = registry.build("ucloud", table, deployment=own, environ=os.environ)
        sent = SentOrder(config.with_name(f"{config.name}.sent"))
        if delete:
            _end_all(provider, sent, within)
            output.line(json.dumps({"deployment": own, "phase": Phase.GONE.value}))
            return
        if not product:
            raise click.UsageError("--product: name the product of the machine")
        end = time.monotonic() + within
        made = Ordering(provider, sent, _report).place(order(own, generation, product, location, image), within)
        found = _await_running(provider, made, max(0.0, end - time.monotonic()))
        access = provider.connect(found)
    output.line(json.dumps(_as_json(found) | {"ssh": f"{access.user}@{access.host}:{access.port}" if access else None}))


def _read(config: Path, provider: str) -> tuple[str, Mapping[str, object]]:
    """Return the deployment and the provider's table."""
    try:
        values = tomllib.loads(config.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--config {config}: {error}") from error
    deployment, tables = values.get("deployment"), values.get("providers", {})
    table = tables.get(provider) if isinstance(tables, dict) else None
    if not isinstance(deployment, str) or not deployment:
        raise click.UsageError(f"--config {config}: needs deployment, the name of the fleet")
    if not isinstance(table, dict):
        raise click.UsageError(f"--config {config}: needs a table [providers.{provider}]")
    return deployment, table


@contextmanager
def _provider_errors() -> Iterator[None]:
    """Turn the errors of the provider into one sentence."""
    try:
        yield
    except (registry.PluginError, SettingsError, ProviderError) as error:
        raise click.ClickException(str(error)) from error


def _report(text: str) -> None:
    output.complain(text)


def _as_json(instance: Instance) -> dict[str, object]:
    return {
        "id": instance.id,
        "name": instance.name,
        "phase": instance.phase.value,
        "type": instance.type,
        "location": instance.location,
        "address": instance.address,
        "adopted": instance.adopted,
    }


def order(deployment: str, generation: int, product: str, location: str, image: str) -> Create:
    """Return the order: the same operation at every attempt, and another one for the next generation.

    Args:
        deployment: of the gateway's machine, which is also its name.
        generation: counts machines.
        product: of the cloud.
        location: who sells the product.
        image: application and version.
    """
    digest = hashlib.sha256(f"{deployment}/{generation}".encode()).digest()
    operation = base64.b32encode(digest).decode().lower()[:OPERATION_LENGTH]
    return Create(
        name=deployment,
        operation_id=operation,
        deployment=deployment,
        pool="gateway",
        type=product,
        location=location,
        image=image,
        user_data="",
        labels={ROLE_LABEL: "gateway"},
    )


class SentOrder:
    """The order in flight, in a file: written before it is sent, removed when its outcome is known."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def age(self, operation: str | None = None) -> float | None:
        """Return the seconds since an order of unknown outcome was sent; ``None`` for no such order.

        Args:
            operation: ask for that order only.
        """
        try:
            noted = json.loads(self._path.read_text())
            age = max(0.0, time.time() - float(noted["sent_at"]))
            return age if operation in (None, noted["operation"]) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{self._path} cannot be read ({error}); if no order was sent in the last minutes, remove it"
            raise click.ClickException(message) from error

    def write(self, operation: str) -> None:
        """Note that an order is about to be sent."""
        try:
            self._path.write_text(json.dumps({"operation": operation, "sent_at": time.time()}) + "\n")
        except OSError as error:
            message = f"the order cannot be noted, so it was not sent: {error}; make that directory writable"
            raise click.ClickException(message) from error

    def remove(self) -> None:
        """Forget the order, whose outcome is known."""
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Ordering:
    """Sends an order until its outcome is known.

    Attributes:
        provider: of the cloud.
        sent: the order in flight.
        report: takes a line of progress.
    """

    provider: ComputeProvider
    sent: SentOrder
    report: Callable[[str], None]

    def place(self, want: Create, within: float) -> Instance:
        """Return the instance of an order, new or found again.

        Args:
            want: the order; the same at every call.
            within: seconds in which its outcome is to be known.

        Raises:
            ProviderError: it was refused, and nothing was made.
            click.ClickException: the time is over; the same command goes on.
        """
        deadline = time.monotonic() + within
        while True:
            age = self.sent.age(want.operation_id)
            if age is not None and (found := self._settled(want, age, deadline)) is not None:
                self.sent.remove()
                return found
            self.sent.write(want.operation_id)
            try:
                made = self.provider.create(want)
            except ProviderError as error:
                if error.applied is Applied.NO:
                    self.sent.remove()
                    raise
                self.report(f"it is not known whether the order came through: {error}")
                continue
            self.sent.remove()
            return made

    def _settled(self, want: Create, age: float, deadline: float) -> Instance | None:
        """Return the instance of the last order, sent ``age`` seconds ago; ``None`` once it surely made none."""
        over = time.monotonic() + self.provider.caps.settle_seconds - age
        first_seen: float | None = None
        absent, reported_at = 0, float("-inf")
        while True:
            found, problem = self._look(want)
            now = time.monotonic()
            if found is not None:
                absent = 0
                first_seen = first_seen if first_seen is not None else now
                if now - first_seen >= SIGHTINGS_SECONDS:
                    return found
            elif not problem:
                first_seen = None
                absent += now >= over
                if absent > 1:
                    self.report("the order made nothing, so it is sent again")
                    return None
            if now >= deadline:
                raise click.ClickException(
                    f"the response to the order was lost, and its outcome is known {max(0.0, over - now):.0f} s from"
                    " now; nothing is ordered until then, so run this again to go on"
                )
            if now - reported_at >= REPORT_SECONDS:
                reported_at = now
                seen = "a machine is listed, and has to be listed once more" if found is not None else problem
                rest = f"it is ordered again {max(0.0, over - now):.0f} s from now at the earliest"
                self.report(f"waiting for the outcome of the order; {seen or rest}")
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - now)))

    def _look(self, want: Create) -> tuple[Instance | None, str]:
        """Return the order's instance in a complete listing, or why there is no listing."""
        try:
            listed = self.provider.list().instances
        except ProviderError as error:
            if error.kind not in TRANSIENT:
                raise
            return None, f"the cloud does not respond: {error}"
        mine = [each for each in listed if each.labels.get(OPERATION_LABEL) == want.operation_id]
        return min(mine, key=lambda each: each.phase is Phase.GONE, default=None), ""


def _await_running(provider: ComputeProvider, made: Instance, within: float) -> Instance:
    """Wait until the machine runs and return it.

    Raises:
        click.ClickException: it has ended, or the time is over; it stays ordered then, and the same command goes on.
    """

    def look() -> Instance | None:
        found = provider.get(Ref(id=made.id)) or made
        if found.phase in {Phase.GONE, Phase.LOST, Phase.STOPPING}:
            raise click.ClickException(
                f"machine {found.id} ({found.name}) is {found.phase.value} {found.detail};"
                " order a new one with a higher --generation"
            )
        return found if found.phase is Phase.RUNNING else None

    found = _await(look, within)
    if found is None:
        raise click.ClickException(f"machine {made.id} ({made.name}) does not run yet; run this again to go on")
    return replace(found, adopted=made.adopted)


def _end_all(provider: ComputeProvider, sent: SentOrder, within: float) -> None:
    """End every machine of the deployment, and one whose order may still come through."""

    def look() -> bool:
        age = sent.age()
        alive = [each for each in provider.list().instances if each.phase is not Phase.GONE]
        are_gone = all([provider.delete(Ref(id=each.id)) is Deleted.GONE for each in alive])
        return are_gone and (age is None or age >= provider.caps.settle_seconds)

    if not _await(look, within):
        age = sent.age()
        late = f"; an order was sent {age:.0f} s ago whose response was lost" if age is not None else ""
        raise click.ClickException(
            f"the gateway's machine is not gone after {within:.0f} s{late}; run this again to go on"
        )
    sent.remove()


def _await(look: Callable[[], T], within: float) -> T:
    """Poll until ``look`` returns something true or the time is over; return its last result."""
    deadline = time.monotonic() + within
    while True:
        result = look()
        if result or time.monotonic() >= deadline:
            return result
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
