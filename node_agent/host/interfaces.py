"""The network interfaces of this process's own network namespace.

Asked of the kernel and not read from ``/sys/class/net``: that shows the namespace in which it was mounted, which is
another one where a node runs in a network namespace of its own.
"""

import errno
import fcntl
import socket
import struct
from collections.abc import Iterable
from typing import Final

from node_agent.host.process import CommandError, run

_SIOCGIFFLAGS: Final = 0x8913
_IFF_UP: Final = 1
_REQUEST: Final = struct.Struct("16sH14x")  # struct ifreq
_TIMEOUT: Final = 5.0


def names() -> set[str]:
    """Return the names of all interfaces."""
    return {name for _, name in socket.if_nameindex()}


def starting_with(prefix: str) -> list[str]:
    """Return the names that start with ``prefix``, sorted."""
    return sorted(name for name in names() if name.startswith(prefix))


def is_up(name: str) -> bool | None:
    """Return whether the interface is switched on; ``None`` where there is none.

    Raises:
        OSError: the kernel refused.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            answer = fcntl.ioctl(asker, _SIOCGIFFLAGS, _REQUEST.pack(name.encode(), 0))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return None
    return bool(_REQUEST.unpack(answer)[1] & _IFF_UP)


def switch(wanted: Iterable[str], *, up: bool) -> list[str]:
    """Switch interfaces on or off, and return those that were not.  One that goes meanwhile does not spare the others.

    Raises:
        CommandError: one that is still there could not be switched.
    """
    wrong = [name for name in wanted if is_up(name) is (not up)]
    if wrong:
        lines = "\n".join(f"link set {name} {'up' if up else 'down'}" for name in wrong)
        try:
            run(["ip", "-force", "-batch", "-"], stdin=lines.encode(), timeout=_TIMEOUT)
        except CommandError:
            if any(is_up(name) is (not up) for name in wrong):
                raise
    return wrong
