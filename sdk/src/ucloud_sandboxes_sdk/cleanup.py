"""Ending what a call began and its caller will not get: sandboxes and processes that the client named itself.

A first Ctrl-C ends the call, and what it began is ended before `KeyboardInterrupt` goes on.  A second one does not wait
for that any more, but does not stop it either: it goes on in a thread of its own, and the interpreter waits for it when
the program ends.  A third one, while the interpreter waits, ends the program at once.  Signals that end a process
without Python (SIGKILL, and SIGTERM unless the program handles it) leave everything behind; ``ttl_seconds`` and
``idle_seconds`` are for those.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from .errors import SandboxApiError

Result = TypeVar("Result")

log = logging.getLogger("ucloud_sandboxes_sdk")

OVERTAKEN: Final = (0.1, 0.3, 0.8)
"""Seconds between further looks for what was ordered and is not there: the order may still be on its way."""


def to_its_end(work: Callable[[], Result]) -> Result:
    """Do something that a further Ctrl-C must not stop, and return what it returns.

    Raises:
        KeyboardInterrupt: Ctrl-C came meanwhile; the work goes on.
        BaseException: what the work raised.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()  # Python interrupts the main thread only
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is asked for
            outcome.set_exception(error)

    # Not a daemon, so that the interpreter waits for it.
    thread = threading.Thread(target=run, name="sandbox-cleanup", daemon=False)
    try:
        thread.start()
    except RuntimeError:
        return work()  # the interpreter is ending and starts no more threads
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            outcome.add_done_callback(_log_failure)  # nobody else will see it
        raise


def _log_failure(outcome: Future[Any]) -> None:
    if (error := outcome.exception()) is not None:
        log.warning("something may be left behind, because its deletion after Ctrl-C failed: %s", error)


def end_after(error: BaseException, what: str, work: Callable[[], object]) -> None:
    """End what a failed call began; that this fails too is noted with the error and logged, and replaces nothing.

    Args:
        error: what ended the call; it is raised on by the caller.
        what: is ended, as the note names it.
        work: ends it.
    """
    try:
        to_its_end(work)
    except SandboxApiError as failure:
        error.add_note(f"{what} may be left behind: {failure}")
        log.warning("%s may be left behind: %s", what, failure)


def repeat_until_found(look: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> bool:
    """Look for something whose order may arrive after the first look; return whether it was found.

    Args:
        look: ends it, and tells whether it was there.
        sleep: waits between two looks.
    """
    for pause in OVERTAKEN:
        if look():
            return True
        sleep(pause)
    return look()
