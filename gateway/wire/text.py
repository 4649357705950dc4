"""Text from strangers on its way to a terminal."""


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
