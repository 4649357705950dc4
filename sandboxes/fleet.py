"""Client commands about whole sandboxes (ls, rm, pause, resume, restart), nodes, and capacity."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import click
import typer

from gateway.client import known_tenants
from gateway.wire.tenants import unknown_name
from gateway.wire.text import printable
from sandboxes import output
from sandboxes.connection import (
    Connect,
    CpusOption,
    DiskOption,
    IdsArgument,
    JsonOption,
    LabelOption,
    MemoryOption,
    pairs,
    with_connection,
)
from sandboxes.errors import client_errors
from sandboxes.output import waiting
from ucloud_sandboxes_sdk import NotFoundError, SandboxApiError, SandboxClient, SandboxInfo

app = typer.Typer()
capacity_app = typer.Typer(no_args_is_help=True)
app.add_typer(capacity_app, name="capacity", help="Request capacity before it is needed.")


def ls(
    connect: Connect,
    label: LabelOption = None,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Only this state, e.g. running.")] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Include sandboxes deleted in the last day.")] = False,
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="Only this tenant's; for operators.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List sandboxes, oldest first.

    Example:  sandboxes ls --label team=a --state running
    """
    with client_errors(), waiting("listing sandboxes"):
        service = connect()
        client = service.client()
        labels = pairs(label, "--label")
        records = client.list_sandboxes(labels=labels, state=state, tenant=tenant)
        if all_ and state is None:
            records = client.list_sandboxes(labels=labels, state="deleted", tenant=tenant) + records
        if tenant is not None and not records:
            problem = unknown_name(tenant, known_tenants(service.operator()))
            if problem is not None:
                raise click.ClickException(printable(f"nothing was found: {problem}"))
    if as_json:
        output.print_json(records)
    elif quiet:
        for record in records:
            output.line(record["id"])
    else:
        output.show(output.sandbox_table(records))


def rm(connect: Connect, sandbox_ids: IdsArgument, as_json: JsonOption = False) -> None:
    """Delete sandboxes, in whatever state they are.

    Example:  sandboxes rm $(sandboxes ls -q --label team=a)
    """

    def delete(client: SandboxClient, sandbox_id: str) -> SandboxInfo:
        deleted = client.delete_sandbox(sandbox_id)["deleted"]
        if not deleted:
            raise NotFoundError(f"sandbox {sandbox_id}: there is no such sandbox")
        return {"id": sandbox_id, "state": deleted["state"]}

    _each(connect, sandbox_ids, delete, "deleting", as_json)


def pause(connect: Connect, sandbox_ids: IdsArgument, as_json: JsonOption = False) -> None:
    """Freeze all processes of sandboxes; the next exec or file copy thaws them.

    Example:  sandboxes pause my-box
    """
    _each(connect, sandbox_ids, lambda client, id_: client.pause_sandbox(id_)["sandbox"], "pausing", as_json)


def resume(connect: Connect, sandbox_ids: IdsArgument, as_json: JsonOption = False) -> None:
    """Thaw paused sandboxes.

    Example:  sandboxes resume my-box
    """
    _each(connect, sandbox_ids, lambda client, id_: client.resume_sandbox(id_)["sandbox"], "resuming", as_json)


def restart(connect: Connect, sandbox_ids: IdsArgument, as_json: JsonOption = False) -> None:
    """End the processes of sandboxes and start them again, each with its workspace.

    Example:  sandboxes restart my-box
    """
    _each(connect, sandbox_ids, lambda client, id_: client.restart_sandbox(id_)["sandbox"], "restarting", as_json)


