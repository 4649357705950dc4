"""Write the lock files: for each role the versions of all dependencies, with the hashes of all their files.

``make lock`` keeps every version that still fits ``pyproject.toml``; ``make lock ARGS=--upgrade`` takes the newest.
Each file holds for every Python and platform that the project supports, by markers.  The roles share one set of
versions: that of the development environment, which the tests run in.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ROOT / "sandboxes" / "locks"
OLDEST_PYTHON: Final = "3.11"
DEVELOPMENT: Final = "dev"
EXTRAS: Final = {
    DEVELOPMENT: ["dev"],
    "gateway": ["gateway", "postgres"],
    "node": ["node"],
    "autoscaler": ["autoscaler", "hetzner", "postgres"],
}
"""The extras of each file."""


def write(name: str, options: list[str]) -> None:
    """Resolve the extras of one lock file, and write it.

    Args:
        name: of the file, without its suffix.
        options: more options of the resolver.
    """
    shared = [] if name == DEVELOPMENT else ["--constraint", str(LOCKS / f"{DEVELOPMENT}.txt")]
    extras = [word for extra in EXTRAS[name] for word in ("--extra", extra)]
    command = [
        *(
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--universal",
            "--generate-hashes",
            "--system-certs",
        ),
        *("--python-version", OLDEST_PYTHON, "--no-header", "--no-annotate", "--no-emit-package", "sandbox-fleet-sdk"),
        *(*extras, *shared, *options, "pyproject.toml", "--output-file", str(LOCKS / f"{name}.txt")),
    ]
    subprocess.run(command, cwd=ROOT, env=_environment(), check=True, timeout=600)


def _environment() -> dict[str, str]:
    """Return the environment in which the resolver asks the index that pip asks."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    index = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()
    return {**os.environ, "UV_DEFAULT_INDEX": index} if index else dict(os.environ)


if __name__ == "__main__":
    for lock in EXTRAS:
        write(lock, sys.argv[1:])
