"""An emulator of the Hetzner Cloud API: stateful, on the loopback, in its own time, and hostile when told to be."""
