"""``python -m tests.chaos.forked SPEED``: starts the command line again and again, each time as a process of its own.

The program is loaded once and each run is forked from it, so that one that is killed soon has still begun.  A line of
standard input is one run: its words, as JSON.  Two lines answer it: its process id, and once it has ended its status.
"""

import json
import logging
import os
import runpy
import signal
import sys
from dataclasses import replace

import autoscaler.main
import providers.hetzner.provider
import sandboxes
from autoscaler import user_data
from autoscaler.core.pools import FleetPolicy
from autoscaler.settings import AutoscalerSettings
from providers.ucloud.provider import UCloudProvider

LOADED = (autoscaler.main, sandboxes, providers.hetzner.provider)


def main(speed: float) -> None:
    # The emulated cloud lives that much faster, so whatever waits for it waits a shorter time.
    caps, policy = UCloudProvider.caps, user_data.fleet_policy
    UCloudProvider.caps = replace(caps, settle_seconds=caps.settle_seconds / speed)

    def hurried(settings: AutoscalerSettings) -> FleetPolicy:
        fleet = policy(settings)
        return replace(fleet, delete_retry_seconds=fleet.delete_retry_seconds / speed)

    user_data.fleet_policy = hurried
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(words: list[str]) -> None:
    """Does not return."""
    # What the parent reads and says is not this process's.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["sandboxes", *words]
    status = 1
    try:
        runpy.run_module("sandboxes", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        logging.getLogger(__name__).exception("%s broke", words)
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(float(sys.argv[1]))
