"""The command line as a process of its own, for what only a process shows."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

Cli = Callable[..., tuple[int, bytes, str]]
"""Runs one command line in this process; returns its exit code, stdout and stderr."""


def cli_process(*words: str, before: Sequence[str] = (), **options: Any) -> "subprocess.Popen[bytes]":
    """Start ``sandboxes WORDS`` with pipes for its stdout and stderr.

    Args:
        words: of the command.
        before: a program and its arguments that run it, such as `env` does.
        options: more of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [*before, sys.executable, "-m", "sandboxes", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )
