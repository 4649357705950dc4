"""``sandboxes policy``: what the operator's policy file says, and what it would refuse of a sandbox."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import click
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.core.policy import Policies, PolicyTable
from gateway.core.policy_check import Violation, check
from gateway.services.policies import read_policies
from gateway.settings import GatewaySettings
from gateway.wire import limits
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.settings import ConfigurationError
from gateway.wire.tenants import DEFAULT_TENANT, TENANT_PATTERN
from gateway.wire.text import printable

app = typer.Typer()
policy_app = typer.Typer(no_args_is_help=True)
app.add_typer(policy_app, name="policy", help="Show the policy, and check a spec against it.")

STDIN: Final = "-"
WIDE: Final = 160
"""Columns of a table that is not printed to a terminal."""

PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Policy file; default: the gateway's setting policy_file, and without one the built-in defaults.",
    ),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with the gateway's settings, which name the policy file.")]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose clients; a tenant without tables has the defaults.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@policy_app.command("check")
def check_spec(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="File with the JSON body of a create; - reads stdin.")],
    policy: PolicyOption = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a tenant's client may create a sandbox, and if not, what is refused and why.

    Asks no gateway and creates nothing.  Exit code: 0 allowed, 1 refused, 2 the spec or the policy file is wrong.

    A refusal names the field, what is allowed instead, and the line of the policy file that says so.  The cure is to
    change that field, or, as the operator, that line: a running gateway follows the file within a second.

    Example:  echo '{"image": "debian:12", "isolation": "runc"}' | sandboxes policy check - --tenant acme
    """
    asked = _spec(spec)
    path, policies = _policies(policy, config)
    bound = policies.of(_tenant(tenant))[0]
    found = check(asked, bound)
    if as_json:
        _print_json(tenant, path, found, asked.ttl_seconds or bound.ttl_without_one)
    else:
        _print(tenant, path, found)
    raise typer.Exit(1 if found else 0)


@policy_app.command("show")
def show_policy(
    policy: PolicyOption = None, tenant: Tenant = DEFAULT_TENANT, config: Config = None, as_json: AsJson = False
) -> None:
    """Show what holds for a tenant's clients: each value of policy and quota, and where it is set.

    Reads the file as the gateway does, so it also tells whether the file is right before a gateway sees it.

    Example:  sandboxes policy show --policy policy.toml --tenant acme
    """
    path, policies = _policies(policy, config)
    tables = dict(zip(("policy", "quota"), policies.of(_tenant(tenant)), strict=True))
    if as_json:
        shown = {name: _with_origins(table) for name, table in tables.items()}
        typer.echo(json.dumps({"tenant": tenant, "file": path and str(path), **shown}, indent=2))
        return
    listing = Table(box=None, pad_edge=False)
    for column in ("KEY", "VALUE", "SET BY"):
        listing.add_column(column, no_wrap=column == "KEY", overflow="fold")
    for name, table in tables.items():
        for key, value in table.model_dump(mode="json").items():
            listing.add_row(f"{name}.{key}", Text(printable(_text(value))), Text(printable(table.where(key))))
    Console(width=None if sys.stdout.isatty() else WIDE).print(listing)
    others = [name for name in policies.tenants if name != tenant]
    if others:
        typer.echo(f"tenants with tables of their own: {', '.join(others)}; see them with --tenant", err=True)


def _spec(place: str) -> SandboxSpec:
    try:
        with click.open_file(place, "rb") as file:
            content = file.read(limits.MAX_JSON_BODY + 1)
    except OSError as error:
        raise click.UsageError(f"SPEC {place}: {error.strerror or error}") from error
    if len(content) > limits.MAX_JSON_BODY:
        raise click.UsageError(f"SPEC {place}: is larger than {limits.MAX_JSON_BODY // limits.MIB} MiB")
    try:
        return SandboxSpec.model_validate_json(content)
    except ValidationError as error:
        # Not the values: environments hold secrets.
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise click.UsageError(f"SPEC {place}: is not the body of a create: {problems}") from error


def _policies(policy: Path | None, config: Path | None) -> tuple[Path | None, Policies]:
    try:
        path = policy or GatewaySettings.load(config).policy_file
        return path, Policies() if path is None else read_policies(path)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _tenant(name: str) -> str:
    if not re.fullmatch(TENANT_PATTERN, name):
        raise typer.BadParameter("a-z, 0-9 and - only, 32 characters at most", param_hint="--tenant")
    return name


def _print(tenant: str, path: Path | None, found: list[Violation]) -> None:
    source = str(path) if path else "the built-in defaults"
    if not found:
        typer.echo(f"allowed: clients of tenant {tenant} may create this sandbox, by {source}")
        return
    typer.echo(f"refused: clients of tenant {tenant} may not create this sandbox, by {source}")
    for violation in found:
        typer.echo(printable(f"  {violation.field}: {violation.problem}"))


def _print_json(tenant: str, path: Path | None, found: list[Violation], ttl_seconds: int | None) -> None:
    answer = {
        "allowed": not found,
        "tenant": tenant,
        "file": path and str(path),
        "ttl_seconds": ttl_seconds,
        "violations": [
            {"field": one.field, "value": one.value, "allowed": one.allowed, "where": one.where} for one in found
        ],
    }
    typer.echo(json.dumps(answer, indent=2))


def _with_origins(table: PolicyTable) -> dict[str, dict[str, object]]:
    return {key: {"value": value, "where": table.where(key)} for key, value in table.model_dump(mode="json").items()}


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return "no limit" if value is None else str(value)
