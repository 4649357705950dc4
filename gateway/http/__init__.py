"""The gateway's HTTP layer: everything that knows ASGI."""
