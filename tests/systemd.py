"""systemd's own opinion about units of a machine that is not this one."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.borrowed import FOLDER, borrowed

UNITS: Final = "etc/systemd/system"
_OWN: Final = "usr/lib/systemd/system"
_PROGRAM: Final = re.compile(r"^Exec\w+=[-@:+!]*(/(?:opt|usr/local)/\S+)", re.MULTILINE)


def verify(root: Path, names: Iterable[str]) -> str:
    """What `systemd-analyze verify` says about units; empty when all is well.

    Args:
        root: where the machine's files lie, units in `UNITS` below it; systemd's own units and the programs that the
            units start are put beside them.
        names: of the units.
    """
    program = borrowed("systemd-analyze")
    for unit in (root / UNITS).glob("*.service"):
        for path in _PROGRAM.findall(unit.read_text()):
            stand_in = root / path.lstrip("/")
            if not stand_in.exists():
                stand_in.parent.mkdir(parents=True, exist_ok=True)
                stand_in.write_text("#!/bin/sh\n")
            stand_in.chmod(0o755)
    if not (root / _OWN).exists():
        shutil.copytree(_systems_units(), root / _OWN, symlinks=True)
    command = [program, "verify", "--man=no", f"--root={root}", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout + done.stderr + (f"exit status {done.returncode}" if done.returncode else "")


def _systems_units() -> Path:
    """Units that come with systemd itself."""
    for place in (Path("/"), FOLDER / "root", FOLDER / "root/usr"):
        if (place / "lib/systemd/system/sysinit.target").exists():
            return place / "lib/systemd/system"
    pytest.skip("systemd's own units are not on this machine")
