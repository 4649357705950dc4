"""Sandboxes on the Docker engine, with gVisor or runc."""
