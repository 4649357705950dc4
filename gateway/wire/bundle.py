"""The files with which a machine becomes a node, as the gateway serves them."""

from gateway.wire.base import Answer

SUMS = "SHA256SUMS"
"""Name of the file that lists all others, in the form that ``sha256sum --check`` reads."""
INSTALLER = "install.sh"
"""Name of the script that makes a machine a node out of the other files."""


class BundleFile(Answer):
    """One file of the bundle."""

    file: str
    sha256: str
    """Hex."""
    size: int
    """Bytes."""
    python: str | None = None
    """Python tag of a wheel, such as ``cp311`` or ``py3``; null for other files."""


class BundleManifest(Answer):
    """The exact node agent of this gateway, and everything that it needs."""

    version: str
    """Of the node agent."""
    sha256: str
    """Hex digest of `SUMS`: pins every file."""
    files: list[BundleFile]
