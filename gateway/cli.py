"""``sandboxes gateway`` and ``sandboxes token``: the gateway's process, its contract, and who may call it."""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from uuid import uuid4

import typer
from rich.console import Console
from rich.table import Table

from gateway.client import GatewayClient, GatewayError, GatewayUnreachableError
from gateway.errors import ApiError
from gateway.settings import ENV_PREFIX, GatewaySettings, SettingsError, load_settings
from gateway.wire.tokens import Scope, TokenCreated, TokenRecord, TokenRequest
from sandboxes.errors import CommandFailed

if TYPE_CHECKING:  # it brings the database, which only the commands without --url need
    from gateway.services.tokens import TokenService

T = TypeVar("T")

app = typer.Typer()
gateway_app = typer.Typer(no_args_is_help=True)
token_app = typer.Typer(no_args_is_help=True)
app.add_typer(gateway_app, name="gateway", help="Run the gateway, or print its OpenAPI document.")
app.add_typer(token_app, name="token", help="Make, list and revoke tokens.")

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Config = Annotated[Path | None, typer.Option(help="TOML file with the gateway's settings.")]
StateDir = Annotated[Path | None, typer.Option(help="The gateway's state directory.")]
Url = Annotated[str | None, typer.Option(help="Ask the gateway at this URL instead of its database on this machine.")]
TokenFile = Annotated[Path | None, typer.Option(help="File with an operator's token, to go with --url.")]


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
        raise CommandFailed(f"--log-level {log_level}: must be debug, info, warning or error", exit_code=2)
    logging.basicConfig(level=level, format=LOG_FORMAT)
    logging.getLogger("alembic").setLevel(max(level, logging.WARNING))
    from gateway.main import StartError, run

    try:
        run(settings)
    except StartError as error:
        raise CommandFailed(str(error)) from error


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
    source: Annotated[Path | None, typer.Option(help="Checkout to build from, if not this installation's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Collect what new machines install: the node agent, all that it needs, and the scripts of its set-up.

    The gateway serves it to whoever holds an unused join token.  A running gateway takes it up by itself.
    """
    from gateway import bundle_builder
    from sandboxes.progress import waiting

    directory = _settings(config, state_dir).bundle_path
    wanted = bundle_builder.Wanted(directory, tuple(python or bundle_builder.PYTHONS), machine, source)
    with waiting("making the bundle") as say:
        manifest = bundle_builder.make(wanted, say)
    if as_json:
        typer.echo(manifest.model_dump_json(indent=2))
        return
    size = sum(item.size for item in manifest.files)
    typer.echo(f"{directory}: {len(manifest.files)} files, {size / 2**20:.1f} MiB, version {manifest.version}")


@token_app.command("create")
def create_token(
    name: Annotated[str, typer.Option(help="What it is for; shown in lists and logs.")],
    scope: Annotated[Scope, typer.Option(help="client works with sandboxes, operator may do everything.")],
    expires_seconds: Annotated[int | None, typer.Option(min=1, help="Seconds until it ends; never without.")] = None,
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Make a token and print its secret, which is shown this once.

    Without --url it is made in the database on this machine: so the first token comes to be, before the first start.
    """
    request = TokenRequest(name=name, scope=scope, expires_seconds=expires_seconds)
    with _told():
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
    with _told():
        records: list[TokenRecord] = (
            _remote(url, token_file).tokens()
            if url
            else _offline(_settings(config, state_dir), lambda tokens: tokens.all()).tokens
        )
    if as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=2))
        return
    table = Table("ID", "NAME", "SCOPE", "MADE", "ENDS", box=None)
    for record in records:
        ends = "revoked" if record.revoked_at else f"{record.expires_at:%F %R}" if record.expires_at else "never"
        table.add_row(record.id, record.name, record.scope.value, f"{record.created_at:%F %R}", ends)
    Console().print(table)


@token_app.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(help="Its id, as `sandboxes token ls` shows it.")],
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """End a token.  A running gateway follows within two seconds."""
    with _told():
        record: TokenRecord = (
            _remote(url, token_file).revoke_token(token_id)
            if url
            else _offline(_settings(config, state_dir), lambda tokens: tokens.revoke(token_id))
        )
    typer.echo(f"revoked {record.id} ({record.name})")


def _settings(config: Path | None, state_dir: Path | None, **given: object) -> GatewaySettings:
    """Settings of file and environment; what stands on the command line wins."""
    options = {"state_dir": state_dir, **given}
    told = {ENV_PREFIX + name.upper(): str(value) for name, value in options.items() if value is not None}
    try:
        return load_settings(config, {**os.environ, **told})
    except SettingsError as error:
        raise CommandFailed(str(error), exit_code=2) from error


def _offline(settings: GatewaySettings, use: "Callable[[TokenService], Awaitable[T]]") -> T:
    """What ``use`` makes of the tokens in the database itself."""
    from gateway.services.ports import SystemClock
    from gateway.services.tokens import TokenService
    from gateway.store.db import Database, StoreError

    try:
        database = Database.open(settings.url)
    except StoreError as error:
        raise CommandFailed(str(error)) from error
    try:
        return asyncio.run(_awaited(use(TokenService(database, SystemClock(), lambda: uuid4().hex))))
    except ApiError as error:
        raise CommandFailed(error.message) from error
    finally:
        database.close()


async def _awaited(answer: "Awaitable[T]") -> T:
    return await answer


def _remote(url: str, token_file: Path | None) -> GatewayClient:
    if token_file is None:
        raise CommandFailed("--url needs --token-file with an operator's token", exit_code=2)
    try:
        return GatewayClient(url, token_file.read_text())
    except OSError as error:
        raise CommandFailed(f"token file {token_file}: {error.strerror}") from error


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the gateway as one sentence."""
    try:
        yield
    except (GatewayError, GatewayUnreachableError) as error:
        raise CommandFailed(str(error)) from error
