"""Texts of conversations, to be searched. The archive's process fills them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "a005"
down_revision = "a004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, and note for which conversations they are to be filled."""
    op.create_index("nodes_by_name", "nodes", ["node"])
    op.create_table(
        "texts",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("text", sa.LargeBinary, nullable=False),
    )
    op.create_index("texts_of", "texts", ["id", "node"], unique=True)
    if op.get_bind().dialect.name == "postgresql":
        op.create_table(
            "words",
            sa.Column("rowid", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("said", postgresql.TSVECTOR, nullable=False),
        )
        op.create_index("words_said", "words", ["said"], postgresql_using="gin")
    else:  # words come ready: where they stand, and how often, is not needed
        op.execute(
            "CREATE VIRTUAL TABLE words USING "
            "fts5(said, tokenize='ascii', detail=none, columnsize=0)"
        )
    op.create_table("unindexed", sa.Column("id", sa.String(64), primary_key=True))
    op.execute("INSERT INTO unindexed SELECT id FROM conversations")


def downgrade() -> None:
    """Drop the tables. They follow from the others."""
    for name in ("unindexed", "words", "texts"):
        op.drop_table(name)
    op.drop_index("nodes_by_name", "nodes")
