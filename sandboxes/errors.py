"""How a command says that it could not do what was asked."""


class CommandFailed(Exception):  # noqa: N818 - it names what happened
    """One sentence for stderr and an exit code; the command line prints it without a traceback.

    Attributes:
        message: what happened, to what, and what to do next.
        exit_code: what the process answers; 1 unless the command has a better one.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
