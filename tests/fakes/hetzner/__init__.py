"""An emulator of the Hetzner Cloud API: stateful, on the loopback, in its own time, and hostile when told to be."""

from tests.fakes.hetzner.booter import Booter, CommandBooter, Machine
from tests.fakes.hetzner.control import Control
from tests.fakes.hetzner.emulator import TOKEN, emulator

__all__ = ["TOKEN", "Booter", "CommandBooter", "Control", "Machine", "emulator"]
