"""``sandboxes policy``: what the operator's policy file says, and what it would refuse of a sandbox."""

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import click
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli import UP_STATE_DIR, URL_VARIABLE, AsJson, TokenFile, Url, asked_gateway, gateway_errors
from gateway.client import known_tenants, local_url
from gateway.core.policy import Policies, Policy, Quota
from gateway.core.policy_check import Violation, check, doubts
from gateway.core.quota import claim_excesses, in_use
from gateway.services.policies import read_policies
from gateway.settings import GatewaySettings
from gateway.wire import limits
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.settings import ConfigurationError, describe
from gateway.wire.system import PolicyAnswer
from gateway.wire.tenants import DEFAULT_TENANT, TENANT_PATTERN, unknown_name
from gateway.wire.text import json_text, printable

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
        help="Policy file; default: what the running gateway has, and where none is named, the gateway's settings.",
    ),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with the gateway's settings, which name the policy file.")]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose clients; a tenant without tables has the defaults.")]


@dataclass(frozen=True)
class _Bounds:
    """What holds for a tenant's clients, and how that is known."""

    policy: Policy
    quota: Quota
    source: str
    """For people."""
    file: str | None
    tenants: tuple[str, ...]
    """Tenants with tables of their own."""
    used: Shape | None = None
    """What counts against the quota now; ``None`` where no gateway was asked."""
    prepared_units: int = 0
    """Likewise, the unclaimed ones."""
    problem: str | None = None
    """What is wrong with the file, where an earlier one holds."""
    unknown: str | None = None
    """Why the tenant's name may be a slip; ``None`` where it is known."""


@policy_app.command("check")
def check_spec(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="File with the JSON body of a create; - reads stdin.")],
    policy: PolicyOption = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a tenant's client may create a sandbox now, and if not, what is refused and why.

    Creates nothing.  Policy and quota are those of the running gateway, with what is in use, where a URL names one or
    `sandboxes up` runs here; of FILE or the settings otherwise, and then the quota's limits alone.  Exit code: 0
    allowed, 1 refused, 2 the spec or the policy file is wrong.

    A refusal names the field, what is allowed instead, and the line of the policy file that says so.  The cure is to
    change that field, or, as the operator, that line: a running gateway follows the file within a second.

    Example:  echo '{"image": "debian:12", "isolation": "runc"}' | sandboxes policy check - --tenant acme
    """
    asked = _spec(spec)
    bounds = _bounds(_tenant(tenant), policy, config, url, token_file)
    _note_unknown(bounds)
    found = [*check(asked, bounds.policy), *_above_quota(asked, bounds)]
    if as_json:
        _print_json(tenant, bounds, found, asked.ttl_seconds or bounds.policy.ttl_without_one)
    else:
        _print(tenant, bounds, found)
    raise typer.Exit(1 if found else 0)


@policy_app.command("show")
def show_policy(
    policy: PolicyOption = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what holds for a tenant's clients: each value, what is in use of a quota, and where it is set.

    As the running gateway has it where a URL names one or `sandboxes up` runs here; what is in use only that knows.
    With FILE, reads that as the gateway does, so it also tells whether the file is right before a gateway sees it.

    Example:  sandboxes policy show --policy policy.toml --tenant acme
    """
    bounds = _bounds(_tenant(tenant), policy, config, url, token_file)
    _note_unknown(bounds)
    tables = {"policy": bounds.policy, "quota": bounds.quota}
    if as_json:
        shown = {
            name: {key: {"value": value, "where": where} for key, (value, where) in table.described().items()}
            for name, table in tables.items()
        }
        if bounds.used is not None:
            for key, one in shown["quota"].items():
                one["used"] = in_use(key, bounds.used, bounds.prepared_units)
        head = {"tenant": tenant, "file": bounds.file, "source": bounds.source, "problem": bounds.problem}
        typer.echo(json_text({**head, **shown}))
        _warn(bounds.policy)
        return
    Console(width=None if sys.stdout.isatty() else WIDE).print(_listing(bounds))
    typer.echo(printable(f"by {bounds.source}"), err=True)
    if bounds.problem:
        typer.echo(
            printable(f"warning: the file is wrong now, and this is what held before: {bounds.problem}"), err=True
        )
    _warn(bounds.policy)
    others = [name for name in bounds.tenants if name != tenant]
    if others:
        text = f"tenants with tables of their own: {', '.join(others)}; see them with --tenant"
        typer.echo(printable(text), err=True)


def _listing(bounds: _Bounds) -> Table:
    listing = Table(box=None, pad_edge=False)
    for column in ("KEY", "VALUE", *([] if bounds.used is None else ["IN USE"]), "SET BY"):
        listing.add_column(column, no_wrap=column in {"KEY", "IN USE"}, overflow="fold")
    for name, table in {"policy": bounds.policy, "quota": bounds.quota}.items():
        for key, (value, where) in table.described().items():
            cells: list[str | Text] = [f"{name}.{key}", Text(printable(_text(value)))]
            if bounds.used is not None:
                used = in_use(key, bounds.used, bounds.prepared_units) if name == "quota" else None
                cells.append("" if used is None else f"{used:.12g}")
            listing.add_row(*cells, Text(printable(where)))
    return listing


