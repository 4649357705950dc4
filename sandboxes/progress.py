"""Signs of life on stderr for what takes longer than two seconds: progress where somebody looks, trouble anywhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

PATIENCE: Final = 2.0


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Shows ``text`` while the block runs, once it has taken two seconds; yields a function that changes it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    status = Console(stderr=True).status(text)
    timer = threading.Timer(PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda changed: status.update(changed)
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def trouble() -> Callable[[Exception], None]:
    """What to call with each failure that is followed by another try; says once, after two seconds, what is wrong."""
    began: float | None = None
    told = False

    def failed(error: Exception) -> None:
        nonlocal began, told
        now = time.monotonic()
        began = now if began is None else began
        if not told and now - began >= PATIENCE:
            told = True
            print(f"trying again: {error}", file=sys.stderr)  # noqa: T201 - the command line speaks on stderr

    return failed


@contextmanager
def transfer(text: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress bar for a transfer that takes longer than two seconds; yields what to call with bytes and total."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(text, total=None)
    started = time.monotonic()

    def moved(done: int, total: int | None) -> None:
        if not bar.live.is_started and time.monotonic() - started > PATIENCE:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield moved
    finally:
        bar.stop()
