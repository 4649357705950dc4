"""One row of ``sandboxes doctor``.  Every role contributes its own rows through an entry point."""

from enum import StrEnum

from gateway.wire.base import Answer


class Verdict(StrEnum):
    """``warning`` lets the service run with less; ``error`` does not."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Check(Answer):
    """What was looked at, what was found, and the command that cures it."""

    name: str
    verdict: Verdict
    found: str
    cure: str = ""
