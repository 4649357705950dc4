"""The runtime that runs sandboxes by gVisor's runsc directly."""

from node_agent.runtime.runsc.runtime import RunscRuntime

__all__ = ["RunscRuntime"]
