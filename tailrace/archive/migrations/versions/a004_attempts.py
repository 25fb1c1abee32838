"""Conversations that several gateways may make at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a004"
down_revision = "a003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    attempt = sa.Column("attempt", sa.String(64), nullable=False, server_default="")
    op.add_column("conversations", attempt)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("conversations", "attempt")