def _bounds(tenant: str, policy: Path | None, config: Path | None, url: str | None, token_file: Path | None) -> _Bounds:
    """Return what holds for a tenant: by the file that was named, the gateway that runs, or else the settings."""
    if policy is not None and (url or token_file or config):
        raise click.UsageError("--policy: not together with --url, --token-file or --config, which name another policy")
    if policy is None:
        if config is None:
            url = url or os.environ.get(URL_VARIABLE) or local_url(UP_STATE_DIR)
        with gateway_errors():
            gateway = asked_gateway(url, token_file, config, None)
            if gateway is not None:
                bounds = _asked(gateway.policy(tenant), str(url))
                known = tenant in {DEFAULT_TENANT, *bounds.tenants}
                unknown = None if known else unknown_name(tenant, known_tenants(gateway))
                return replace(bounds, unknown=unknown)
    try:
        path = policy or GatewaySettings.load(config).policy_file
        policies = Policies() if path is None else read_policies(path)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    source = (
        f"{path}; no gateway was asked"
        if path
        else "the built-in defaults: no policy file was read and no gateway asked;"
        f" name one with --policy, or a gateway with --url or {URL_VARIABLE}"
    )
    unknown = unknown_name(tenant, policies.tenants)
    file = None if path is None else str(path)
    return _Bounds(*policies.of(tenant), source, file, policies.tenants, unknown=unknown)


def _asked(answer: PolicyAnswer, url: str) -> _Bounds:
    try:
        policy = Policy.restored({key: (one.value, one.where) for key, one in answer.policy.items()})
        quota = Quota.restored({key: (one.value, one.where) for key, one in answer.quota.items()})
    except ConfigurationError as error:
        raise click.ClickException(f"{error}; use the command line of the gateway's version") from error
    source = f"the gateway at {url}, which uses {answer.file or 'the built-in defaults'}"
    return _Bounds(
        policy, quota, source, answer.file, tuple(answer.tenants), answer.used, answer.prepared_units, answer.problem
    )


def _above_quota(asked: SandboxSpec, bounds: _Bounds) -> list[Violation]:
    """Return what the quota refuses of a create: beside what is in use, where that is known."""
    quota = bounds.quota
    found = [
        Violation(
            f"quota.{excess.key}",
            f"{excess.amount(excess.asked)} beside {excess.used:.12g} in use"
            if excess.used
            else excess.amount(excess.asked),
            f"at most {excess.limit:.12g}",
            excess.where,
        )
        for excess in claim_excesses(quota, bounds.used or Shape(), asked.asked)
    ]
    if quota.creates_per_second == 0:
        where = quota.where("creates_per_second")
        found.append(Violation("quota.creates_per_second", "any create", "at most 0", where))
    return found


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
        raise click.UsageError(f"SPEC {place}: is not the body of a create: {describe(error, SandboxSpec)}") from error


def _tenant(name: str) -> str:
    if not re.fullmatch(TENANT_PATTERN, name):
        raise typer.BadParameter("a-z, 0-9 and - only, 32 characters at most", param_hint="--tenant")
    return name


def _print(tenant: str, bounds: _Bounds, found: list[Violation]) -> None:
    verb = "may not" if found else "may"
    verdict = "refused" if found else "allowed"
    typer.echo(printable(f"{verdict}: clients of tenant {tenant} {verb} create this sandbox, by {bounds.source}"))
    for violation in found:
        typer.echo(printable(f"  {violation.field}: {violation.problem}"))
    limited = any(value is not None for value in bounds.quota.model_dump().values())
    if bounds.used is None and limited:
        typer.echo("the quota was checked for this sandbox alone: what is in use only a gateway knows", err=True)


def _print_json(tenant: str, bounds: _Bounds, found: list[Violation], ttl_seconds: int | None) -> None:
    answer = {
        "allowed": not found,
        "tenant": tenant,
        "file": bounds.file,
        "source": bounds.source,
        "ttl_seconds": ttl_seconds,
        "used": bounds.used and bounds.used.model_dump(),
        "violations": [
            {"field": one.field, "value": one.value, "allowed": one.allowed, "where": one.where} for one in found
        ],
    }
    typer.echo(json_text(answer))


def _note_unknown(bounds: _Bounds) -> None:
    if bounds.unknown is not None:
        typer.echo(printable(f"note: the defaults hold: {bounds.unknown}"), err=True)


def _warn(policy: Policy) -> None:
    for doubt in doubts(policy):
        typer.echo(printable(f"warning: {doubt}"), err=True)


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return "no limit" if value is None else str(value)
