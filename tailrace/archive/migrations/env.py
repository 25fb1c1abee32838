"""Alembic runs this file for every migration. `tailrace.archive.migration` hands the connection in,
inside a transaction of its own."""

from alembic import context

from tailrace.archive import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.metadata,
    version_table="archive_version",
)
context.run_migrations()
