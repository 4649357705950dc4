"""The process that ``sandboxes`` and ``python -m sandboxes`` start."""

import signal
import sys

from sandboxes.app import run


def main() -> int:
    """Run the command line of this process and return its exit code."""
    # A shell starts background jobs with SIGINT ignored, and Python leaves it so; who sends one still means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
