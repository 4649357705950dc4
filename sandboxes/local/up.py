"""``sandboxes up``: the whole service on this machine, in the foreground."""

import sys
from pathlib import Path
from typing import Annotated, Final

import click
import typer

from sandboxes.local.stack import LocalService, Stack
from sandboxes.local.state_dir import DEFAULT_STATE_DIR, StateDir, locked
from sandboxes.output import say

DEFAULT_PORT: Final = 8090

app = typer.Typer()


@app.command()
def up(
    state_dir: Annotated[
        Path, typer.Option(help="Directory of all state: databases, tokens, logs, sandboxes.")
    ] = DEFAULT_STATE_DIR,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Policy file: what clients may ask for, and the quotas; default: safe ones."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the gateway on 127.0.0.1.")] = DEFAULT_PORT,
) -> None:
    """Start the whole service on this machine, in the foreground.

    Ctrl-C ends it clean: sandboxes, node, gateway, and its own Docker engine.

    After a SIGKILL the next start takes over what is still there.

    Changes of the policy file hold within a second; a wrong one is named here, and changes nothing.
    """
    directory = StateDir(state_dir.absolute())
    is_new = directory.make()
    with locked(directory.lock):
        stack = Stack(directory, port, say, policy)
        try:
            node = stack.start()
            say(f"node {node.id} is ready ({', '.join(runtime.name for runtime in node.runtimes)})")
            typer.echo(how_to_use(stack.service, stack.docker_socket))
            stack.wait()
        finally:
            problems = stack.end()
            if is_new:
                directory.unmake()  # a start that failed at once leaves nothing
        if problems:
            raise click.ClickException(f"not everything could be ended: {'; '.join(problems)}")
        say("everything has ended")


def how_to_use(service: LocalService, docker_socket: Path) -> str:
    """Return what a person needs for the first sandbox, as lines that a shell takes where they are commands."""
    engine = f"unix://{docker_socket}"
    return (
        f"URL             {service.url}\n"
        f"client token    {service.client_token}\n"
        f"operator token  {service.operator_token}\n"
        f"images          pulled by the node's Docker engine, {engine}\n"
        f"                without a registry:  docker -H {engine} load -i FILE\n"
        f"                or a Debian image:   sandboxes node demo-image --docker {engine}\n\n"
        f"export UCLOUD_SANDBOX_URL={service.url}\n"
        f'export UCLOUD_SANDBOX_API_TOKEN="$(cat {service.client_token})"\n'
        f'export PATH="{Path(sys.executable).parent}:$PATH"\n\n'
        "Ctrl-C ends everything."
    )
