"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "responses",
        sa.Column("rid", sa.String(64), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("previous", sa.String(64), nullable=True),
        sa.Column("completion", sa.String(64), nullable=False),
        sa.Column("choice", sa.Integer, nullable=False),
        sa.Column("choices", sa.Integer, nullable=False),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("history", sa.LargeBinary, nullable=False),
    )
    op.create_index("responses_of", "responses", ["owner", "kind", "created_at", "ended_ms", "rid"])
    op.create_index("responses_of_completion", "responses", ["completion"])
    op.create_table(
        "labels",
        sa.Column("rid", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "changes",
        sa.Column("rid", sa.String(64), primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("metadata", sa.Text, nullable=False),
    )
    op.create_table(
        "parts",
        sa.Column("rid", sa.String(64), primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "erased",
        sa.Column("rid", sa.String(64), primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
    )
    op.create_table(
        "files",
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "positions",
        sa.Column("log", sa.String(64), primary_key=True),
        sa.Column("topic", sa.String(255), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("next", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables. The topics have what they held."""
    for name in ("positions", "files", "erased", "parts", "changes", "labels", "responses"):
        op.drop_table(name)
