"""Which service a client command talks to, with which token, and how its errors become one sentence."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.client import GatewayClient, GatewayError, GatewayUnreachableError
from sandboxes import progress
from sandboxes.errors import CommandFailed
from sandboxes.local.state_dir import Layout
from ucloud_sandboxes_sdk import AuthenticationError, SandboxApiError, SandboxClient, TransportError

URL_VARIABLE: Final = "UCLOUD_SANDBOX_URL"
TOKEN_VARIABLE: Final = "UCLOUD_SANDBOX_API_TOKEN"  # noqa: S105 - a variable's name
SERVICE_FAILED: Final = 125
"""Exit code of `run` and `exec` when the service failed, so that it is told from the command's own, as Docker does."""


NOT_REACHED: Final = f"is the service running, and is {URL_VARIABLE} (or --url) its URL?"


@dataclass(frozen=True)
class Access:
    """Where a service is and what to show it."""

    url: str
    token: str

    def client(self) -> SandboxClient:
        """The SDK's client; what it has to try again is told."""
        made = SandboxClient(self.url, api_token=self.token)
        made.transport.on_retry = progress.trouble()
        return made

    def operator(self) -> GatewayClient:
        """The operator's client."""
        return GatewayClient(self.url, self.token)


def find(url: str | None, token_file: Path | None, state_dir: Path, *, scope: str = "client") -> Access:
    """The service that the options, the environment or a `sandboxes up` on this machine name, in this order.

    A token that `sandboxes up` left is shown only to the service that it left it for.

    Args:
        url: from ``--url`` or the environment.
        token_file: from ``--token-file``.
        state_dir: of a `sandboxes up` on this machine.
        scope: ``client``, or ``operator`` where the command needs one.

    Raises:
        CommandFailed: URL or token are told nowhere, or their file cannot be read.
    """
    layout = Layout(state_dir)
    local = _read(layout.url)
    url = url or local
    if not url:
        raise CommandFailed(f"which service? set {URL_VARIABLE} or give --url, or start one here with 'sandboxes up'")
    if token_file is not None:
        return Access(url, _read_given(token_file))
    left = _read(layout.tokens / scope) if local == url.rstrip("/") else None
    given = os.environ.get(TOKEN_VARIABLE, "").strip() or None
    # The variable holds a client token as a rule; an operator's own file knows better.
    token = (left or given) if scope == "operator" else (given or left)
    if not token:
        raise CommandFailed(f"no token for {url}: set {TOKEN_VARIABLE} or give --token-file")
    return Access(url, token)


def is_unreached(error: Exception) -> bool:
    """Whether the service never saw the call."""
    return isinstance(error, GatewayUnreachableError) or (isinstance(error, TransportError) and not error.sent)


@contextmanager
def failures(exit_code: int = 1) -> Iterator[None]:
    """Turns what the clients raise into one sentence and this exit code."""
    try:
        yield
    except AuthenticationError as error:
        raise CommandFailed(f"{error} (token from --token-file or {TOKEN_VARIABLE})", exit_code=exit_code) from error
    except (SandboxApiError, GatewayError, GatewayUnreachableError) as error:
        hint = f"; {NOT_REACHED}" if is_unreached(error) else ""
        raise CommandFailed(f"{error}{hint}", exit_code=exit_code) from error
    except OSError as error:
        raise CommandFailed(_local(error), exit_code=exit_code) from error
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=exit_code) from error


def _local(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else (error.strerror or str(error))


def _read(path: Path) -> str | None:
    """The one line of a file that may be missing or closed to us."""
    try:
        return path.read_text().strip().rstrip("/") or None
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None


def _read_given(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise CommandFailed(f"cannot read the token file {_local(error)}") from error
    if not token:
        raise CommandFailed(f"the token file {path} is empty")
    return token
