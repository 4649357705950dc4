"""The node's HTTP API; see docs/architecture.md."""
