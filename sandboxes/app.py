"""The table of all commands, and the group that loads each one's module only when its name is typed.

A module of commands has an ``app = typer.Typer()``.  `COMMANDS` names the module of every command; what runs is the
command or sub-group of that name in the module's ``app``, or the ``app`` itself where it has none of that name.  Other
distributions and roles add theirs through the entry-point group `ENTRY_POINTS`, each naming such an ``app``.
"""

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from gateway.wire.system import DISTRIBUTION, PACKAGES, installed_version
from gateway.wire.text import printable

ENTRY_POINTS: Final = "sandbox_fleet.commands"

# name -> (module, what it does).  The order is the order in the help.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("sandboxes.local.up", "Start the whole service on this machine, in the foreground."),
    "demo": ("sandboxes.local.demo", "Start the service, say hello from a sandbox, and take everything down again."),
    "doctor": ("sandboxes.doctor", "Look at this machine and name what is missing, with the cure."),
    "run": ("sandboxes.client", "Create a sandbox, run one command in it, and delete it."),
    "ls": ("sandboxes.fleet", "List sandboxes."),
    "exec": ("sandboxes.client", "Run a command in a sandbox."),
    "cp": ("sandboxes.client", "Copy a file into or out of a sandbox."),
    "logs": ("sandboxes.client", "Print the output of a sandbox's first process."),
    "rm": ("sandboxes.fleet", "Delete sandboxes."),
    "pause": ("sandboxes.fleet", "Freeze all processes of sandboxes."),
    "resume": ("sandboxes.fleet", "Thaw paused sandboxes."),
    "restart": ("sandboxes.fleet", "Start sandboxes again, with their workspace."),
    "nodes": ("sandboxes.fleet", "List the nodes of the fleet."),
    "capacity": ("sandboxes.fleet", "Request capacity before it is needed."),
    "token": ("gateway.cli", "Create, list and revoke tokens."),
    "audit": ("gateway.cli_records", "Read the audit log: who did what, and what came of it."),
    "usage": ("gateway.cli_records", "Sum up what tenants and their sandboxes have used."),
    "policy": ("gateway.cli_policy", "Show what clients may ask for, and check a spec against it."),
    "gateway": ("gateway.cli", "Run the gateway, or print its OpenAPI document."),
    "simulate": ("simulator.cli", "Play a demand trace through the autoscaler on virtual time: cost, waiting, churn."),
    "bootstrap": ("sandboxes.bootstrap", "Order the gateway's own machine on a cloud without Terraform."),
}
ROLE_HELP: Final = {
    "autoscaler": "Run the autoscaler, or look at its plan.",
    "node": "Run the node agent on this machine.",
}

# Which extra brings a missing package: by the package, where one extra alone has it, or else by the command.
EXTRA_OF_PACKAGE: Final = {"hcloud": "hetzner", "ucloud_sandboxes_sdk": "cli"}
EXTRA_OF_COMMAND: Final = {
    "gateway": "gateway",
    "token": "gateway",
    "audit": "gateway",
    "usage": "gateway",
    "policy": "gateway",
    "node": "node",
    "autoscaler": "autoscaler",
    "simulate": "simulator",
}


def _roles() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in COMMANDS}


def _load(name: str) -> Any:
    """Import and return the command behind ``name``."""
    app = importlib.import_module(COMMANDS[name][0]).app if name in COMMANDS else _roles()[name].load()
    group = get_group(app)
    return group.commands.get(name, group)


class _LazyGroup(TyperGroup):
    """Lists names and one line of help from the tables; imports a module when its command is resolved."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        listed = {name: text for name, (_, text) in COMMANDS.items()}
        listed |= {name: ROLE_HELP.get(name, f"Commands of {name}.") for name in _roles()}
        for name, text in listed.items():
            self.add_command(TyperCommand(name=name, help=text), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name is not None else placeholder, rest


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sandboxes {installed_version()}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Isolated Linux sandboxes for AI agents: run the service, and use it."""


def application() -> typer.Typer:
    """Build the whole command line."""
    # Locals stay out of tracebacks: they may hold tokens.
    app = typer.Typer(cls=_LazyGroup, no_args_is_help=True, pretty_exceptions_show_locals=False)
    app.callback()(_root)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: the words after the program's name; ``None`` takes this process's own.

    Returns:
        0, or the command's own exit code; 2 for a mistyped option or command; 130 after Ctrl-C.
    """
    try:
        application()(args=arguments, prog_name="sandboxes")
    except ModuleNotFoundError as error:
        # Commands import what they need when they run, so this is the one place that sees every missing package.
        if error.name is None or error.name.partition(".")[0] in PACKAGES:
            raise  # a package of ours that lacks a module is broken, and shows where
        words = sys.argv[1:] if arguments is None else arguments
        print(printable(f"error: {_missing_package(error.name, words)}"), file=sys.stderr)  # noqa: T201 - output.py may lack its own
        return 1
    except click.ClickException as error:
        print(printable(f"error: {error.format_message()}", lines=True), file=sys.stderr)  # noqa: T201 - as above
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    return 0


def _missing_package(package: str, words: list[str]) -> str:
    """Return one sentence about a package that is not installed, with the extra that brings it."""
    command = next((word for word in words if not word.startswith("-")), "")
    extra = EXTRA_OF_PACKAGE.get(package.partition(".")[0]) or EXTRA_OF_COMMAND.get(command, "all")
    return (
        f"'sandboxes {command}' needs the Python package {package!r}, which is not installed here;"
        f" install it with: pip install '{DISTRIBUTION}[{extra}]'"
    )
