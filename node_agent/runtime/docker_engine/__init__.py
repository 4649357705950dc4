"""Sandboxes on the Docker engine, with gVisor or runc."""

from node_agent.runtime.docker_engine.runtime import DockerRuntime

__all__ = ["DockerRuntime"]
