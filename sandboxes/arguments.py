"""Arguments and options that several client commands share."""

import inspect
import os
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer
from typer.core import TyperCommand

from sandboxes.connection import TOKEN_VARIABLE, URL_VARIABLE, Access, find
from sandboxes.errors import CommandFailed
from sandboxes.local.state_dir import DEFAULT_STATE_DIR

USAGE: Final = 2

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar=URL_VARIABLE, metavar="URL", help="The service; without it, the one that `sandboxes up` left."
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"File with the token; without it, ${TOKEN_VARIABLE}, or what `sandboxes up` left.",
    ),
]
StateDirOption = Annotated[
    Path, typer.Option("--state-dir", metavar="DIR", help="Where `sandboxes up` leaves its URL and tokens.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the sandbox.")]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of sandboxes.")]
CommandArgument = Annotated[
    list[str], typer.Argument(metavar="CMD", help="The command; put -- before it.  No shell is put around it.")
]
TimeoutOption = Annotated[
    float | None, typer.Option(min=0.001, metavar="SECONDS", help="Kill the command after this long; exit code 124.")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="KEY[=VALUE]", help="Set a variable; KEY alone takes it from here.  Repeatable."
    ),
]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="A label.  Repeatable.")
]

ImageArgument = Annotated[str, typer.Argument(metavar="IMAGE", help="Image reference, e.g. python:3.12-slim.")]
CpusOption = Annotated[float | None, typer.Option(metavar="CORES", help="Cores; fractions are fine.")]
MemoryOption = Annotated[int | None, typer.Option(metavar="MIB", help="Memory in MiB.")]
DiskOption = Annotated[int | None, typer.Option(metavar="MIB", help="Writable disk in MiB.")]
NetworkOption = Annotated[str, typer.Option(metavar="none|bridge", help="No network, or outward only.")]
TtlOption = Annotated[int | None, typer.Option(metavar="SECONDS", help="Delete the sandbox after this long.")]
NameOption = Annotated[str | None, typer.Option(metavar="ID", help="Id of the sandbox; without it, a new one.")]
RuntimeOption = Annotated[
    str | None, typer.Option(metavar="runsc|docker", help="Engine; without it, the service chooses.")
]
IsolationOption = Annotated[str | None, typer.Option(metavar="gvisor|runc", help="Isolation; without it, gvisor.")]
GpusOption = Annotated[str | None, typer.Option(metavar="N|all|device=0,1", help="GPUs, as for docker run.")]
KeepOption = Annotated[bool, typer.Option("--keep/--rm", help="Leave the sandbox running, or delete it after.")]


class FindAccess(Protocol):
    """Finds the service and the token that the options and the environment name; see `sandboxes.connection.find`."""

    def __call__(self, *, scope: str = "client") -> Access:
        """The access, or CommandFailed."""


class CommandAfterDashes(TyperCommand):
    """A command that takes a command: a mistaken option is most often one of the latter's, without the ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As any command; says what to do about an unknown option."""
        dashes = "--" in args
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By its name, because typer does not export the class; it is raised on in every case.
            if type(error).__name__ == "NoSuchOption" and not dashes:
                error.message = f"{error}; put -- before the command"  # type: ignore[attr-defined]
            raise


def with_access(command: Callable[..., None]) -> Callable[..., None]:
    """Puts ``--url``, ``--token-file`` and ``--state-dir`` in the place of a command's parameter ``access``.

    What the command gets for it is a function that finds the `Access` when it is called, so that its failures are the
    command's own.
    """
    shared = (
        ("url", UrlOption, None),
        ("token_file", TokenFileOption, None),
        ("state_dir", StateDirOption, DEFAULT_STATE_DIR),
    )
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in shared
    ]

    @wraps(command)
    def wrapped(*, url: str | None, token_file: Path | None, state_dir: Path, **given: Any) -> None:
        command(access=partial(find, url, token_file, state_dir), **given)

    own = inspect.signature(command)
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "access"]
    wrapped.__signature__ = own.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*kept, *options)}
    return wrapped


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise CommandFailed(f"{option} {text}: must have the form KEY=VALUE", exit_code=2)
        pairs[key] = value
    return pairs


def environment(texts: list[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` as given; ``KEY`` from this process, so that a secret need not stand in a command line."""
    named: list[str] = []
    for text in texts or ():
        if "=" in text:
            named.append(text)
        elif text in os.environ:
            named.append(f"{text}={os.environ[text]}")
        else:
            raise CommandFailed(f"--env {text}: there is no such variable here", exit_code=2)
    return pairs(named, "--env")


def gpu_wish(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text
