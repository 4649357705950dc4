"""Alembic's entry: runs the migrations on the connection that `autoscaler.store.db` hands over, in its transaction."""

from alembic import context

from autoscaler.store.tables import Row

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Row.metadata, render_as_batch=True
)
context.run_migrations()
