"""How an emulated VM becomes a machine that really runs: the hook that each cloud's emulator calls.

An emulator knows states and time; what runs inside its VMs is a matter of whoever starts the emulator.  Without a
booter nothing runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Guest:
    """One VM whose operating system is up, as it sees itself."""

    id: str
    """The cloud's id of the instance."""
    name: str
    labels: Mapping[str, str]
    user_data: str
    """What the order carried for the guest; empty for nothing."""
    script: str = ""
    """Text of the script that the cloud starts at the first boot; empty where user data is all that there is."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that are mounted into the guest, by absolute path."""


class Booter(Protocol):
    """Runs guests.  Both methods return at once; neither is called twice for one boot of a guest."""

    def boot(self, guest: Guest) -> None:
        """The guest is up: start what its user data asks for."""

    def halt(self, guest_id: str) -> None:
        """The guest is off, for whatever reason: end everything that runs in it."""
