"""Host commands, always with a timeout."""

import subprocess
from collections.abc import Sequence
from typing import Final

DEFAULT_TIMEOUT: Final = 15.0


class CommandError(Exception):
    """A host command failed, did not end in time, or is not installed.

    Attributes:
        output: what it wrote to stdout and stderr, as text.
        code: its exit code; ``None`` when it never ended by itself or never started.
    """

    def __init__(self, argv: Sequence[str], problem: str, *, output: str = "", code: int | None = None) -> None:
        detail = f": {output.strip()[-2000:]}" if output.strip() else ""
        super().__init__(f"{argv[0]} {problem}{detail}")
        self.output = output
        self.code = code


def run(
    argv: Sequence[str], *, timeout: float = DEFAULT_TIMEOUT, stdin: bytes = b"", pass_fds: Sequence[int] = ()
) -> bytes:
    """Runs a short command to its end and returns its stdout.

    Raises:
        CommandError: it is missing, took longer than ``timeout`` seconds (it is killed then), or ended non-zero.
    """
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, check=False, pass_fds=pass_fds)
    except FileNotFoundError as error:
        raise CommandError(argv, "is not installed on this host") from error
    except OSError as error:
        raise CommandError(argv, f"could not be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(argv, f"did not end within {timeout:g} s and was killed") from error
    if done.returncode != 0:
        text = (done.stderr + done.stdout).decode(errors="replace")
        raise CommandError(argv, f"failed with exit code {done.returncode}", output=text, code=done.returncode)
    return done.stdout
