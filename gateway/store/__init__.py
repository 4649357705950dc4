"""What a gateway remembers: rows in SQLite or PostgreSQL, read and written by plain functions over a session.

Rows stay in this package; it takes and returns the values of `gateway.core.model`.
"""
