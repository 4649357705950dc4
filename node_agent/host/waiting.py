"""Waiting for a descriptor."""

import select
from typing import Protocol


class HasFileno(Protocol):
    """Something with a descriptor."""

    def fileno(self) -> int:
        """The descriptor."""


def readable(source: int | HasFileno, seconds: float) -> bool:
    """Whether ``source`` became readable (a pidfd: whether its process ended) within ``seconds``.

    ``poll``, because ``select`` refuses descriptors from 1024 up, and a busy node has more.
    """
    poller = select.poll()
    poller.register(source, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
