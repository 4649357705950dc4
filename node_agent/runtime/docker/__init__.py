"""Sandboxes on the Docker engine, with gVisor or runc."""

from node_agent.runtime.docker.runtime import DockerRuntime

__all__ = ["DockerRuntime"]
