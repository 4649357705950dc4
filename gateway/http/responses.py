"""Errors in their one shape: how exceptions become `gateway.wire.errors.ErrorBody` answers."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope

from gateway.errors import ApiError
from gateway.http.tenancy import error_shown
from gateway.wire.errors import ErrorCode, FieldError
from gateway.wire.text import form_of

REQUEST_ID: Final = "request_id"
ERROR_CODE: Final = "error_code"
"""Key in a request's state of the code that it was refused with."""
ERROR_FIELDS: Final = "error_fields"
"""Key in a request's state of the names of what the operator's policy or quota refused."""
# The names in other refusals may be those that a caller chose, such as of its environment.
_BY_OPERATOR: Final = frozenset({ErrorCode.POLICY_DENIED, ErrorCode.QUOTA_EXCEEDED})
MAX_FIELDS: Final = 32
MAX_TEXT: Final = 300
DEFAULT_RETRY_AFTER: Final = 1.0

# pydantic puts the names of union members and validators into the path of a field; the request has no such part.
_NO_FIELD: Final = re.compile(r"int|float|bool|str|none|(constrained-|literal\[|function-|nullable|dict\[|list\[).*")
# Checks of whole models begin their sentence with the field in question.
_NAMED: Final = re.compile(r"([A-Za-z_][\w.\[\]]*): (.+)", re.DOTALL)


def request_id_of(scope: Scope) -> str | None:
    """Return the id of a request, which `gateway.http.middleware.RequestBoundary` has set."""
    found = scope.get("state", {}).get(REQUEST_ID)
    return found if isinstance(found, str) else None


def error_response(error: ApiError, scope: Scope) -> Response:
    """Return the answer for ``error`` to the request of ``scope``."""
    headers: dict[str, str] = {}
    state = scope.setdefault("state", {})
    state[ERROR_CODE] = error.code.value
    if error.code in _BY_OPERATOR:
        state[ERROR_FIELDS] = [found.field for found in error.details.get("fields", [])]
    retry_after = error.retry_after
    if retry_after is None and error.retryable:
        retry_after = DEFAULT_RETRY_AFTER
    if retry_after is not None:
        headers["Retry-After"] = str(max(0, math.ceil(retry_after)))
    if error.allow:
        headers["Allow"] = ", ".join(error.allow)
    if error.code is ErrorCode.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    content = error_shown(scope, error, request_id_of(scope)).model_dump_json(exclude_none=True)
    return Response(content, error.status, headers, "application/json")


def internal_error(scope: Scope) -> ApiError:
    """Return a 500 that says no more than where to find the log entry."""
    return ApiError(
        ErrorCode.INTERNAL,
        f"the gateway failed on this request; its log has the details under request id {request_id_of(scope)}",
    )


def invalid_request(message: str, *fields: FieldError) -> ApiError:
    """Return a 422 for a request that cannot be understood."""
    return ApiError(ErrorCode.INVALID_REQUEST, message, fields=list(fields))


def from_validation(problems: Sequence[Any]) -> ApiError:
    """Return a 422 that names each field, from the problems that pydantic or FastAPI found.

    The input is never repeated: it may contain secrets.
    """
    fields = [_field_error(problem) for problem in problems[:MAX_FIELDS]]
    summary = "; ".join(f"{item.field}: {item.problem}" if item.field else item.problem for item in fields[:3])
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return invalid_request(f"invalid request: {summary}{more}", *fields)


def _field_error(problem: Mapping[str, Any]) -> FieldError:
    if problem["type"] == "json_invalid":
        where = problem["loc"][-1]
        return FieldError(field="", problem=f"not valid JSON at character {where}: {problem['ctx']['error']}")
    names = [str(part) for part in problem["loc"]]
    if names and names[0] in {"body", "query", "path"}:
        del names[0]
    field = ".".join(name for name in names if not _NO_FIELD.fullmatch(name))
    text = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        text = form_of(problem["ctx"]["pattern"]) or "has not the form that it must have"
    elif problem["type"] == "extra_forbidden":
        text = "there is no such field"
    if not field and problem["type"] == "model_attributes_type":
        text = "must be a JSON object, sent with Content-Type: application/json"
    named = _NAMED.fullmatch(text)
    if named and (not field or named[1].startswith(field)):
        field, text = named[1], named[2]
    return FieldError(field=field[:MAX_TEXT], problem=text[:MAX_TEXT])
