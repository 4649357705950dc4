"""Error answers, and what may go wrong in which call."""

from dataclasses import dataclass, field
from typing import Any

from tests.fakes.emulation import FaultScript, ScriptedFault


class ApiError(Exception):
    """An answer in UCloud's error shape."""

    def __init__(self, status: int, why: str = "", code: str = "") -> None:
        super().__init__(why)
        self.status, self.why, self.code = status, why, code

    def body(self) -> dict[str, Any]:
        why = self.why[:1].upper() + self.why[1:]
        return {"statusCode": self.status, "why": why, "errorCode": self.code, "detailedCode": 0}


@dataclass(kw_only=True)
class Fault(ScriptedFault):
    """One entry of the script.

    Attributes:
        name: what goes wrong; docs/providers/ucloud.md lists them.
        call: in which call; ``*`` for any.
        args: particulars.
    """

    name: str
    call: str = "*"
    args: dict[str, Any] = field(default_factory=dict)


class Faults(FaultScript[Fault]):
    """Asked at each place where something can go wrong."""

    def strike(self, name: str, call: str) -> dict[str, Any] | None:
        """Return the particulars of the fault that strikes here, if one does."""
        fault = self.take(lambda fault: fault.name == name and fault.call in ("*", call))
        return fault.args if fault is not None else None
