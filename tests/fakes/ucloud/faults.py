"""The fault script: what goes wrong in which call, how often, with which odds."""

import random
from dataclasses import dataclass, field
from typing import Any


class ApiError(Exception):
    """An answer in UCloud's error shape."""

    def __init__(self, status: int, why: str = "", code: str = "") -> None:
        super().__init__(why)
        self.status, self.why, self.code = status, why, code

    def body(self) -> dict[str, Any]:
        why = self.why[:1].upper() + self.why[1:]
        return {"statusCode": self.status, "why": why, "errorCode": self.code, "detailedCode": 0}


@dataclass
class Fault:
    """One entry of the script.

    Attributes:
        name: what goes wrong; docs/providers/ucloud.md lists them.
        call: in which call; ``*`` for any.
        times: how often; ``None`` without end.
        skip: how many such calls pass before the first.
        probability: odds of each call.
        args: particulars.
    """

    name: str
    call: str = "*"
    times: int | None = 1
    skip: int = 0
    probability: float = 1.0
    args: dict[str, Any] = field(default_factory=dict)


class FaultScript:
    """Asked at each place where something can go wrong."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.faults: list[Fault] = []

    def take(self, name: str, call: str) -> dict[str, Any] | None:
        """Particulars of the fault that strikes here, if one does."""
        for fault in self.faults:
            if fault.name != name or fault.call not in ("*", call) or fault.times == 0:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if self._chance.random() >= fault.probability:
                continue
            if fault.times is not None:
                fault.times -= 1
            return fault.args
        return None
