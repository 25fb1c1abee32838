"""Alembic's environment and the revisions of the archive's tables, oldest first by name."""
