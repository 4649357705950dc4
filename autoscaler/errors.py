"""What stops an autoscaler or one of its commands; each message says why, and what to do.

AutoscalerError
├── LockedError       another autoscaler holds the lock
├── JournalError      the journal cannot be opened or read
└── UserDataError     no user data can be made for a pool
"""


class AutoscalerError(Exception):
    """The autoscaler cannot start, or a command cannot do what it was asked for."""


class LockedError(AutoscalerError):
    """Another process holds the lock, or it is no longer certain that this one does."""


class JournalError(AutoscalerError):
    """The journal cannot be used."""


class UserDataError(AutoscalerError):
    """No user data can be made: something is missing, or too long for the cloud."""
