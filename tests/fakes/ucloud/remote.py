"""A test's handle: the control port over HTTP, so that no object is shared with what is tested."""

from typing import Any

import requests

SECONDS = 30.0


class Remote:
    """Moves time, breaks things, and asks for the truth."""

    def __init__(self, control_url: str) -> None:
        self._url = control_url
        self._session = requests.Session()

    def do(self, path: str, **body: Any) -> Any:
        """One control call."""
        answer = self._session.post(f"{self._url}/_ctl/{path}", json=body, timeout=SECONDS)
        answer.raise_for_status()
        return answer.json()

    def advance(self, seconds: float) -> None:
        self.do("advance", seconds=seconds)

    def fault(
        self,
        name: str,
        call: str = "*",
        *,
        times: int | None = 1,
        skip: int = 0,
        probability: float = 1.0,
        **args: Any,
    ) -> None:
        """Adds a fault to the script."""
        self.do("fault", name=name, call=call, times=times, skip=skip, probability=probability, args=args)

    def truth(self) -> Any:
        return self.do("truth")

    def audit(self) -> Any:
        return self.do("audit")

    def calls(self, name: str) -> int:
        """How often a call was made."""
        count: int = self.truth()["calls"].count(name)
        return count

    def state(self, job_id: str) -> str:
        state: str = self.truth()["jobs"][job_id]["state"]
        return state

    def close(self) -> None:
        self._session.close()
