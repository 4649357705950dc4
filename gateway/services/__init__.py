"""What a gateway does: operations of clients and nodes, and the background work behind them.

Every change of a sandbox goes through `UnitOfWork`; nothing here knows HTTP.
"""
