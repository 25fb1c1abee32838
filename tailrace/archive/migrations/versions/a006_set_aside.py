"""Records that could not be folded, and which record lies before a position."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a006"
down_revision = "a005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table and the column."""
    op.create_table(
        "set_aside",
        sa.Column("log", sa.String(64), primary_key=True),
        sa.Column("topic", sa.String(255), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("offset", sa.BigInteger, primary_key=True),
        sa.Column("name", sa.LargeBinary, nullable=False),
        sa.Column("mark", sa.String(64), nullable=False),
        sa.Column("error", sa.String(255), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("set_aside_by_name", "set_aside", ["log", "topic", "name"])
    mark = sa.Column("mark", sa.String(64), nullable=False, server_default="")
    op.add_column("positions", mark)


def downgrade() -> None:
    """Drop both."""
    op.drop_column("positions", "mark")
    op.drop_table("set_aside")
