"""What a client command raises, and the one table that turns the clients' exceptions into it.

A command that cannot do what was asked raises `click.ClickException` (exit code 1) or `click.UsageError` (2) with one
sentence: what happened, to what, and what to do next.  `sandboxes.app` prints it without a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.errors import ErrorCode
from gateway.wire.text import printable
from ucloud_sandboxes_sdk import AuthenticationError, SandboxApiError, TransportError
from ucloud_sandboxes_sdk.client import TOKEN_VARIABLE, URL_VARIABLE

SERVICE_FAILED: Final = 125
"""Exit code of `run` and `exec` when the service failed and not the command itself, as in Docker."""
INTERRUPTED: Final = 130


class ServiceFailedError(click.ClickException):
    """The command in the sandbox has no outcome, because the service failed."""

    exit_code = SERVICE_FAILED


class InterruptedStartError(click.ClickException):
    """A signal asked for the end before everything had started."""

    exit_code = INTERRUPTED


@contextmanager
def client_errors(failure: type[click.ClickException] = click.ClickException) -> Iterator[None]:
    """Turn what fails in the block into one sentence.

    Args:
        failure: what to raise.
    """
    try:
        yield
    except click.ClickException as error:
        if error.exit_code != click.ClickException.exit_code:
            raise  # it has a code of its own, as wrong usage has
        raise failure(error.message) from error
    except AuthenticationError as error:
        raise failure(printable(f"{error} (token from --token-file or {TOKEN_VARIABLE})")) from error
    except (SandboxApiError, GatewayError, GatewayUnreachableError) as error:
        raise failure(printable(f"{error}{_hint(error)}")) from error  # one line, whatever the service wrote
    except OSError as error:
        raise failure(os_error_text(error)) from error
    except ValueError as error:
        raise failure(str(error)) from error


def _hint(error: Exception) -> str:
    """Return what to do next, where the error alone does not say it."""
    if never_sent(error):
        return f"; is the service running, and is {URL_VARIABLE} (or --url) its URL?"
    if isinstance(error, GatewayError) and error.code in {ErrorCode.FORBIDDEN, ErrorCode.UNAUTHORIZED}:
        return "; name a file with an operator's token with --token-file"
    return ""


def never_sent(error: Exception) -> bool:
    """Tell whether the service never saw the call."""
    return isinstance(error, GatewayUnreachableError) or (isinstance(error, TransportError) and not error.sent)


def os_error_text(error: OSError) -> str:
    """Return an error of the operating system without its number."""
    return f"{error.filename}: {error.strerror}" if error.filename else (error.strerror or str(error))
