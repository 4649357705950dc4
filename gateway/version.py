"""Which version of the service this is."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "sandbox-fleet"


def installed_version() -> str:
    """Version of the installed distribution; ``unknown`` when it runs from a checkout that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
