"""``python -m tests.bench``: starts a service of its own, measures it beside the raw engines, takes it down again,
and times the autoscaler's plan."""

import argparse
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from node_agent.install.images import CACHE, test_image
from sandboxes.local.dockerd import DEFAULT_SOCKET
from tests.bench import measures, plan, report
from tests.bench.contenders import Contender, Docker, Runsc, Service
from tests.bench.figures import SERVICE, Measure
from tests.bench.memory import pss
from tests.stack import Up, running

DAEMONS = ("gateway", "autoscaler", "node")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return 0 when everything could be measured."""
    options = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        print("error: the bench starts real engines; run it as root", file=sys.stderr)
        return 1
    _say("starting a service")
    with running() as service, TemporaryDirectory(prefix="sbb-", dir="/var/tmp") as scratch:
        contenders = [one for one in _contenders(service, Path(scratch), docker=options.docker) if _works(one)]
        _say(f"measuring {', '.join(contender.name for contender in contenders)}, in turn")
        found = _measure(contenders, options, Path(scratch))
        daemons = {name: pss([pid]) for name in DAEMONS if (pid := service.pid(name)) is not None}
        _say("taking it down")
    _say("timing plans of the autoscaler")
    plans = plan.measure(options.plans)
    report.show(found, daemons, _machine())
    report.show_plans(plans)
    if options.json:
        report.write(options.json, measures=found, plans=plans, daemons=daemons, machine=_machine())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=10, help="sandboxes made by each contender (default: 10)")
    parser.add_argument("--execs", type=int, default=100, help="execs by each contender (default: 100)")
    parser.add_argument("--pauses", type=int, default=30, help="pauses and resumes by each contender (default: 30)")
    parser.add_argument("--files", type=int, default=3, help="transfers each way by each contender (default: 3)")
    parser.add_argument("--idle", type=int, default=4, help="idle sandboxes of each contender (default: 4)")
    parser.add_argument("--plans", type=int, default=plan.ROUNDS, help=f"plans of each case (default: {plan.ROUNDS})")
    parser.add_argument("--no-docker", dest="docker", action="store_false", help="leave Docker's command line out")
    return parser


def _measure(contenders: Sequence[Contender], options: argparse.Namespace, scratch: Path) -> list[Measure]:
    found = measures.lives(contenders, options.rounds)
    found += measures.calls(contenders, options.execs, options.pauses)
    found += measures.files(contenders, options.files, scratch)
    found.append(measures.idle_memory(contenders, options.idle))
    return found


def _contenders(service: Up, scratch: Path, *, docker: bool) -> list[Contender]:
    ours = service.directory.docker_socket
    socket = ours if ours.exists() else DEFAULT_SOCKET
    image = test_image(f"unix://{socket}")
    rootfs = scratch / "rootfs"
    with tarfile.open(CACHE / f"busybox-{platform.machine()}.tar") as archive:
        archive.extractall(rootfs, filter="tar")
    (rootfs / "data").mkdir()
    (rootfs / "proc").mkdir()
    made: list[Contender] = [Service(service.client(), image), Runsc(scratch / "runsc", rootfs)]
    if docker:
        made += [Docker(socket, image, "runc"), Docker(socket, image, "runsc")]
    return made


def _works(contender: Contender) -> bool:
    """Try one round, which also unpacks images and warms caches; the service has to pass it."""
    try:
        measures.lives([contender], 1)
    except RuntimeError as error:
        if contender.name == SERVICE:
            raise
        _say(f"leaving {contender.name} out: {error}")
        return False
    return True


def _machine() -> dict[str, Any]:
    runsc = subprocess.run(["runsc", "--version"], capture_output=True, text=True, timeout=30, check=True)
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "runsc": runsc.stdout.splitlines()[0],
    }


def _say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
