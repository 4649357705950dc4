"""An error answer of the API."""

from collections.abc import Mapping
from typing import Any


class RefusedError(Exception):
    """Status and body of an answer that is no good one."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "details": self.details}}


def not_found(what: str) -> RefusedError:
    return RefusedError(404, "not_found", f"{what} not found")


def invalid(field: str, message: str) -> RefusedError:
    details = {"fields": [{"name": field, "messages": [message]}]}
    return RefusedError(422, "invalid_input", f"invalid input in field '{field}': {message}", details)
