"""Runs a test in a network namespace of its own: it may do to routes, interfaces and nftables whatever it likes."""

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

_CLONE_NEWNET = 0x40000000


def own_network(test: Callable[..., None]) -> Callable[..., None]:
    """Run ``test`` on a thread in a new network namespace, which its subprocesses and threads inherit."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        failures: list[BaseException] = []

        def body() -> None:
            try:
                if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                test(**fixtures)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=body, name="own-network")
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    return run
