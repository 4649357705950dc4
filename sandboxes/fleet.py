"""Client commands about sandboxes as a whole, and about nodes: ls, rm, pause, resume, restart, nodes."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from sandboxes import output
from sandboxes.arguments import FindAccess, IdsArgument, JsonOption, LabelOption, pairs
from sandboxes.connection import failures
from sandboxes.errors import CommandFailed
from sandboxes.progress import waiting
from ucloud_sandboxes_sdk import NotFoundError, SandboxApiError, SandboxClient


def ls(
    access: FindAccess,
    label: LabelOption = None,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Only this state, e.g. running.")] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Deleted ones too, for a day.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List sandboxes, oldest first.

    Example:  sandboxes ls --label team=a --state running
    """
    with failures(), waiting("listing sandboxes"):
        client = access().client()
        labels = pairs(label, "--label")
        records = client.list_sandboxes(labels=labels, state=state)
        if all_ and state is None:
            records = client.list_sandboxes(labels=labels, state="deleted") + records
    if as_json:
        output.print_json(records)
    elif quiet:
        for record in records:
            typer.echo(record["id"])
    else:
        output.show(output.sandboxes(records))


def rm(
    access: FindAccess,
    sandbox_ids: IdsArgument,
    as_json: JsonOption = False,
) -> None:
    """Delete sandboxes, in whatever state they are.

    Example:  sandboxes rm $(sandboxes ls -q --label team=a)
    """

    def delete(client: SandboxClient, sandbox_id: str) -> dict[str, Any]:
        deleted = client.delete_sandbox(sandbox_id)["deleted"]
        if not deleted:
            raise NotFoundError(f"sandbox {sandbox_id}: there is no such sandbox")
        return {"id": sandbox_id, "state": deleted["state"]}

    with failures():
        _each(access().client(), sandbox_ids, delete, "deleting", as_json)


def pause(
    access: FindAccess,
    sandbox_ids: IdsArgument,
    as_json: JsonOption = False,
) -> None:
    """Freeze all processes of sandboxes; the next exec or file copy thaws them.

    Example:  sandboxes pause my-box
    """
    with failures():
        _each(access().client(), sandbox_ids, _life("pause_sandbox"), "pausing", as_json)


def resume(
    access: FindAccess,
    sandbox_ids: IdsArgument,
    as_json: JsonOption = False,
) -> None:
    """Thaw paused sandboxes.

    Example:  sandboxes resume my-box
    """
    with failures():
        _each(access().client(), sandbox_ids, _life("resume_sandbox"), "resuming", as_json)


def restart(
    access: FindAccess,
    sandbox_ids: IdsArgument,
    as_json: JsonOption = False,
) -> None:
    """End the processes of sandboxes and start them anew, each with its workspace.

    Example:  sandboxes restart my-box
    """
    with failures():
        _each(access().client(), sandbox_ids, _life("restart_sandbox"), "restarting", as_json)


def nodes(
    access: FindAccess,
    as_json: JsonOption = False,
) -> None:
    """List the nodes of the fleet, with what they have and what is taken.  Needs an operator token.

    Example:  sandboxes nodes --token-file /var/lib/sandbox-fleet/tokens/operator
    """
    with failures(), waiting("listing nodes"):
        found = access(scope="operator").operator().nodes()
    if as_json:
        output.print_json([node.model_dump(mode="json") for node in found])
    else:
        output.show(output.nodes(found))


def _each(
    client: SandboxClient,
    sandbox_ids: Sequence[str],
    act: Callable[[SandboxClient, str], dict[str, Any]],
    doing: str,
    as_json: bool,
) -> None:
    """Does the same to every sandbox; one that fails does not keep the others from it.

    Raises:
        CommandFailed: at least one failed; each has told why on stderr.
    """
    done: list[dict[str, Any]] = []
    for sandbox_id in sandbox_ids:
        try:
            with waiting(f"{doing} {sandbox_id}"):
                done.append(act(client, sandbox_id))
        except SandboxApiError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the command line speaks on stderr
            continue
        if not as_json:
            typer.echo(f"{sandbox_id}  {done[-1].get('state')}")
    if as_json:
        output.print_json(done)
    if len(done) < len(sandbox_ids):
        raise CommandFailed(f"{len(sandbox_ids) - len(done)} of {len(sandbox_ids)} failed")


def _life(method: str) -> Callable[[SandboxClient, str], dict[str, Any]]:
    def act(client: SandboxClient, sandbox_id: str) -> dict[str, Any]:
        record: dict[str, Any] = getattr(client, method)(sandbox_id).get("sandbox", {})
        return record

    return act
