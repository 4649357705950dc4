"""Device nodes: none in an image, and none of the host's open to a sandbox.

gVisor opens a device node of its root file system on the host, for any user inside.  So there are three walls, and each
holds alone: an image with device nodes is refused; whatever a sandbox sees is mounted ``nodev``; and the processes of
all sandboxes of a node are in a control group that lets them open only what an engine needs.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure

Kind = Literal["c", "b"]

_HIDDEN: Final = "dev"  # every sandbox has a file system of its own there, so that nobody sees the image's
_WHITEOUT: Final = os.makedev(0, 0)  # overlayfs: "this name is deleted"; the kernel opens no such device


@dataclass(frozen=True)
class DeviceRule:
    """Device nodes that may be opened, or with ``m`` in ``access`` be made.

    Attributes:
        kind: character or block device.
        major, minor: its numbers; ``None`` stands for all.
        access: letters of ``r``, ``w`` and ``m``, as the kernel's devices controller takes them.
    """

    kind: Kind
    major: int | None
    minor: int | None
    access: str = "rwm"

    def line(self) -> str:
        """Return the rule as version 1 of control groups reads it."""
        numbers = ("*" if number is None else str(number) for number in (self.major, self.minor))
        return f"{self.kind} {':'.join(numbers)} {self.access}"


def _characters(*numbers: tuple[int, int | None]) -> tuple[DeviceRule, ...]:
    return tuple(DeviceRule("c", major, minor) for major, minor in numbers)


# null, zero, full, random, urandom; tty, ptmx and the terminals themselves.
ENGINE_RULES: Final = _characters((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))
"""What runsc needs, and what every container sees in its own ``/dev``."""
DOCKER_RULES: Final = (
    *ENGINE_RULES,
    # runc asks for these for each container, and a group of version 1 cannot give what its parent does not have:
    # console, net/tun, and the right to make nodes, which is worth nothing without the right to open them.
    *_characters((5, 1), (10, 200)),
    DeviceRule("c", None, None, "m"),
    DeviceRule("b", None, None, "m"),
)
"""What Docker needs for containers under runsc or runc."""
_HARMLESS: Final = frozenset(
    os.makedev(rule.major, rule.minor)
    for rule in (*ENGINE_RULES, DeviceRule("c", 5, 1))
    if rule.major is not None and rule.minor is not None
)


def gpu_rules(listing: Path = Path("/proc/devices")) -> tuple[DeviceRule, ...]:
    """Return the rules for the host's NVIDIA devices; none without their driver."""
    majors = re.findall(r"^ *(\d+) nvidia", listing.read_text(), re.MULTILINE)
    return tuple(DeviceRule("c", int(major), None) for major in dict.fromkeys(majors))


def device_nodes(root: Path) -> Iterator[Path]:
    """Yield the device nodes of an image's files, other than those that every sandbox's own ``/dev`` hides.

    Many base images have null, zero, console and the like in ``/dev``; those alone may be there.

    Args:
        root: unpacked files of an image, or of one of its layers.

    Raises:
        OSError: a directory cannot be read.
    """
    hidden = root / _HIDDEN
    for path, number in _nodes(root):
        if path.parent != hidden or number not in _HARMLESS:
            yield path


def remove_hidden_nodes(root: Path) -> None:
    """Remove the device nodes that `device_nodes` lets pass."""
    hidden = root / _HIDDEN
    if hidden.is_dir() and not hidden.is_symlink():
        for path, _ in _nodes(hidden):
            path.unlink()


def planted(image_id: str, path: str) -> RuntimeFailure:
    """Return the refusal of an image that has a device node at ``path``."""
    return RuntimeFailure(
        ErrorCode.IMAGE_ERROR,
        f"image {image_id}: {path} is a device node, and sandboxes get none from images; remove it and build the image"
        " again",
        reason=DeathReason.IMAGE_ERROR,
    )


def _nodes(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield each device node below ``directory`` with its number.  Whiteouts are none."""
    pending = [os.fspath(directory)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                # The directory itself tells the kind, so that only special files cost a system call.
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    status = entry.stat(follow_symlinks=False)
                    if _is_device(status.st_mode) and status.st_rdev != _WHITEOUT:
                        yield Path(entry.path), status.st_rdev


def _is_device(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
