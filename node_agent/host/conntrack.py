"""The kernel's table of connections, which all sandboxes of a host share with the host itself."""

import errno
import logging
import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from gateway.wire import limits

log = logging.getLogger(__name__)

_MAX: Final = Path("/proc/sys/net/netfilter/nf_conntrack_max")
_MAX_BEFORE_ITS_FIRST_USE: Final = 65_536  # the kernel's choice for machines with more than 1 GiB
_LEAST: Final = 64

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
_NETLINK_NETFILTER: Final = 12
_DELETE: Final = (1 << 8) | 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
_REQUEST_WITH_ANSWER: Final = 1 | 4  # NLM_F_REQUEST | NLM_F_ACK
_ERROR: Final = 2  # NLMSG_ERROR
_NESTED: Final = 1 << 15
_CTA_TUPLE_ORIG: Final = 1
_CTA_FILTER: Final = 25
_CTA_TUPLE_IP: Final = 1
_CTA_IP_V4_SRC: Final = 1
_CTA_FILTER_ORIG_FLAGS: Final = 1
_CTA_FILTER_REPLY_FLAGS: Final = 2
_BY_SOURCE: Final = 1  # CTA_FILTER_F_CTA_IP_SRC
_HEADER: Final = struct.Struct("=IHHII")
_ANSWER_SECONDS: Final = 5.0


def connection_share(slots: int, table: Path = _MAX) -> int:
    """Return how many connections one sandbox may have, so that all together leave the host a fifth of its table.

    Args:
        slots: most sandboxes at once.
        table: where the kernel says how many entries its table may have.
    """
    try:
        entries = int(table.read_text())
    except OSError:
        entries = _MAX_BEFORE_ITS_FIRST_USE
    return max(_LEAST, min(limits.MAX_CONNECTIONS, entries * 4 // 5 // slots))


def forget(source: IPv4Address) -> None:
    """Remove every connection that ``source`` opened: the address will be another sandbox's.

    Connections of a sandbox that is gone would stay for days, and count for the next one with its address.

    Raises:
        OSError: the kernel refused.
    """
    address = _attribute(_CTA_IP_V4_SRC, source.packed)
    body = (
        struct.pack("=BBH", socket.AF_INET, 0, 0)
        + _attribute(_CTA_TUPLE_ORIG | _NESTED, _attribute(_CTA_TUPLE_IP | _NESTED, address))
        + _attribute(
            _CTA_FILTER | _NESTED,
            _attribute(_CTA_FILTER_ORIG_FLAGS, struct.pack("=I", _BY_SOURCE))
            + _attribute(_CTA_FILTER_REPLY_FLAGS, struct.pack("=I", 0)),
        )
    )
    message = _HEADER.pack(_HEADER.size + len(body), _DELETE, _REQUEST_WITH_ANSWER, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        kernel.bind((0, 0))
        kernel.send(message)
        answer = kernel.recv(4096)
    kind, code = _HEADER.unpack_from(answer)[1], struct.unpack_from("=i", answer, _HEADER.size)[0]
    if kind != _ERROR or code not in (0, -errno.ENOENT):
        raise OSError(-code, f"connections of {source} could not be removed")


def forget_all(sources: Iterable[IPv4Address]) -> None:
    """Do as `forget` for each; what the kernel refuses is logged, and keeps no sandbox from coming or going."""
    try:
        for source in sources:
            forget(source)
    except OSError as error:
        log.warning("old connections stay in the host's table: %s", error)


def _attribute(kind: int, value: bytes) -> bytes:
    """Return a netlink attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
