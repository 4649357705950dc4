"""Tenants: who owns what.  Every token belongs to one, and so does everything that its holder makes.

A client chooses the ids of its sandboxes, so two tenants may choose the same.  Everywhere behind the gateway's edge
(in the database, on the nodes, for operators) a sandbox therefore has a *qualified* id: the client's own id in the
default tenant, and ``<tenant>..<id>`` in any other.  No id that a client chooses contains two dots in a row, so the
owner can be read off every qualified id.
"""

import difflib
import re
from collections.abc import Collection
from typing import Annotated, Final

from gateway.wire.limits import ID_PATTERN, MAX_ID_LENGTH
from gateway.wire.text import of_form

DEFAULT_TENANT: Final = "default"
SEPARATOR: Final = ".."
TENANT_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,31}$"
ID_FORM: Final = "made of letters, digits, '_', '-' and single dots, and begin with a letter or digit"
TENANT_FORM: Final = "a tenant's name: a-z, 0-9 and '-', not at the beginning, 32 characters at most"
QUALIFIED_PATTERN: Final = rf"^([a-z0-9][a-z0-9-]{{0,31}}\.\.)?{ID_PATTERN.removeprefix('^')}"
MAX_QUALIFIED_LENGTH: Final = 32 + len(SEPARATOR) + MAX_ID_LENGTH

_BEFORE_ID: Final = r"(?:(?<![\w.-])|(?<=sandbox-[0-9a-f]{8}-))"
"""An id stands by itself, or in the name of an engine's container."""

TenantName = Annotated[str, of_form(TENANT_PATTERN, TENANT_FORM)]
QualifiedId = Annotated[str, of_form(QUALIFIED_PATTERN, ID_FORM, max_length=MAX_QUALIFIED_LENGTH)]


def qualified(tenant: str, sandbox_id: str) -> str:
    """Return the id that a sandbox has behind the edge.

    Args:
        tenant: whose it is.
        sandbox_id: as its client chose it.
    """
    return sandbox_id if tenant == DEFAULT_TENANT else tenant + SEPARATOR + sandbox_id


def qualified_by(tenant: str, text: str) -> str:
    """Return the qualified id that a client of ``tenant`` means by ``text``: never another tenant's.

    Its own prefix may be there or not.  What names another tenant becomes an id that nothing has, so it is looked up,
    and missing, like any other.
    """
    own = text.removeprefix(tenant + SEPARATOR)
    return tenant + SEPARATOR + own if SEPARATOR in own else qualified(tenant, own)


def tenant_of(qualified_id: str) -> str:
    """Return whose sandbox has this qualified id."""
    tenant, separator, _ = qualified_id.partition(SEPARATOR)
    return tenant if separator else DEFAULT_TENANT


def own_id(qualified_id: str) -> str:
    """Return the id that the client chose."""
    return qualified_id.partition(SEPARATOR)[2] or qualified_id


def own_words(tenant: str, sentence: str) -> str:
    """Return a sentence for people with the tenant's own ids in the place of the qualified ones.

    Ids of sessions stay as they are: they contain the qualified id for clients as well.
    """
    return re.sub(rf"{_BEFORE_ID}{re.escape(tenant + SEPARATOR)}(?=[A-Za-z0-9])", "", sentence)


def is_id(text: str) -> bool:
    """Return whether a client may choose ``text`` as an id."""
    return len(text) <= MAX_ID_LENGTH and re.fullmatch(ID_PATTERN, text) is not None


def is_qualified(text: str) -> bool:
    """Return whether ``text`` can be the qualified id of anything at all."""
    tenant, separator, own = text.partition(SEPARATOR)
    return is_id(own) and re.fullmatch(TENANT_PATTERN, tenant) is not None if separator else is_id(text)


def unknown_name(tenant: str, known: Collection[str]) -> str | None:
    """Return why the name of a tenant may be a slip, as a sentence; ``None`` where it is known.

    Args:
        tenant: the name that was given.
        known: tenants of all tokens, and those with tables in the policy file.
    """
    names = {DEFAULT_TENANT, *known}
    if tenant in names:
        return None
    meant = difflib.get_close_matches(tenant, sorted(names), 1)
    question = f"; did you mean {meant[0]}?" if meant else ""
    return f"no token and no table of the policy file is of tenant {tenant}{question}"
