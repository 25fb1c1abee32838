"""Links to conversations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a003"
down_revision = "a002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. An archive process of the version before leaves it empty."""
    op.add_column(
        "conversations", sa.Column("shares", sa.Text, nullable=False, server_default="{}")
    )


def downgrade() -> None:
    """Drop the column. The topic has what it held."""
    op.drop_column("conversations", "shares")
