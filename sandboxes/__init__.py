"""The ``sandboxes`` command: starts each process of the service and is a client of it too.

`sandboxes.app` holds the table of all commands.  Nothing here imports a web framework, so that a machine with one
role's packages can run that role.
"""


def main() -> int:
    """Runs the command line of this process and tells its exit code."""
    from sandboxes.app import run

    return run()
