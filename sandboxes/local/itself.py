"""Runs other commands of this very installation, as `up` and `demo` need them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from sandboxes.errors import CommandFailed

COMMAND_SECONDS: Final = 60.0


def sandboxes(*words: str) -> list[str]:
    """The argument list of ``sandboxes WORDS``."""
    return [sys.executable, "-m", "sandboxes", *words]


def call(
    *words: str, env: Mapping[str, str] | None = None, within: float = COMMAND_SECONDS, may_fail: bool = False
) -> str:
    """Runs ``sandboxes WORDS`` to its end and returns its stdout.

    Args:
        words: the command's own words.
        env: added to this process's environment.
        within: seconds after which it is killed.
        may_fail: return its stdout also when its exit code is not 0.

    Raises:
        CommandFailed: it took too long, or failed and may not; the sentence holds its last words.
    """
    name = f"'sandboxes {' '.join(words[:2])}'"
    try:
        done = subprocess.run(
            sandboxes(*words),
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
            start_new_session=True,  # Ctrl-C is this process's to handle
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{name} took over {within:.0f} s and was killed") from error
    if done.returncode != 0 and not may_fail:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it wrote nothing"]
        raise CommandFailed(f"{name} failed with exit code {done.returncode}: {last[0].removeprefix('error: ')}")
    return done.stdout
