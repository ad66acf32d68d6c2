"""Runs the migrations on the connection that `migrations.commands` hands over."""

from alembic import context

from jobs.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, compare_server_default=False)
with context.begin_transaction():
    context.run_migrations()
