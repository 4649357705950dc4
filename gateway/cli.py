"""``sandboxes gateway`` and ``sandboxes token``: the gateway's process, its contract, and who may call it."""

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from uuid import uuid4

import click
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.client import GatewayClient, GatewayError, GatewayUnreachableError, known_tenants, local_token
from gateway.errors import ApiError, GatewayStartError, StoreError
from gateway.settings import GatewaySettings
from gateway.wire.audit import AuditActor, AuditEntry
from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MAX_TOKEN_TTL
from gateway.wire.settings import ConfigurationError
from gateway.wire.tenants import DEFAULT_TENANT, TENANT_PATTERN, unknown_name
from gateway.wire.text import log_to_stderr, printable
from gateway.wire.tokens import RequestedScope, TokenCreated, TokenRecord, TokenRequest, TokenScope

if TYPE_CHECKING:  # it imports the database, which only the commands without --url need
    from gateway.services.tokens import TokenService

T = TypeVar("T")

app = typer.Typer()
gateway_app = typer.Typer(no_args_is_help=True)
token_app = typer.Typer(no_args_is_help=True)
app.add_typer(gateway_app, name="gateway", help="Run the gateway, or print its OpenAPI document.")
app.add_typer(token_app, name="token", help="Create, list and revoke tokens.")

# As in the SDK, for the commands beside these.
URL_VARIABLE: Final = "UCLOUD_SANDBOX_URL"
TOKEN_VARIABLE: Final = "UCLOUD_SANDBOX_API_TOKEN"  # noqa: S105 - the variable's name
UP_STATE_DIR: Final = Path("/var/lib/sandbox-fleet")
"""Where `sandboxes up` leaves its URL and tokens by default."""
UP_MARKS: Final = ("up.lock", "url")
"""Files by which the directory of `sandboxes up` is known; its gateway's own is below it."""
WIDE: Final = 240
"""Columns of a table that is not printed to a terminal."""

