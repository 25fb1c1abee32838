"""The rows of the archive. `migrations/` makes them; a test compares both."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

metadata: Final = sa.MetaData()


class _Text(sa.types.TypeDecorator[str]):
    """Any text. PostgreSQL's cannot hold U+0000, so it is written as U+0001 and `0`, and U+0001 as
    itself and `1`; alike in all databases, and only here. What an older version wrote is read as it
    is, unless it has one of these pairs."""

    impl: Any = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _: sa.Dialect) -> str | None:
        return value and value.replace("\1", "\x011").replace("\0", "\x010")

    def process_result_value(self, value: str | None, _: sa.Dialect) -> str | None:
        return value and value.replace("\x010", "\0").replace("\x011", "\1")


class _String(_Text):
    impl: Any = sa.String
    cache_ok = True


_RID: Final = _String(64)
_NAME: Final = _String(255)
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # there it is the row's own

# A stored response that has ended. `history` is its HISTORY as the topic has it, compressed by
# zlib; every other column follows from it. `records`: how many of the topic it was cut into.
# `completion` names the chat completion whose choice number `choice` of `choices` it is.
RESPONSES: Final = sa.Table(
    "responses",
    metadata,
    sa.Column("rid", _RID, primary_key=True),
    sa.Column("owner", _Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("ended_ms", sa.BigInteger, nullable=False),
    sa.Column("model", _NAME, nullable=False),
    sa.Column("kind", _String(16), nullable=False),
    sa.Column("status", _String(16), nullable=False),
    sa.Column("previous", _RID, nullable=True),
    sa.Column("completion", _RID, nullable=False),
    sa.Column("choice", sa.Integer, nullable=False),
    sa.Column("choices", sa.Integer, nullable=False),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("metadata", _Text, nullable=False),
    sa.Column("history", sa.LargeBinary, nullable=False),
    sa.Index("responses_of", "owner", "kind", "created_at", "ended_ms", "rid"),
    sa.Index("responses_of_completion", "completion"),
)

# The metadata of `responses` again, one row for each entry, for searches.
LABELS: Final = sa.Table(
    "labels",
    metadata,
    sa.Column("rid", _RID, primary_key=True),
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("value", _Text, nullable=False),
)

# Metadata that was given later, by whom; JSON. Only the owner's counts.
CHANGES: Final = sa.Table(
    "changes",
    metadata,
    sa.Column("rid", _RID, primary_key=True),
    sa.Column("owner", _Text, primary_key=True),
    sa.Column("metadata", _Text, nullable=False),
)

# Records of a HISTORY that is not complete yet.
PARTS: Final = sa.Table(
    "parts",
    metadata,
    sa.Column("rid", _RID, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)

# Who deleted a response. Only its owner's deletion counts, and only the response names its owner.
# An empty `owner`: the topic has a tombstone. Also who deleted the conversation whose id `rid` is.
ERASED: Final = sa.Table(
    "erased",
    metadata,
    sa.Column("rid", _RID, primary_key=True),
    sa.Column("owner", _Text, primary_key=True),
)

# Pieces of files that requests name, by their key in the topic.
FILES: Final = sa.Table(
    "files",
    metadata,
    sa.Column("key", _NAME, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)

# A conversation. Of one that is gone there is only the row of `erased`. `shares`: its links by id,
# as JSON. `attempt` is in the key of the record that made it.
CONVERSATIONS: Final = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", _RID, primary_key=True),
    sa.Column("owner", _Text, nullable=False),
    sa.Column("principal", _Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    sa.Column("metadata", _Text, nullable=False),
    sa.Column("title", _Text, nullable=False),
    sa.Column("pinned", sa.Boolean, nullable=False),
    sa.Column("head", _RID, nullable=True),
    sa.Column("shares", _Text, nullable=False, server_default="{}"),
    sa.Column("attempt", _RID, nullable=False, server_default=""),
    sa.Index("conversations_of", "owner", "updated_ms", "id"),
)

# The nodes of its tree; `number` counts them in the order of the log.
NODES: Final = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", _RID, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("node", _RID, nullable=False),
    sa.Column("parent", _RID, nullable=True),
    sa.Column("items", _Text, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Index("nodes_by_name", "node"),
)

# What added items hold, as JSON; NULL for an item that was removed, which may be a turn's.
ITEMS: Final = sa.Table(
    "items",
    metadata,
    sa.Column("id", _RID, primary_key=True),
    sa.Column("item", _NAME, primary_key=True),
    sa.Column("content", _Text, nullable=True),
)

# The searchable texts: the text of a node (UTF-8), or the title of a conversation, whose `node` is
# empty. They follow from the rows above. `place`: the node's `number`; -1: a title's. `number`
# depends on the order of insertion, so another archive of the same log has other numbers.
TEXTS: Final = sa.Table(
    "texts",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("id", _RID, nullable=False),
    sa.Column("node", _RID, nullable=False),
    sa.Column("place", sa.Integer, nullable=False),
    sa.Column("text", sa.LargeBinary, nullable=False),
    sa.Index("texts_of", "id", "node", unique=True),
)

# Their words (`words.index_words`), by the number of the text. Of SQLite it is a table of FTS5.
WORDS: Final = sa.Table(
    "words",
    metadata,
    sa.Column("rowid", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("said", sa.Text().with_variant(postgresql.TSVECTOR(), "postgresql"), nullable=False),
    sa.Index("words_said", "said", postgresql_using="gin"),
)

# Conversations that were archived before there were texts, and have none yet.
UNINDEXED: Final = sa.Table("unindexed", metadata, sa.Column("id", _RID, primary_key=True))

# Records that could not be folded, by where they are, and what is said of the same response,
# conversation or file later in the same topic. `name`: of that (`set_aside.name_of`). `mark`: which
# record it is (`log.Mark`). `error`: the name of what was raised.
SET_ASIDE: Final = sa.Table(
    "set_aside",
    metadata,
    sa.Column("log", _String(64), primary_key=True),
    sa.Column("topic", _NAME, primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("offset", sa.BigInteger, primary_key=True),
    sa.Column("name", sa.LargeBinary, nullable=False),
    sa.Column("mark", _String(64), nullable=False),
    sa.Column("error", _NAME, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Index("set_aside_by_name", "log", "topic", "name"),
)

# The next offset to be folded. `log` is the incarnation: another log begins at its beginning.
# `mark`: of the last record below it (`log.Mark`); empty: not known.
POSITIONS: Final = sa.Table(
    "positions",
    metadata,
    sa.Column("log", _String(64), primary_key=True),
    sa.Column("topic", _NAME, primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("next", sa.BigInteger, nullable=False),
    sa.Column("mark", _String(64), nullable=False, server_default=""),
)
