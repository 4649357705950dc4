"""``sandboxes node …``: runs the agent and its engine, makes images, cleans up.  Parses and prints only."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from gateway.wire.settings import ConfigurationError
from gateway.wire.text import log_to_stderr
from node_agent.settings import NodeSettings, tag_of

app = typer.Typer(no_args_is_help=True, help="Run the node agent on this machine.")

DockerUrl = Annotated[str, typer.Option("--docker", help="URL of the Docker engine.")]
DEFAULT_DOCKER = "unix:///var/run/docker.sock"


def _fail(error: Exception) -> typer.Exit:
    typer.echo(f"sandboxes node: {error}", err=True)
    return typer.Exit(1)


@app.command()
def run(
    config: Annotated[Path | None, typer.Option(help="TOML file with the agent's settings.")] = None,
    root: Annotated[Path | None, typer.Option(help="Directory of everything that the node keeps.")] = None,
    cleanup_on_exit: Annotated[bool, typer.Option(help="Remove all sandboxes at SIGTERM.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every detail.")] = False,
) -> None:
    """Run the node agent in the foreground."""
    from node_agent import main
    from node_agent.startup import FACTORIES, NodeStartError

    log_to_stderr(logging.DEBUG if verbose else logging.INFO)
    for name in ("urllib3", "docker"):
        logging.getLogger(name).setLevel(logging.WARNING)
    given: dict[str, object] = {"root": root} if root is not None else {}
    if cleanup_on_exit:
        given["cleanup_on_exit"] = True
    try:
        main.run(NodeSettings.load(config, None, **given), FACTORIES)
    except (ConfigurationError, NodeStartError) as error:
        typer.echo(f"sandboxes node: {error}", err=True)
        main.leave(1)
    main.leave(0)


@app.command()
def engine(
    root: Annotated[Path, typer.Option(help="Directory of everything that the engine keeps.")],
    socket: Annotated[Path | None, typer.Option(help="Where it listens; docker.sock below ROOT by default.")] = None,
) -> None:
    """Run a Docker engine of the node's own in the foreground."""
    from node_agent.host.process import CommandError
    from node_agent.runtime.docker_engine.dockerd import run_engine

    try:
        raise typer.Exit(run_engine(root, socket or root / "docker.sock"))
    except (CommandError, OSError) as error:
        raise _fail(error) from error


@app.command()
def cleanup(
    root: Annotated[Path, typer.Option(help="Root of the node.")],
    docker_url: Annotated[
        str | None, typer.Option("--docker", help="URL of the Docker engine, if not as last used.")
    ] = None,
) -> None:
    """Remove everything that the node below ROOT has on this machine.  Its agent must have ended."""
    from node_agent.install.uninstall import recorded_settings, remove_node
    from node_agent.startup import FACTORIES, NodeStartError

    settings = recorded_settings(root.absolute())
    if docker_url is not None:
        settings = settings.model_copy(update={"docker_url": docker_url})
    try:
        for sentence in remove_node(settings, FACTORIES):
            typer.echo(f"removed {sentence}")
    except (NodeStartError, OSError) as error:
        raise _fail(error) from error


@app.command()
def tag(root: Annotated[Path, typer.Option(help="Root of the node.")]) -> None:
    """Print the tag in the name of everything that the node below ROOT makes on this machine."""
    typer.echo(tag_of(root))


@app.command("prepare-image")
def prepare_image(
    root: Annotated[Path, typer.Option(help="File system of the machine; other than / with --dry-run only.")] = Path(
        "/"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: this machine stops being a node.")] = False,
) -> None:
    """Make this machine an image: everything stays installed, and nothing of its own stays in it.

    Then switch it off and take a snapshot; machines that boot from that install nothing.
    """
    from node_agent.install.prepare import MachineImage, PrepareError, prepare, run_command

    if not dry_run and not yes:
        raise _fail(PrepareError("this removes the machine's identity, keys and sandboxes; pass --yes, or --dry-run"))
    image = MachineImage(root.absolute(), Path("/run/systemd/system").exists(), run_command)
    try:
        prepare(image, typer.echo, dry_run=dry_run)
    except PrepareError as error:
        raise _fail(error) from error
    if not dry_run:
        typer.echo("ready: switch this machine off, and take a snapshot of it")


@app.command("demo-image")
def demo_image(docker_url: DockerUrl = DEFAULT_DOCKER, cache: Annotated[Path | None, typer.Option()] = None) -> None:
    """Make a Debian image with Python from this machine's packages, and print its name."""
    from node_agent.install import images

    try:
        typer.echo(images.demo_image(docker_url, cache or images.CACHE))
    except images.ImageBuildError as error:
        raise _fail(error) from error


@app.command("test-image")
def test_image(docker_url: DockerUrl = DEFAULT_DOCKER, cache: Annotated[Path | None, typer.Option()] = None) -> None:
    """Make a busybox image, and print its name."""
    from node_agent.install import images

    try:
        typer.echo(images.test_image(docker_url, cache or images.CACHE))
    except images.ImageBuildError as error:
        raise _fail(error) from error
