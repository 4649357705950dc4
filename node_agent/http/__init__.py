"""The node agent's HTTP layer: everything that knows ASGI."""
