"""What crosses a process border: models, states, error codes and limits.  A leaf: stdlib and pydantic only.

The gateway owns this contract.  Requests are strict (an unknown key, a wrong type or a NUL byte is an error that
names the field); answers read by clients are tolerant (an unknown key is ignored), so that an older client survives
a newer gateway.
"""
