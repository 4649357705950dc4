"""``sandboxes gateway`` and ``sandboxes token``: the gateway's process, its contract, and who may call it."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from uuid import uuid4

import click
import typer
from rich.console import Console
from rich.table import Table

from gateway.client import GatewayClient, GatewayError, GatewayUnreachableError
from gateway.errors import ApiError, GatewayStartError, StoreError
from gateway.settings import GatewaySettings
from gateway.wire.settings import ConfigurationError
from gateway.wire.tokens import TokenCreated, TokenRecord, TokenRequest, TokenScope

if TYPE_CHECKING:  # it imports the database, which only the commands without --url need
    from gateway.services.tokens import TokenService

T = TypeVar("T")

app = typer.Typer()
gateway_app = typer.Typer(no_args_is_help=True)
token_app = typer.Typer(no_args_is_help=True)
app.add_typer(gateway_app, name="gateway", help="Run the gateway, or print its OpenAPI document.")
app.add_typer(token_app, name="token", help="Create, list and revoke tokens.")

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Config = Annotated[Path | None, typer.Option(help="TOML file with the gateway's settings.")]
StateDir = Annotated[Path | None, typer.Option(help="The gateway's state directory.")]
Url = Annotated[str | None, typer.Option(help="Ask the gateway at this URL instead of the database on this machine.")]
TokenFile = Annotated[Path | None, typer.Option(help="File with an operator's token, for --url.")]


@gateway_app.command("run")
def run_gateway(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = None,
    state_dir: StateDir = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the gateway in the foreground, until SIGTERM or Ctrl-C."""
    settings = _settings(config, state_dir, host=host, port=port)
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise click.UsageError(f"--log-level {log_level}: must be debug, info, warning or error")
    logging.basicConfig(level=level, format=LOG_FORMAT)
    logging.getLogger("alembic").setLevel(max(level, logging.WARNING))
    from gateway.main import run

    try:
        run(settings)
    except GatewayStartError as error:
        raise click.ClickException(str(error)) from error


@gateway_app.command("openapi")
def print_openapi() -> None:
    """Print the OpenAPI document of this version."""
    from gateway.http.app import routes_only

    typer.echo(json.dumps(routes_only().openapi(), indent=2, sort_keys=True))


@gateway_app.command("bundle")
def make_bundle(
    config: Config = None,
    state_dir: StateDir = None,
    python: Annotated[list[str] | None, typer.Option(help="Python of the nodes, e.g. 3.11.  Repeatable.")] = None,
    machine: Annotated[str, typer.Option(help="Architecture of the nodes: x86_64 or aarch64.")] = "x86_64",
    source: Annotated[Path | None, typer.Option(help="Checkout to build from; default: this installation's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Collect what new machines install: the node agent, its dependencies, and its installer.

    The gateway serves the bundle to whoever holds an unused join token.  A running gateway picks it up by itself.
    """
    from gateway.bundle import PYTHONS, BundleRequest, build_bundle

    directory = _settings(config, state_dir).bundle_path
    request = BundleRequest(directory, tuple(python or PYTHONS), machine, source)
    manifest = build_bundle(request, partial(typer.echo, err=True))
    if as_json:
        typer.echo(manifest.model_dump_json(indent=2))
        return
    size = sum(item.size for item in manifest.files)
    typer.echo(f"{directory}: {len(manifest.files)} files, {size / 2**20:.1f} MiB, version {manifest.version}")


@token_app.command("create")
def create_token(
    name: Annotated[str, typer.Option(help="What the token is for; shown in lists and logs.")],
    scope: Annotated[TokenScope, typer.Option(help="client works with sandboxes, operator may do everything.")],
    expires_seconds: Annotated[
        int | None, typer.Option(min=1, help="Seconds until it expires; default: never.")
    ] = None,
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Create a token and print its secret, which is shown only once.

    Without --url it is created in the database on this machine, as the first token must be, before the first start.
    """
    request = TokenRequest(name=name, scope=scope, expires_seconds=expires_seconds)
    with _gateway_errors():
        made: TokenCreated = (
            _remote(url, token_file).create_token(request)
            if url
            else _offline(_settings(config, state_dir), lambda tokens: tokens.make(request))
        )
    typer.echo(made.token)


@token_app.command("ls")
def list_tokens(
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List tokens, oldest first; never their secrets."""
    with _gateway_errors():
        records: list[TokenRecord] = (
            _remote(url, token_file).tokens()
            if url
            else _offline(_settings(config, state_dir), lambda tokens: tokens.all()).tokens
        )
    if as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=2))
        return
    table = Table("ID", "NAME", "SCOPE", "CREATED", "EXPIRES", box=None)
    for record in records:
        expires = "revoked" if record.revoked_at else f"{record.expires_at:%F %R}" if record.expires_at else "never"
        table.add_row(record.id, record.name, record.scope.value, f"{record.created_at:%F %R}", expires)
    Console().print(table)


@token_app.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `sandboxes token ls` shows it.")],
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Revoke a token.  A running gateway applies it within two seconds."""
    with _gateway_errors():
        record: TokenRecord = (
            _remote(url, token_file).revoke_token(token_id)
            if url
            else _offline(_settings(config, state_dir), lambda tokens: tokens.revoke(token_id))
        )
    typer.echo(f"revoked {record.id} ({record.name})")


def _settings(config: Path | None, state_dir: Path | None, **given: object) -> GatewaySettings:
    """Return the settings of file and environment, overridden by those of the command line."""
    options = {"state_dir": state_dir, **given}
    flags = {name: value for name, value in options.items() if value is not None}
    try:
        return GatewaySettings.load(config, None, **flags)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _offline(settings: GatewaySettings, use: "Callable[[TokenService], Awaitable[T]]") -> T:
    """Return what ``use`` answers over the tokens in the database itself."""
    from gateway.services.tasks import SystemClock
    from gateway.services.tokens import TokenService
    from gateway.store.db import Database

    try:
        database = Database.open(settings.url)
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    try:
        return asyncio.run(_awaited(use(TokenService(database, SystemClock(), lambda: uuid4().hex))))
    except ApiError as error:
        raise click.ClickException(error.message) from error
    finally:
        database.close()


async def _awaited(answer: "Awaitable[T]") -> T:
    return await answer


def _remote(url: str, token_file: Path | None) -> GatewayClient:
    if token_file is None:
        raise click.UsageError("--url needs --token-file with an operator's token")
    try:
        return GatewayClient(url, token_file.read_text())
    except OSError as error:
        raise click.ClickException(f"token file {token_file}: {error.strerror}") from error


@contextmanager
def _gateway_errors() -> Iterator[None]:
    """Raise the gateway's errors as those of a command."""
    try:
        yield
    except (GatewayError, GatewayUnreachableError) as error:
        raise click.ClickException(str(error)) from error
