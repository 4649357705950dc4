"""``sandboxes up``: the whole service on this machine, in the foreground."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from sandboxes.errors import CommandFailed
from sandboxes.local.stack import Access, Stack
from sandboxes.local.state_dir import DEFAULT_STATE_DIR, Layout, held

DEFAULT_PORT: Final = 8090

__all__ = ["DEFAULT_PORT", "DEFAULT_STATE_DIR", "app", "say"]

app = typer.Typer()


def say(line: str) -> None:
    """One line of progress, on stderr.  A terminal that is gone must not keep anything from being ended."""
    with contextlib.suppress(OSError):
        print(f"sandboxes: {line}", file=sys.stderr, flush=True)  # noqa: T201 - the command line speaks on stderr


def how_to_use(access: Access, docker_socket: Path) -> str:
    """What a person needs for the first sandbox, as lines that a shell takes where they are commands."""
    engine = f"unix://{docker_socket}"
    return (
        f"URL             {access.url}\n"
        f"client token    {access.client_token}\n"
        f"operator token  {access.operator_token}\n"
        f"images          pulled by the node's Docker engine, {engine}\n"
        f"                without a registry:  docker -H {engine} load -i FILE\n"
        f"                or a Debian image:   sandboxes node demo-image --docker {engine}\n\n"
        f"export UCLOUD_SANDBOX_URL={access.url}\n"
        f'export UCLOUD_SANDBOX_API_TOKEN="$(cat {access.client_token})"\n'
        f'export PATH="{Path(sys.executable).parent}:$PATH"\n\n'
        "Ctrl-C ends everything."
    )


@app.command()
def up(
    state_dir: Annotated[
        Path, typer.Option(help="Directory of all state: databases, tokens, logs, sandboxes.")
    ] = DEFAULT_STATE_DIR,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the gateway on 127.0.0.1.")] = DEFAULT_PORT,
) -> None:
    """Start the whole service on this machine, in the foreground.

    Ctrl-C ends it clean: sandboxes, node, gateway, and its own Docker engine.

    After a SIGKILL the next start takes over what is still there.
    """
    layout = Layout(state_dir.absolute())
    is_new = layout.make()
    with held(layout.lock):
        stack = Stack(layout, port, say)
        try:
            node = stack.start()
            say(f"node {node.id} is ready ({', '.join(runtime.name for runtime in node.runtimes)})")
            typer.echo(how_to_use(stack.access, stack.docker_socket))
            stack.wait()
        finally:
            problems = stack.end()
            if is_new:
                layout.unmake()  # a start that failed at once leaves nothing
        if problems:
            raise CommandFailed(f"not everything could be ended: {'; '.join(problems)}")
        say("everything has ended")
