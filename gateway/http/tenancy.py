"""The gateway's edge between tenants: whose thing a caller means by an id, and what of an answer the caller is shown.

Behind it every id is qualified (`gateway.wire.tenants`).  A client means its own tenant's by whatever it says, so that
what belongs to another is looked up, and missing, like anything that was never there: neither answer nor time tells.
An operator names every tenant's by their qualified ids.
"""

import re
from typing import Final

from starlette.types import Scope

from gateway.errors import ApiError
from gateway.services.tokens import Principal
from gateway.wire.capacity import Demand, PreparedBuilders, PreparedCapacity, WaitingSandbox
from gateway.wire.errors import ErrorBody, FieldError
from gateway.wire.sandboxes import RecordedSpec, SandboxRecord
from gateway.wire.tenants import DEFAULT_TENANT, SEPARATOR, own_id, own_words, qualified_by
from gateway.wire.tokens import TokenScope
from gateway.wire.usage import UsageItem, UsagePage

PRINCIPAL: Final = "principal"
SESSION_ID: Final = re.compile(r"exec-[0-9a-f]{32}\.([1-9][0-9]{0,17})\.(.+)")
"""Generation and sandbox of an exec session, from its id."""


def caller_of(scope: Scope) -> Principal:
    """Return who a request comes from; only for routes that need a token of a principal."""
    principal = scope["state"][PRINCIPAL]
    if not isinstance(principal, Principal):
        raise TypeError(f"the request's principal is {type(principal).__name__}")
    return principal


def sees_all(caller: Principal) -> bool:
    """Return whether the things of all tenants are shown to the caller."""
    return caller.scope is TokenScope.OPERATOR


def bound_to(caller: Principal) -> str | None:
    """Return the tenant to whose things the caller is bound; ``None`` for an operator."""
    return None if sees_all(caller) else caller.tenant


# -- what a caller means ----------------------------------------------------------------------------------------------


def meant(caller: Principal, text: str) -> str:
    """Return the qualified id that the caller means by ``text``; that of nothing where it is another tenant's."""
    return text.removeprefix(DEFAULT_TENANT + SEPARATOR) if sees_all(caller) else qualified_by(caller.tenant, text)


# -- what a caller is shown -------------------------------------------------------------------------------------------


def record_shown(caller: Principal, record: SandboxRecord) -> SandboxRecord:
    """Return a record with the id by which the caller knows its sandbox."""
    if _knows_qualified_ids(caller):
        return record
    own = own_id(record.id)
    detail = None if record.detail is None else own_words(caller.tenant, record.detail)
    return record.model_copy(update={"id": own, "spec": RecordedSpec.of(record.spec, own), "detail": detail})


def capacity_shown(caller: Principal, prepared: PreparedCapacity) -> PreparedCapacity:
    """Return prepared capacity with the id by which the caller knows it."""
    if _knows_qualified_ids(caller):
        return prepared
    return prepared.model_copy(update={"prepare_id": own_id(prepared.prepare_id)})


def builders_shown(caller: Principal, prepared: PreparedBuilders) -> PreparedBuilders:
    """Return prepared builders with the id by which the caller knows them."""
    if _knows_qualified_ids(caller):
        return prepared
    return prepared.model_copy(update={"prepare_id": own_id(prepared.prepare_id)})


def demand_shown(caller: Principal, demand: Demand) -> Demand:
    """Return demand, which is the caller's alone already, with the ids that the caller knows."""
    if _knows_qualified_ids(caller):
        return demand

    def waiting(one: WaitingSandbox) -> WaitingSandbox:
        return one.model_copy(update={"sandbox_id": own_id(one.sandbox_id)})

    return demand.model_copy(
        update={
            "waiting": [waiting(one) for one in demand.waiting],
            "prepared": [capacity_shown(caller, one) for one in demand.prepared],
            "prepared_builders": [builders_shown(caller, one) for one in demand.prepared_builders],
        }
    )


def usage_shown(caller: Principal, page: UsagePage) -> UsagePage:
    """Return usage, which is the caller's alone already, with the ids that the caller knows."""
    if _knows_qualified_ids(caller):
        return page

    def shown(item: UsageItem) -> UsageItem:
        return item.model_copy(update={"sandbox_id": item.sandbox_id and own_id(item.sandbox_id)})

    return page.model_copy(update={"items": [shown(item) for item in page.items]})


def error_shown(scope: Scope, error: ApiError, request_id: str | None) -> ErrorBody:
    """Return the body of a refusal, with the ids that the caller of a request knows."""
    body = error.body(request_id)
    caller = scope.get("state", {}).get(PRINCIPAL)
    if not isinstance(caller, Principal) or sees_all(caller):
        return body
    prefix = caller.tenant + SEPARATOR

    def own(field: FieldError) -> FieldError:
        allowed = None if field.allowed is None else own_words(caller.tenant, field.allowed)
        return field.model_copy(update={"problem": own_words(caller.tenant, field.problem), "allowed": allowed})

    return body.model_copy(
        update={
            "fields": None if body.fields is None else [own(field) for field in body.fields],
            "error": own_words(caller.tenant, body.error),
            "reasons": None if body.reasons is None else [own_words(caller.tenant, reason) for reason in body.reasons],
            "sandbox_id": None if body.sandbox_id is None else body.sandbox_id.removeprefix(prefix),
        }
    )


def _knows_qualified_ids(caller: Principal) -> bool:
    return sees_all(caller) or caller.tenant == DEFAULT_TENANT
