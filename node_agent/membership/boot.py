"""How long this machine took to become a node: what the bootstrap noted, and what the kernel knows of this process."""

import logging
import os
from pathlib import Path
from typing import Final

from gateway.wire.nodes import BootStages

log = logging.getLogger(__name__)

NOTED: Final = frozenset({"cloud_init", "engines", "bundle"})
_MOST: Final = 4096  # bytes of the file; it has three short lines


def boot_stages(file: Path | None, proc: Path = Path("/proc")) -> BootStages | None:
    """The stages up to now, in seconds from the start of the kernel.

    Args:
        file: where the bootstrap noted its stages, one ``NAME SECONDS`` a line; lies on a file system that a reboot
            empties.
        proc: where the kernel's files are found.

    Returns:
        ``None`` where nothing was noted in this boot: then the machine was up for another reason.
    """
    if file is None:
        return None
    try:
        with file.open() as opened:
            noted = _parsed(opened.read(_MOST))
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("the stages of the boot cannot be read: %s", error)
        return None
    uptime = float((proc / "uptime").read_text().split()[0])
    started = _started((proc / "self/stat").read_text())
    return BootStages(**noted, agent=started, registered=uptime)


def _parsed(text: str) -> dict[str, float]:
    """The last time of each stage that is known here; a bootstrap that broke off and began again notes some twice."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, seconds = line.partition(" ")
        try:
            if name in NOTED:
                found[name] = max(0.0, float(seconds))
        except ValueError:
            log.warning("the stages of the boot have a line that says nothing: %r", line[:100])
    return found


def _started(stat: str) -> float:
    """When a process began, from its ``/proc/PID/stat``: the 22nd field, which counts clock ticks; see proc(5)."""
    after_name = stat.rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
