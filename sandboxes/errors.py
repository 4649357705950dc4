"""How a command says that it could not do what was asked."""

import click


class CommandFailed(click.ClickException):
    """One sentence for stderr and an exit code, 1 unless the command has a better one."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]
