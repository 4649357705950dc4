"""``python -m tests.fakes.ucloud``: the emulator as a process of its own, until SIGTERM or Ctrl-C.

``--booter module:factory`` takes a `tests.fakes.booting.Booter`, which ``factory()`` makes.
"""

import argparse
import json
import signal
import sys

from tests.fakes.booting import booter_from
from tests.fakes.ucloud.auth import API_TOKEN, PROJECT, REFRESH_TOKEN
from tests.fakes.ucloud.emulator import emulated


def main() -> None:
    """Run until a signal ends it."""
    parser = argparse.ArgumentParser(description="Emulates SDU UCloud; prints where, as one line of JSON.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0, help="emulated seconds per real one")
    parser.add_argument("--booter", help="module:factory of what runs inside the machines")
    given = parser.parse_args()
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    ports = {"port": given.port, "control_port": given.control_port}
    with emulated(seed=given.seed, pace=given.pace, booter=booter_from(given.booter), **ports) as emulator:
        where = {"url": emulator.url, "control_url": emulator.control_url, "project": PROJECT}
        print(json.dumps(where | {"api_token": API_TOKEN, "refresh_token": REFRESH_TOKEN}), flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    sys.exit(main())
