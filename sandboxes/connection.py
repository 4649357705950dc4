"""Which service a client command talks to, with which token, and the options that client commands share."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Protocol

import click
import typer
from typer.core import TyperCommand

from gateway.client import GatewayClient, local_token, local_url
from sandboxes import output
from sandboxes.errors import os_error_text
from sandboxes.local.state_dir import DEFAULT_STATE_DIR
from ucloud_sandboxes_sdk import SandboxClient
from ucloud_sandboxes_sdk.client import TOKEN_VARIABLE, URL_VARIABLE


@dataclass(frozen=True)
class ServiceConnection:
    """URL of a service and the token to present."""

    url: str
    token: str

    def client(self) -> SandboxClient:
        """Return an SDK client that reports lasting retries on stderr."""
        made = SandboxClient(self.url, api_token=self.token)
        made.transport.on_retry = output.retry_reporter()
        return made

    def operator(self) -> GatewayClient:
        """Return a client of the operator API."""
        return GatewayClient(self.url, self.token)


def find(url: str | None, token_file: Path | None, state_dir: Path, *, scope: str = "client") -> ServiceConnection:
    """Find the service that the options, the environment or a `sandboxes up` on this machine name, in this order.

    A token that `sandboxes up` left is presented only to the service that it was left for.

    Args:
        url: from ``--url`` or the environment.
        token_file: from ``--token-file``.
        state_dir: of a `sandboxes up` on this machine.
        scope: ``client``, or ``operator`` where the command needs one.

    Raises:
        click.ClickException: nothing names a URL or a token, or the file with the token cannot be read.
    """
    url = url or local_url(state_dir)
    if not url:
        raise click.ClickException(
            f"which service? set {URL_VARIABLE} or give --url, or start one here with 'sandboxes up'"
        )
    if token_file is not None:
        return ServiceConnection(url, _read_token(token_file))
    left = local_token(state_dir, url, scope)
    given = os.environ.get(TOKEN_VARIABLE, "").strip() or None
    # The variable holds a client token as a rule; an operator's own file knows better.
    token = (left or given) if scope == "operator" else (given or left)
    if not token:
        raise click.ClickException(f"no token for {url}: set {TOKEN_VARIABLE} or give --token-file")
    return ServiceConnection(url, token)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise click.ClickException(f"cannot read the token file {os_error_text(error)}") from error
    if not token:
        raise click.ClickException(f"the token file {path} is empty")
    return token


# -- the connection as a command's parameter --------------------------------------------------------------------------

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar=URL_VARIABLE, metavar="URL", help="URL of the service; default: the local `sandboxes up`."
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"File with the token; default: ${TOKEN_VARIABLE}, or the token of the local `sandboxes up`.",
    ),
]
StateDirOption = Annotated[
    Path, typer.Option("--state-dir", metavar="DIR", help="State directory of the local `sandboxes up`.")
]


class Connect(Protocol):
    """Finds the service and the token that the options and the environment name; see `find`."""

    def __call__(self, *, scope: str = "client") -> ServiceConnection:
        """Return the connection, or raise `click.ClickException`."""


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """Put ``--url``, ``--token-file`` and ``--state-dir`` in the place of a command's parameter ``connect``.

    The command gets a function that finds the `ServiceConnection` when it is called, so that its failures are the
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
        command(connect=partial(find, url, token_file, state_dir), **given)

    own = inspect.signature(command)
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "connect"]
    wrapped.__signature__ = own.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*kept, *options)}
    return wrapped


# -- other shared arguments and options -------------------------------------------------------------------------------

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the sandbox.")]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of sandboxes.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="A label.  Repeatable.")
]
CpusOption = Annotated[float | None, typer.Option(metavar="CORES", help="Cores; fractions are fine.")]
MemoryOption = Annotated[int | None, typer.Option(metavar="MIB", help="Memory in MiB.")]
DiskOption = Annotated[int | None, typer.Option(metavar="MIB", help="Writable disk in MiB.")]
CommandArgument = Annotated[
    list[str], typer.Argument(metavar="CMD", help="The command, after --.  No shell is put around it.")
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


class CommandAfterDashes(TyperCommand):
    """A command that takes a command: an unknown option is most often one of the latter's, without the ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as any command does, and add to an unknown option what to do about it."""
        dashes = "--" in args
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By its name, because typer does not export the class; it is raised on in every case.
            if type(error).__name__ == "NoSuchOption" and not dashes:
                error.message = f"{error}; put -- before the command"  # type: ignore[attr-defined]
            raise


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Return the ``KEY=VALUE`` texts of an option as a dict."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise click.UsageError(f"{option} {text}: must have the form KEY=VALUE")
        found[key] = value
    return found


def environment(texts: list[str] | None) -> dict[str, str]:
    """Return variables from ``KEY=VALUE``, or from ``KEY`` with this process's value.

    The latter keeps a secret out of the command line.
    """
    named: list[str] = []
    for text in texts or ():
        if "=" in text:
            named.append(text)
        elif text in os.environ:
            named.append(f"{text}={os.environ[text]}")
        else:
            raise click.UsageError(f"--env {text}: this variable is not set here")
    return pairs(named, "--env")
