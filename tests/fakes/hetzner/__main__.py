"""The emulator as a process.

    python -m tests.fakes.hetzner --pace 10 --boot 'node-agent --user-data ${user_data} --address ${ipv4}'

Prints one line of JSON with ``api``, ``control`` and ``token``, and runs until SIGTERM or SIGINT; then it stops every
server that it booted.  ``--booter module:factory`` takes a `Booter` of one's own, which ``factory()`` makes.
"""

import argparse
import json
import shlex
import signal
import threading
from pathlib import Path

from tests.fakes.booting import Booter, CommandBooter, booter_from
from tests.fakes.hetzner.emulator import TOKEN, emulator


def main() -> None:
    """Run until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.hetzner")
    parser.add_argument("--pace", type=float, default=1.0, help="emulated seconds per real one; 0 stands still")
    parser.add_argument("--api-port", type=int, default=0)
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument("--token", default=TOKEN)
    parser.add_argument("--boot", help="command line of a server's process")
    parser.add_argument("--booter", help="module:factory of a Booter")
    parser.add_argument("--root", type=Path, help="directory for servers' files")
    given = parser.parse_args()
    booter: Booter | None = booter_from(given.booter)
    if given.boot is not None:
        booter = CommandBooter(shlex.split(given.boot), given.root)
    ended = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ended.set())
    ports = {"api_port": given.api_port, "control_port": given.control_port}
    with emulator(pace=given.pace, booter=booter, token=given.token, **ports) as control:
        print(json.dumps({"api": control.api, "control": control.url, "token": control.token}), flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
