"""The node's bond with its gateway: identity, registration, heartbeat."""