def _each(
    connect: Connect,
    sandbox_ids: Sequence[str],
    act: Callable[[SandboxClient, str], SandboxInfo],
    doing: str,
    as_json: bool,
) -> None:
    """Do the same to every sandbox; one that fails does not keep the others from it.

    Raises:
        click.ClickException: at least one failed; each has printed its reason on stderr.
    """
    with client_errors():
        client = connect().client()
    done: list[SandboxInfo] = []
    for sandbox_id in sandbox_ids:
        try:
            with waiting(f"{doing} {sandbox_id}"):
                done.append(act(client, sandbox_id))
        except SandboxApiError as error:
            output.complain(f"error: {error}")
            continue
        if not as_json:
            output.line(f"{sandbox_id}  {done[-1].get('state')}")
    if as_json:
        output.print_json(done)
    if len(done) < len(sandbox_ids):
        raise click.ClickException(f"{len(sandbox_ids) - len(done)} of {len(sandbox_ids)} failed")


def nodes(connect: Connect, as_json: JsonOption = False) -> None:
    """List the nodes of the fleet, with what they have and what is reserved.  Needs an operator token.

    Example:  sandboxes nodes --token-file /var/lib/sandbox-fleet/tokens/operator
    """
    with client_errors(), waiting("listing nodes"):
        found = connect(scope="operator").operator().nodes()
    if as_json:
        output.print_json([node.model_dump(mode="json") for node in found])
    else:
        output.show(output.node_table(found))


# -- capacity ---------------------------------------------------------------------------------------------------------


def prepare_capacity(
    connect: Connect,
    count: Annotated[int, typer.Argument(min=1, max=100, metavar="COUNT", help="How many sandboxes will come.")],
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    disk: DiskOption = None,
    image: Annotated[str | None, typer.Option(metavar="IMAGE", help="Only for sandboxes of this image.")] = None,
    ttl: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Unclaimed units expire after this long.")] = 900,
    name: Annotated[str | None, typer.Option(metavar="ID", help="The same id again replaces the request.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for room for COUNT sandboxes of one shape; each create of that shape claims one unit.

    Example:  sandboxes capacity prepare 50 --cpus 1 --memory 2048 --ttl 600
    """
    shape: dict[str, Any] = {"cpus": cpus, "memory_mb": memory, "disk_mb": disk, "image": image}
    with client_errors(), waiting("asking for capacity"):
        client = connect().client()
        answer = client.prepare_capacity(count=count, ttl_seconds=ttl, prepare_id=name, **shape)
    if as_json:
        output.print_json(answer)
    else:
        made = answer["prepare"]
        output.line(f"{made['prepare_id']}  {made['count']} units until {made['expires_at']}")


def list_capacity(connect: Connect, as_json: JsonOption = False) -> None:
    """List what is prepared and unclaimed, in the order in which it expires.

    Example:  sandboxes capacity ls
    """
    with client_errors(), waiting("listing prepared capacity"):
        answer = connect().client().list_prepared_capacity()
    if as_json:
        output.print_json(answer)
        return
    for item in answer["prepared"]:
        shape = item["resources"]
        output.line(
            f"{item['prepare_id']}  {item['count']} × {shape['cpus']:g} cores, {shape['memory_mb']} MiB,"
            f" {shape['disk_mb']} MiB disk  until {item['expires_at']}"
        )


def take_back_capacity(
    connect: Connect,
    prepare_id: Annotated[str, typer.Argument(metavar="ID", help="As `sandboxes capacity ls` shows it.")],
    as_json: JsonOption = False,
) -> None:
    """Take back what nobody has claimed.

    Example:  sandboxes capacity rm prep-0123456789abcdef
    """
    with client_errors(), waiting("taking capacity back"):
        answer = connect().client().delete_prepared_capacity(prepare_id)
        if not answer["deleted"]:
            raise NotFoundError(f"prepared capacity {prepare_id}: there is none under this id")
    if as_json:
        output.print_json(answer)
    else:
        output.line(f"{prepare_id}  released")


for _command in (ls, rm, pause, resume, restart, nodes):
    app.command(_command.__name__)(with_connection(_command))
capacity_app.command("prepare")(with_connection(prepare_capacity))
capacity_app.command("ls")(with_connection(list_capacity))
capacity_app.command("rm")(with_connection(take_back_capacity))
