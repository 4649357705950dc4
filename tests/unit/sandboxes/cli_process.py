"""The command line as a process of its own, for what only a process shows."""

import os
import subprocess
import sys
from typing import Any


def cli_process(*words: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start ``sandboxes WORDS`` with pipes for its stdout and stderr."""
    return subprocess.Popen(
        [sys.executable, "-m", "sandboxes", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )
