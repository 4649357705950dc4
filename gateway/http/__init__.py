"""The gateway's HTTP side: all that knows ASGI."""
