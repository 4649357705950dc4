"""Text from strangers on its way to a terminal or a log."""

import logging
from typing import Final

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def printable(text: object, *, lines: bool = False) -> str:
    r"""Return text that a terminal shows and does not obey.

    Control characters (C0, C1, escape sequences), those that change the direction of writing or show nothing, and
    line separators become ``\x1b``, ``\u202e`` and so on, as Python writes them.

    Args:
        text: what to show; ``str()`` of it is taken.
        lines: keep newlines, for text of our own that has several lines.
    """
    return "".join(
        each if each.isprintable() or (lines and each == "\n") else each.encode("unicode_escape").decode()
        for each in str(text)
    )


class LogFormatter(logging.Formatter):
    """Formats one line for each record, whatever its message holds; a traceback follows with lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        record.message = printable(record.message)
        return super().formatMessage(record)


def log_to_stderr(level: int) -> None:
    """Let this process log to stderr, in lines that nobody can forge."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(LOG_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
