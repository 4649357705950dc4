"""An emulator of SDU UCloud's HTTP API, in virtual time.

Two layers that share no memory, as there: Core (`core`), which is what the API shows, and the provider's cluster
(`cluster`), which owns machines.  Most real faults come from the two disagreeing.
"""
