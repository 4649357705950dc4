"""A process that keeps descriptors while the node agent is away, so that what arrives in them meanwhile is not lost.

gVisor sends the exit code of a first process to the connection that asked for it, once.  An agent that is restarted at
that moment would never learn it.  So the agent hands a copy of each such connection to this process, which outlives it,
and the next agent asks for it back.  It holds descriptors and nothing else, reads none of them, and ends when it holds
none and no agent is connected.

Run as ``python fd_store_server.py TAG SOCKET`` with the listening socket as stdin; needs the standard library only.
"""

import os
import selectors
import socket
import sys
from enum import StrEnum
from typing import Final, NoReturn

MAX_REQUEST: Final = 4096
_DESCRIPTORS: Final = 1 << 20  # above what any process may have open; what the agent had is not ours to keep


class Verb(StrEnum):
    """What an agent asks for: one packet each, the verb, a blank and a name."""

    KEEP = "keep"  # comes with a descriptor, which takes the place of an earlier one; no answer
    DROP = "drop"  # no answer
    TAKE = "take"  # answered by a packet, with a copy of the descriptor where there is one
    LEAVE = "leave"  # answered by a packet, which says whether this process ends with the agent that asks


YES: Final = b"yes"
NO: Final = b"no"


class FdStoreServer:
    """Holds descriptors by name for the agents that connect to ``listener``; one has to be on its way already."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._kept: dict[str, int] = {}
        self._clients: set[socket.socket] = set()
        self._last: socket.socket | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until nothing is kept and nobody is connected."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._accept()
        while self._clients or self._kept:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._serve(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self._clients.add(client)
        self._selector.register(client, selectors.EVENT_READ)

    def _serve(self, client: socket.socket) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(client, MAX_REQUEST, 1)
            if packet:
                self._do(client, packet.decode(), descriptors)
                return
        except OSError:
            pass  # the agent died: the same as a packet without content
        self._forget(client)
        client.close()

    def _forget(self, client: socket.socket) -> None:
        if client in self._clients:
            self._selector.unregister(client)
            self._clients.discard(client)

    def _do(self, client: socket.socket, request: str, descriptors: list[int]) -> None:
        verb, _, name = request.partition(" ")
        if verb in (Verb.KEEP, Verb.DROP) and name in self._kept:
            os.close(self._kept.pop(name))
        if verb == Verb.KEEP and descriptors:
            self._kept[name] = descriptors[0]
        elif verb == Verb.TAKE:
            kept = [self._kept[name]] if name in self._kept else []
            socket.send_fds(client, [YES if kept else NO], kept)
        elif verb == Verb.LEAVE:
            self._forget(client)
            if self._kept or self._clients:
                client.send(NO)
                client.close()
            else:
                self._last = client  # open until this process has ended, which is what the agent waits for
                client.send(YES)


def main(path: str) -> NoReturn:
    """Serve the socket that is stdin, take its name away at the end, and end this process."""
    os.chdir("/")
    os.closerange(3, _DESCRIPTORS)
    # Held until the end: collected any earlier, it would close its sockets, and an agent that sees its own closed
    # takes this process for gone.
    server = FdStoreServer(socket.socket(fileno=os.dup(0)))
    try:
        server.run()
    finally:
        os.unlink(path)  # noqa: PTH108 - it starts faster without pathlib
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[2])
