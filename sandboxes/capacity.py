"""``sandboxes capacity``: asks for machines before a burst needs them."""

from typing import Annotated

import typer

from sandboxes import output
from sandboxes.arguments import CpusOption, DiskOption, FindAccess, JsonOption, MemoryOption, with_access
from sandboxes.connection import failures
from sandboxes.progress import waiting

app = typer.Typer()
capacity_app = typer.Typer(no_args_is_help=True)
app.add_typer(capacity_app, name="capacity", help="Ask for capacity before it is needed.")


def prepare(
    access: FindAccess,
    count: Annotated[int, typer.Argument(min=1, max=100, metavar="COUNT", help="How many sandboxes will come.")],
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    disk: DiskOption = None,
    image: Annotated[str | None, typer.Option(metavar="IMAGE", help="Only for sandboxes of this image.")] = None,
    ttl: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Unclaimed units expire after this.")] = 900,
    name: Annotated[str | None, typer.Option(metavar="ID", help="The same id again replaces the request.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for room for COUNT sandboxes of one shape; each create of that shape claims one unit.

    Example:  sandboxes capacity prepare 50 --cpus 1 --memory 2048 --ttl 600
    """
    with failures(), waiting("asking for capacity"):
        answer = (
            access()
            .client()
            .prepare_capacity(
                count=count,
                cpus=cpus,
                memory_mb=memory,
                disk_mb=disk,
                image=image,
                ttl_seconds=ttl,
                prepare_id=name,
            )
        )
    if as_json:
        output.print_json(answer)
    else:
        made = answer["prepare"]
        typer.echo(f"{made['prepare_id']}  {made['count']} units until {made['expires_at']}")


def ls(access: FindAccess, as_json: JsonOption = False) -> None:
    """List what is prepared and unclaimed, what expires first to the front.

    Example:  sandboxes capacity ls
    """
    with failures(), waiting("listing prepared capacity"):
        answer = access().client().list_prepared_capacity()
    if as_json:
        output.print_json(answer)
        return
    for item in answer["prepared"]:
        shape = item["resources"]
        typer.echo(
            f"{item['prepare_id']}  {item['count']} × {shape['cpus']:g} cores, {shape['memory_mb']} MiB,"
            f" {shape['disk_mb']} MiB disk  until {item['expires_at']}"
        )


def rm(
    access: FindAccess,
    prepare_id: Annotated[str, typer.Argument(metavar="ID", help="As `sandboxes capacity ls` shows it.")],
    as_json: JsonOption = False,
) -> None:
    """Take back what nobody has claimed.

    Example:  sandboxes capacity rm prep-0123456789abcdef
    """
    with failures(), waiting("taking capacity back"):
        answer = access().client().delete_prepared_capacity(prepare_id)
    if as_json:
        output.print_json(answer)
    else:
        typer.echo(f"{prepare_id}  {'taken back' if answer['deleted'] else 'there was nothing of that id'}")


for _command in (prepare, ls, rm):
    capacity_app.command(_command.__name__)(with_access(_command))