Config = Annotated[Path | None, typer.Option(help="TOML file with the gateway's settings.")]
StateDir = Annotated[
    Path | None, typer.Option(help="The gateway's state directory, or that of the `sandboxes up` that runs it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None,
    typer.Option(
        help=f"The gateway to ask; default: ${URL_VARIABLE}.  Without one, and with --state-dir or --config, the"
        " database on this machine is used."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help=f"File with an operator's token; default: the one of the local `sandboxes up`, or ${TOKEN_VARIABLE}."
    ),
]


@gateway_app.command("run")
def run_gateway(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = None,
    state_dir: StateDir = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the gateway in the foreground, until SIGTERM or Ctrl-C."""
    settings = load_settings(config, state_dir, host=host, port=port)
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise click.UsageError(f"--log-level {log_level}: must be debug, info, warning or error")
    log_to_stderr(level)
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
    as_json: AsJson = False,
) -> None:
    """Collect what new machines install: the node agent, its dependencies, and its installer.

    The gateway serves the bundle to whoever holds an unused join token.  A running gateway picks it up by itself.
    """
    from gateway.bundle import PYTHONS, BundleRequest, build_bundle

    directory = load_settings(config, state_dir).bundle_path
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
    scope: Annotated[RequestedScope, typer.Option(help="client works with sandboxes, operator may do everything.")],
    expires_seconds: Annotated[
        int | None, typer.Option(min=1, max=MAX_TOKEN_TTL, help="Seconds until it expires; default: never.")
    ] = None,
    tenant: Annotated[
        str, typer.Option(help="Whose it is: tenants see nothing of one another, operators see all.")
    ] = DEFAULT_TENANT,
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret, which is shown only once.

    Without a URL it is created in the database on this machine, as the first token must be, before the first start.
    """
    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise typer.BadParameter("a-z, 0-9 and - only, 32 characters at most", param_hint="--tenant")
    request = TokenRequest(name=name, scope=scope, tenant=tenant, expires_seconds=expires_seconds)
    with gateway_errors():
        gateway = asked_gateway(url, token_file, config, state_dir)
        problem = unknown_tenant(tenant, gateway, config, state_dir, create=True)
        if problem is not None:
            typer.echo(printable(f"warning: this tenant is new: {problem}"), err=True)
        made: TokenCreated = (
            gateway.create_token(request) if gateway else _made_offline(load_settings(config, state_dir), request)
        )
    typer.echo(json.dumps(made.model_dump(mode="json"), indent=2) if as_json else printable(made.token))


@token_app.command("ls")
def list_tokens(
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List tokens, oldest first; never their secrets."""
    with gateway_errors():
        gateway = asked_gateway(url, token_file, config, state_dir)
        records: list[TokenRecord] = (
            gateway.tokens()
            if gateway
            else _offline(load_settings(config, state_dir), lambda tokens: tokens.all()).tokens
        )
    if as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("ID", "NAME", "TENANT", "SCOPE", "CREATED", "EXPIRES"):
        table.add_column(column, no_wrap=column == "ID", overflow="fold")
    for record in records:
        expires = "revoked" if record.revoked_at else f"{record.expires_at:%F %R}" if record.expires_at else "never"
        # As Text, so that brackets in names are not taken for markup.
        cells = (record.tenant, record.scope.value, f"{record.created_at:%F %R}", expires)
        table.add_row(printable(record.id), Text(printable(record.name)), *(printable(cell) for cell in cells))
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


@token_app.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `sandboxes token ls` shows it.")],
    state_dir: StateDir = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token.  A running gateway applies it within two seconds."""
    with gateway_errors():
        gateway = asked_gateway(url, token_file, config, state_dir)
        record: TokenRecord = (
            gateway.revoke_token(token_id) if gateway else _revoked_offline(load_settings(config, state_dir), token_id)
        )
    shown = f"revoked {record.id} ({record.name})"
    typer.echo(json.dumps(record.model_dump(mode="json"), indent=2) if as_json else printable(shown))


def load_settings(config: Path | None, state_dir: Path | None, **given: object) -> GatewaySettings:
    """Return the settings of file and environment, overridden by those of the command line.

    The directory of `sandboxes up` stands for that of its gateway.
    """
    options = {"state_dir": state_dir, **given}
    flags = {name: value for name, value in options.items() if value is not None}
    try:
        settings = GatewaySettings.load(config, None, **flags)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    root = settings.state_dir
    # Else a second database would be made, or looked for, beside the one that is meant.
    of_up = (root / "gateway").is_dir() and any((root / mark).exists() for mark in UP_MARKS)
    return settings.model_copy(update={"state_dir": root / "gateway"}) if of_up else settings


def unknown_tenant(
    tenant: str, gateway: GatewayClient | None, config: Path | None, state_dir: Path | None, *, create: bool = False
) -> str | None:
    """Return a sentence where no token and no table of the policy file is of a tenant; ``None`` where it is known.

    Args:
        tenant: the name that was given.
        gateway: the one to ask; ``None`` means the database and the policy file on this machine.
        config, state_dir: of the gateway on this machine.
        create: a missing database is made; otherwise it is refused.
    """
    if tenant == DEFAULT_TENANT:
        return None
    if gateway is not None:
        return unknown_name(tenant, known_tenants(gateway))
    settings = load_settings(config, state_dir)
    records = _offline(settings, lambda tokens: tokens.all(), create=create).tokens
    return unknown_name(tenant, {*_tables_here(settings), *(record.tenant for record in records)})


def refuse_unknown(tenant: str, gateway: GatewayClient | None, config: Path | None, state_dir: Path | None) -> None:
    """Raise `click.ClickException` where nothing was found of a tenant because there is none of that name."""
    problem = unknown_tenant(tenant, gateway, config, state_dir)
    if problem is not None:
        raise click.ClickException(printable(f"nothing was found: {problem}"))


def _tables_here(settings: GatewaySettings) -> tuple[str, ...]:
    """Return the tenants with tables in the policy file; a wrong file is told, and names none."""
    from gateway.services.policies import read_policies

    try:
        return () if settings.policy_file is None else read_policies(settings.policy_file).tenants
    except ConfigurationError as error:
        typer.echo(printable(f"warning: {error}"), err=True)
        return ()


def _made_offline(settings: GatewaySettings, request: TokenRequest) -> TokenCreated:
    made = _offline(settings, lambda tokens: tokens.make(request), create=True)
    _audit_offline(settings, "token_created", made.record)
    return made


def _revoked_offline(settings: GatewaySettings, token_id: str) -> TokenRecord:
    record = _offline(settings, lambda tokens: tokens.revoke(token_id))
    _audit_offline(settings, "token_revoked", record)
    return record


def _audit_offline(settings: GatewaySettings, event: str, token: TokenRecord) -> None:
    """Write into the gateway's audit log what was done without the gateway."""
    from gateway.services.assembly import audit_files

    now = datetime.now(UTC)
    target = {"token_id": token.id, "uid": str(os.getuid())}
    entry = AuditEntry(time=now, actor=AuditActor.LOCAL, tenant=token.tenant, event=event, target=target)
    files = audit_files(settings)
    try:
        files.append([entry.line()], now.date())
        files.close()
    except OSError as error:
        message = f"warning: done, but the audit log in {settings.state_dir} cannot be written: {error.strerror}"
        typer.echo(message, err=True)


def _offline(settings: GatewaySettings, use: "Callable[[TokenService], Awaitable[T]]", *, create: bool = False) -> T:
    """Return what ``use`` answers over the tokens in the database itself.

    Args:
        settings: name the database.
        use: the call.
        create: a missing database is made; otherwise it is refused.
    """
    from gateway.services.tasks import SystemClock
    from gateway.services.tokens import TokenService
    from gateway.store.db import Database

    if not create:
        refuse_missing_database(settings)
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


def refuse_missing_database(settings: GatewaySettings) -> None:
    """Raise `click.ClickException` where the settings name a SQLite file that is not there."""
    from sqlalchemy import make_url

    url = make_url(settings.url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return
    try:
        Path(url.database).stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise click.ClickException(
            f"there is no gateway's database in {Path(url.database).parent};"
            f" name its state directory with --state-dir, or a running gateway with --url or {URL_VARIABLE}"
        ) from error
    except OSError:
        return  # who opens it says why it cannot be


async def _awaited(answer: "Awaitable[T]") -> T:
    return await answer


def asked_gateway(
    url: str | None, token_file: Path | None, config: Path | None, state_dir: Path | None
) -> GatewayClient | None:
    """Return the gateway to ask; ``None`` where the database on this machine is meant.

    Options win over the environment: with --state-dir or --config its URL is not looked at.
    """
    here = config is not None or state_dir is not None
    if url and here:
        raise click.UsageError(
            "--url: not together with --state-dir or --config, which name a database on this machine"
        )
    url = url or (None if here else os.environ.get(URL_VARIABLE))
    if url:
        return GatewayClient(url, _operator_token(url, token_file))
    if token_file is not None:
        raise click.UsageError(f"--token-file: needs the gateway's URL; set {URL_VARIABLE} or give --url")
    return None


def _operator_token(url: str, token_file: Path | None) -> str:
    """Return the token of the file, or the operator's that `sandboxes up` left, or that of the environment."""
    if token_file is None:
        token = local_token(UP_STATE_DIR, url, TokenScope.OPERATOR) or os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise click.UsageError(f"no token for {url}: set {TOKEN_VARIABLE} or give --token-file")
        return token
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise click.ClickException(f"token file {token_file}: {error.strerror}") from error
    if not token:
        raise click.ClickException(f"the token file {token_file} is empty")
    return token


@contextmanager
def gateway_errors() -> Iterator[None]:
    """Raise the gateway's errors as those of a command."""
    try:
        yield
    except (GatewayError, GatewayUnreachableError) as error:
        denied = isinstance(error, GatewayError) and error.code in {ErrorCode.FORBIDDEN, ErrorCode.UNAUTHORIZED}
        hint = "; name a file with an operator's token with --token-file" if denied else ""
        raise click.ClickException(printable(f"{error}{hint}")) from error
