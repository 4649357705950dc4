"""The agent's side of the FD store: connections that have to outlive the agent."""

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node_agent.runtime.runsc import fd_store_server
from node_agent.runtime.runsc.fd_store_server import Verb

log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0  # it answers at once, or something is wrong with it


class FdStore:
    """Hands descriptors to the FD store of one node and gets them back.  Safe from any thread.

    Without a store nothing fails: what would have been kept is lost with this process, and the log says so.

    Args:
        tag: of the node; stands in the store's command line and in the name of its socket.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._path = Path("/run") / f"sandbox-{tag}-fd-store"
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._pid: int | None = None
        self._closed = False

    def keep(self, name: str, descriptor: int) -> None:
        """Keep a copy of ``descriptor``; starts the store where none runs."""
        with self._talking(start=True) as connection:
            if connection is not None:
                socket.send_fds(connection, [_packet(Verb.KEEP, name)], [descriptor])

    def take(self, name: str) -> int | None:
        """Return a copy of what is kept under ``name``; ``None`` where nothing is."""
        descriptors: list[int] = []
        with self._talking() as connection:
            if connection is not None:
                connection.send(_packet(Verb.TAKE, name))
                _, descriptors, _, _ = socket.recv_fds(connection, fd_store_server.MAX_REQUEST, 1)
        return descriptors[0] if descriptors else None

    def drop(self, name: str) -> None:
        """Close what is kept under ``name``.  Idempotent."""
        with self._talking() as connection:
            if connection is not None:
                connection.send(_packet(Verb.DROP, name))

    def close(self) -> None:
        """Leave: from now on nothing is kept, dropped or taken.  A store that holds nothing has ended on return."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None and self._leave(connection):
                return
            try:
                connection = self._connect()
            except OSError as error:
                log.warning("the FD store cannot be notified that this agent is exiting: %s", error)
                return
            if connection is None:
                self._path.unlink(missing_ok=True)  # of a store that was killed
            else:
                self._leave(connection)

    def _leave(self, connection: socket.socket) -> bool:
        """Take leave of the store and return whether it answered."""
        with connection, contextlib.suppress(OSError):  # it is gone already
            connection.send(_packet(Verb.LEAVE, ""))
            answer = connection.recv(fd_store_server.MAX_REQUEST)
            connection.shutdown(socket.SHUT_WR)
            if answer == fd_store_server.YES:
                connection.recv(fd_store_server.MAX_REQUEST)
                self.reap()
            return bool(answer)
        return False

    def reap(self, options: int = 0) -> None:
        """Take the exit status of the store that this object started and that is about to end.

        Args:
            options: of waitpid(2).
        """
        if self._pid is not None:
            with contextlib.suppress(ChildProcessError):  # it was taken already
                os.waitpid(self._pid, options)
            self._pid = None

    @contextlib.contextmanager
    def _talking(self, *, start: bool = False) -> Iterator[socket.socket | None]:
        """Yield the connection for one request; ``None`` after `close`, or where no store runs and none is to start."""
        with self._lock:
            try:
                if self._connection is None and not self._closed:
                    self._connection = self._connect() or (self._begin() if start else None)
                yield self._connection
            except OSError as error:
                log.warning(
                    "exit codes of sandboxes that end while no agent runs may be lost: the FD store failed: %s", error
                )
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_TIMEOUT)
        try:
            connection.connect(str(self._path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        except OSError:
            connection.close()
            raise
        return connection

    def _begin(self) -> socket.socket:
        """Start a store.  The connection to it is made before, so that there is nothing to wait for."""
        self._path.unlink(missing_ok=True)
        self.reap(os.WNOHANG)  # one that was killed
        with contextlib.ExitStack() as undo, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connection.settimeout(_TIMEOUT)
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            listener.listen()
            connection.connect(str(self._path))
            # Not by `subprocess`, which expects that its processes end before their parent.
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", fd_store_server.__file__, self._tag, str(self._path)],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, listener.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
            undo.pop_all()
            return connection


def _packet(verb: Verb, name: str) -> bytes:
    return f"{verb} {name}".encode()
