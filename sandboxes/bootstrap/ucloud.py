"""``sandboxes bootstrap``: orders, and ends, the machine of the gateway itself on a cloud that Terraform does not know.

The cloud is reached through its provider plugin, like the autoscaler's instances.  The gateway's machine belongs to a
deployment of its own, ``DEPLOYMENT-gateway``, so that the autoscaler of ``DEPLOYMENT`` never takes it for one of them.
"""

import base64
import hashlib
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from providers import registry
from providers.base import (
    ROLE_LABEL,
    ComputeProvider,
    Create,
    Deleted,
    Instance,
    Phase,
    ProviderError,
    Ref,
    SettingsError,
)
from sandboxes.bootstrap.ordering import Note, Ordering
from sandboxes.errors import CommandFailed

T = TypeVar("T")

app = typer.Typer()
bootstrap_app = typer.Typer(no_args_is_help=True)
app.add_typer(bootstrap_app, name="bootstrap", help="Order the gateway's own machine on a cloud without Terraform.")

OPERATION_LENGTH: Final = 12
POLL_SECONDS: Final = 5.0
"""Between two looks; a provider has no way to wait."""


@bootstrap_app.command("ucloud")
def ucloud(
    config: Annotated[Path, typer.Option(help="TOML with `deployment` and the table `\\[providers.ucloud]`.")],
    product: Annotated[str, typer.Option(help="Product of the machine, e.g. cpu-amd-zen5-4-vcpu.")] = "",
    image: Annotated[str, typer.Option(help="Virtual machine application and version.")] = "vm-ubuntu/24.04",
    location: Annotated[str, typer.Option(help="Who sells the product.")] = "ucloud",
    generation: Annotated[int, typer.Option(min=1, help="Count it up for a new machine after the old one.")] = 1,
    within: Annotated[float, typer.Option(min=0, help="Seconds to wait until it runs or is gone.")] = 900.0,
    delete: Annotated[bool, typer.Option("--delete", help="End every generation instead, and wait for that.")] = False,
) -> None:
    """Order the gateway's machine on UCloud and wait until it runs; what is there already is found again.

    When the answer to an order is lost, it is not sent again before UCloud has had two minutes to show what came of it.
    A file beside the settings (`.sent`) notes an order that is under way, so that this holds for the next try, too.
    Its settings, init script and tokens come from the bootstrap folder that the table names.  Prints JSON.
    """
    deployment, table = _read(config, "ucloud")
    own = f"{deployment}-gateway"
    with _told():
        provider = registry.build("ucloud", table, deployment=own, environ=os.environ)
        note = Note(config.with_name(f"{config.name}.sent"))
        if delete:
            _end_all(provider, note, within)
            typer.echo(json.dumps({"deployment": own, "phase": Phase.GONE.value}))
            return
        if not product:
            raise CommandFailed("--product: name the product of the machine", exit_code=2)
        end = time.monotonic() + within
        made = Ordering(provider, note, _tell).place(order(own, generation, product, location, image), within)
        found = _await_running(provider, made, max(0.0, end - time.monotonic()))
        access = provider.connect(found)
    typer.echo(json.dumps(_told_of(found) | {"ssh": f"{access.user}@{access.host}:{access.port}" if access else None}))


def order(deployment: str, generation: int, product: str, location: str, image: str) -> Create:
    """What is ordered: the same operation at every try, and another one for the next generation.

    Args:
        deployment: of the gateway's machine, which is also its name.
        generation: counts machines.
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


def _read(config: Path, provider: str) -> tuple[str, Mapping[str, object]]:
    """The deployment and the provider's table."""
    try:
        values = tomllib.loads(config.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandFailed(f"--config {config}: {error}", exit_code=2) from error
    deployment, tables = values.get("deployment"), values.get("providers", {})
    table = tables.get(provider) if isinstance(tables, dict) else None
    if not isinstance(deployment, str) or not deployment:
        raise CommandFailed(f"--config {config}: needs deployment, the name of the fleet", exit_code=2)
    if not isinstance(table, dict):
        raise CommandFailed(f"--config {config}: needs a table [providers.{provider}]", exit_code=2)
    return deployment, table


def _await_running(provider: ComputeProvider, made: Instance, within: float) -> Instance:
    """The machine once it runs.

    Raises:
        CommandFailed: it has ended, or the time is over; it stays ordered then, and the same command goes on waiting.
    """

    def look() -> Instance | None:
        found = provider.get(Ref(id=made.id)) or made
        if found.phase in {Phase.GONE, Phase.LOST, Phase.STOPPING}:
            raise CommandFailed(
                f"machine {found.id} ({found.name}) is {found.phase.value} {found.detail};"
                " order a new one with a higher --generation"
            )
        return found if found.phase is Phase.RUNNING else None

    found = _await(look, within)
    if found is None:
        raise CommandFailed(f"machine {made.id} ({made.name}) does not run yet; run this again to go on")
    return replace(found, adopted=made.adopted)


def _end_all(provider: ComputeProvider, note: Note, within: float) -> None:
    """Ends every machine of the deployment, and one whose order may still come through."""

    def look() -> bool:
        age = note.age()
        alive = [each for each in provider.list().instances if each.phase is not Phase.GONE]
        are_gone = all([provider.delete(Ref(id=each.id)) is Deleted.GONE for each in alive])
        return are_gone and (age is None or age >= provider.caps.settle_seconds)

    if not _await(look, within):
        age = note.age()
        late = f"; an order was sent {age:.0f} s ago whose answer was lost" if age is not None else ""
        raise CommandFailed(f"the gateway's machine is not gone after {within:.0f} s{late}; run this again to go on")
    note.remove()


def _await(look: Callable[[], T], within: float) -> T:
    """What ``look`` answers as soon as that is true, or its last answer when the time is over."""
    deadline = time.monotonic() + within
    while True:
        answer = look()
        if answer or time.monotonic() >= deadline:
            return answer
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _told_of(instance: Instance) -> dict[str, object]:
    return {
        "id": instance.id,
        "name": instance.name,
        "phase": instance.phase.value,
        "type": instance.type,
        "location": instance.location,
        "address": instance.address,
        "adopted": instance.adopted,
    }


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the provider as one sentence."""
    try:
        yield
    except (registry.PluginError, SettingsError, ProviderError) as error:
        raise CommandFailed(str(error)) from error
