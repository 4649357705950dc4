"""Keeps the firewall of sandboxes in place while they run.

The kernel tells every change of nftables over netlink, so a loss is noticed at once; each heartbeat looks as well.
What went is put back.  Where that fails the sandboxes are cut off until it succeeds: no network is better than an open
one.
"""

import contextlib
import errno
import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from node_agent.host.process import CommandError

log = logging.getLogger(__name__)

# linux/netlink.h, linux/netfilter/nfnetlink.h
_NETLINK_NETFILTER: Final = 12
_SOL_NETLINK: Final = 270
_NETLINK_ADD_MEMBERSHIP: Final = 1
_NFNLGRP_NFTABLES: Final = 7
_DATAGRAM: Final = 64 * 1024
_MAX_DATAGRAMS: Final = 1000  # read in one go, however fast others change their tables

PAUSE: Final = 0.2  # seconds between two looks at the rules, however often they change
RETRY: Final = 1.0  # seconds between two attempts to put them back


class GuardedFirewall(Protocol):
    """What the guard needs of `node_agent.host.firewall.Firewall`."""

    table: str
    problem: str | None

    def check(self) -> bool:
        """Put the rules back where they are needed; return whether they had changed."""

    def cut(self, problem: str) -> None:
        """Take all sandboxes off the network."""


class NftablesEvents:
    """Notices changes of some tables of this network namespace."""

    def __init__(self, tables: Sequence[str]) -> None:
        """Listen from now on.

        Raises:
            OSError: the kernel has no nftables.
        """
        self._names = [table.encode() + b"\0" for table in tables]
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
        try:
            self._socket.bind((0, 0))
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor; it is readable when anything in nftables changed."""
        return self._socket.fileno()

    def changed(self) -> bool:
        """Take what has arrived, and return whether it may concern one of the tables.

        Every message names its table, so a look at the bytes is enough.
        """
        found = False
        for _ in range(_MAX_DATAGRAMS):
            try:
                data = self._socket.recv(_DATAGRAM, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found = True  # more came than fits, and some of it is lost
                continue
            found = found or any(name in data for name in self._names)
        return True  # more is waiting

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


class FirewallGuard:
    """Watches the firewalls of a node from a thread of its own.

    Args:
        firewalls: one for each engine.
        changed: called when sandboxes were cut off or let on the network again.
    """

    def __init__(self, firewalls: Sequence[GuardedFirewall], changed: Callable[[], None] = lambda: None) -> None:
        self._firewalls = firewalls
        self._changed = changed
        self._wake, self._poked = socket.socketpair()
        for end in (self._wake, self._poked):
            end.setblocking(False)
        self._waking = threading.Lock()
        self._stopping = threading.Event()
        self._events: NftablesEvents | None = None
        self._thread = threading.Thread(target=self._run, name="firewall", daemon=True)

    @property
    def problem(self) -> str | None:
        """Why sandboxes of this node are cut off the network, as a sentence; ``None`` while they are not."""
        problems = (firewall.problem for firewall in self._firewalls)
        return next((problem for problem in problems if problem is not None), None)

    def start(self) -> None:
        """Look at the rules now, before anything else happens to the sandboxes that are there; then watch them."""
        try:
            self._events = NftablesEvents([firewall.table for firewall in self._firewalls])
        except OSError as error:
            log.warning("changes of nftables cannot be watched (%s): heartbeats look at the firewall", error)
        self._check()
        self._thread.start()

    def poke(self) -> None:
        """Look at the rules soon.  Called from any thread."""
        with self._waking, contextlib.suppress(BlockingIOError):  # many pokes wait already
            if not self._stopping.is_set():
                self._wake.send(b".")

    def stop(self) -> None:
        """End the thread; the rules stay.  Idempotent, and legal before `start`."""
        with self._waking:
            self._stopping.set()
            self._wake.close()  # wakes the thread
        if self._thread.is_alive():
            self._thread.join()
        self._poked.close()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._await_reason():
                    self._check()
                    self._stopping.wait(PAUSE)
            except Exception:
                log.exception("the firewall could not be watched; trying again")
                self._stopping.wait(RETRY)

    def _await_reason(self) -> bool:
        """Block until something happens, and return whether the rules have to be looked at."""
        poller = select.poll()
        poller.register(self._poked, select.POLLIN)
        if self._events is not None:
            poller.register(self._events, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(None if self.problem is None else RETRY * 1000)}
        changed = self._events is not None and self._events.fileno() in ready and self._events.changed()
        poked = self._poked.fileno() in ready and bool(self._poked.recv(_MAX_DATAGRAMS))
        return changed or poked or not ready

    def _check(self) -> None:
        before = self.problem
        for firewall in self._firewalls:
            try:
                if firewall.check():
                    log.warning(
                        "the firewall of sandboxes (nft table inet %s) was not as it must be; it was put back",
                        firewall.table,
                    )
            except (CommandError, OSError) as error:
                _cut(firewall, error)
        after = self.problem
        if (before is None) != (after is None):
            if after is None:
                log.warning("the firewall of sandboxes stands again: they are back on the network")
            self._changed()


def _cut(firewall: GuardedFirewall, error: Exception) -> None:
    problem = (
        f"the firewall of this node's sandboxes cannot be put in place, so they are cut off the network and it takes"
        f" no new ones: {error}"
    )
    if firewall.problem is None:
        log.error("%s", problem)
    try:
        firewall.cut(problem)
    except (CommandError, OSError):
        log.exception("sandboxes cannot be cut off the network either (nft table inet %s)", firewall.table)
