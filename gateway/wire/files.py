"""Files on the wire.  Bodies are raw bytes; the path is the query parameter ``path``."""

from gateway.wire.base import Answer

PATH_PARAMETER = "path"


class PutFileAnswer(Answer):
    """A file was written whole, and replaced what was there in one step."""

    ok: bool = True
    """Always true."""
    sandbox_id: str
    """Where it was written."""
    path: str
    """As asked for."""
    size: int
    """Bytes."""
