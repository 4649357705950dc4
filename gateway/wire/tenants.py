"""Tenants: who owns what.  Every token belongs to one, and so does everything that its holder makes.

A client chooses the ids of its sandboxes, so two tenants may choose the same.  Everywhere behind the gateway's edge
(in the database, on the nodes, for operators) a sandbox therefore has a *qualified* id: the client's own id in the
default tenant, and ``<tenant>..<id>`` in any other.  No id that a client chooses contains two dots in a row, so the
owner can be read off every qualified id.
"""

import re
from typing import Annotated, Final

from pydantic import StringConstraints

DEFAULT_TENANT: Final = "default"
SEPARATOR: Final = ".."
TENANT_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,31}$"
QUALIFIED_PATTERN: Final = r"^([a-z0-9-]{1,32}\.\.)?[A-Za-z0-9](\.?[A-Za-z0-9_-]){0,63}\.?$"
"""Of a sandbox behind the edge: 64 characters of the client's own, 98 at most."""

TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]


def qualified(tenant: str, sandbox_id: str) -> str:
    """Return the id that a sandbox has behind the edge.

    Args:
        tenant: whose it is.
        sandbox_id: as its client chose it, or as `qualified` returned it for the same tenant.
    """
    if tenant == DEFAULT_TENANT or sandbox_id.startswith(tenant + SEPARATOR):
        return sandbox_id
    return tenant + SEPARATOR + sandbox_id


def tenant_of(qualified_id: str) -> str:
    """Return whose sandbox has this qualified id."""
    tenant, separator, _ = qualified_id.partition(SEPARATOR)
    return tenant if separator else DEFAULT_TENANT


def own_id(qualified_id: str) -> str:
    """Return the id that the client chose."""
    return re.sub(r"^[a-z0-9-]{1,32}\.\.", "", qualified_id)
