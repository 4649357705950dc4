"""The runtime that runs sandboxes by gVisor's runsc directly."""
