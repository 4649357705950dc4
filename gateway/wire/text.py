"""Text for people: from strangers on its way to a terminal or a log, and what is wrong with what they sent."""

import difflib
import json
import logging
from collections.abc import Collection
from typing import Final

from pydantic import StringConstraints

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


def json_text(value: object) -> str:
    """Return JSON of several lines, in ASCII without control characters, for a terminal or a program."""
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f")


# -- what is wrong ----------------------------------------------------------------------------------------------------

_FORMS: Final[dict[str, str]] = {}


def of_form(pattern: str, words: str, *, max_length: int | None = None) -> StringConstraints:
    """Return the constraint that a text matches ``pattern``, which a refusal tells in words.

    Args:
        pattern: regular expression.
        words: what such a text is, after "must be".
        max_length: characters.
    """
    _FORMS[pattern] = words
    return StringConstraints(pattern=pattern, max_length=max_length)


def form_of(pattern: str) -> str | None:
    """Return what a text has to be that matches a pattern, as a phrase; ``None`` where nobody has put it in words."""
    return f"must be {_FORMS[pattern]}" if pattern in _FORMS else None


def no_such_key(name: str, known: Collection[str]) -> str:
    """Return a phrase about a key that nobody knows: which one may be meant, and which there are."""
    close = difflib.get_close_matches(name, known, n=1) or [key for key in sorted(known) if key.startswith(name)]
    meant = f"; did you mean {close[0]}?" if close else ""
    listed = f" The keys are {', '.join(sorted(known))}" if known else ""
    return f"there is no such key{meant or ('.' if listed else '')}{listed}"


# -- logs -------------------------------------------------------------------------------------------------------------


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
