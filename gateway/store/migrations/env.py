"""Alembic's entry: runs the migrations on the connection that `gateway.store.db` hands over, in its transaction."""

from alembic import context
from sqlmodel import SQLModel

from gateway.store import tables  # noqa: F401 - fills the metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    # SQLite can roll back DDL when the transaction is begun by hand, as the engine's hook does.
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
