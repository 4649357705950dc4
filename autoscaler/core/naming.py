"""Names and labels that every instance carries, within the rules of every cloud (63 characters of ``[a-z0-9-]``)."""

from collections.abc import Mapping
from typing import Final

from providers.base import DEPLOYMENT_LABEL, OPERATION_LABEL, POOL_LABEL, ROLE_LABEL, SPEC_LABEL, Instance

NAME_PATTERN: Final = r"^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$"
"""Of deployments and pools: two of them and an operation id make a name of at most 62 characters."""
OPERATION_LENGTH: Final = 12
OPERATION_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


def instance_name(deployment: str, pool: str, operation_id: str) -> str:
    """Return the name of the instance of one operation; the same at every try, and never used twice."""
    return f"{deployment}-{pool}-{operation_id}"


def labels(deployment: str, pool: str, role: str, operation_id: str, spec: str = "") -> Mapping[str, str]:
    """Return what an instance carries, so that it can be matched with its row again, or adopted without one."""
    own = {DEPLOYMENT_LABEL: deployment, POOL_LABEL: pool, ROLE_LABEL: role, OPERATION_LABEL: operation_id}
    return own | {SPEC_LABEL: spec} if spec else own


def operation_of(instance: Instance) -> str | None:
    """Return the operation that made an instance, by its labels."""
    return instance.labels.get(OPERATION_LABEL)
