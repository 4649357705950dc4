"""Telling a full disk from every other failure: it has a code of its own, because freeing space cures it."""

import errno
from typing import Final

from node_agent.host.process import CommandError

_OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_SAID: Final = ("No space left on device", "Disk quota exceeded")


def out_of_space(error: BaseException) -> bool:
    """Whether ``error``, of the kernel or of a host command, means that a disk of the host is full."""
    if isinstance(error, OSError):
        return error.errno in _OUT_OF_SPACE
    return isinstance(error, CommandError) and says_full(error.output)


def says_full(text: str) -> bool:
    """Whether a host command's words mean that."""
    return any(words in text for words in _SAID)
