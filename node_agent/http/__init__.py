"""The node agent's HTTP side: all that knows ASGI."""
