"""The ``sandboxes`` command: starts each process of the service, and is a client of it.

`sandboxes.app` holds the table of all commands.  Nothing here imports a web framework, so that a machine with one
role's packages can run that role.
"""
