"""Records that could not be folded: each is set aside by its address, and the rest is folded.

Later records of the same response, conversation or file in the same topic are set aside too,
because their order counts. `retry` folds all of them again, from the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.archive import fold, tables
from tailrace.log import marks
from tailrace.protocol import conversations, log_words, topics

AT_ONCE: Final = 500  # values of one statement
MAX_NAME_BYTES: Final = 255
FOLLOWS: Final = "follows"  # instead of an error: a record of the same name is set aside

Name = tuple[str, bytes]  # a topic, and the subject of a record in it


class Aside(NamedTuple):
    """A record that was set aside."""

    topic: str
    partition: int
    offset: int
    error: str


class Row(NamedTuple):
    """A row of the table."""

    name: Name
    partition: int
    offset: int
    mark: str

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


def name_of(record: log_words.Record) -> Name:
    """The subject of a record: a response, a conversation, or else its key."""
    if record.topic == topics.CONVERSATIONS:
        subject = conversations.id_from_key(record.key)
    else:
        key = fold.parse_key(record.key)
        subject = key.rid if key is not None else None
    name = subject.encode() if subject is not None else record.key or b""
    return record.topic, name[:MAX_NAME_BYTES]


async def names(
    connection: AsyncConnection, log: str, records: Iterable[log_words.Record]
) -> set[Name]:
    """The names of these records under which records are set aside."""
    rows, names_aside = tables.SET_ASIDE.c, set[Name]()
    if (await connection.execute(sa.select(rows.offset).limit(1))).first() is None:
        return names_aside
    candidates = sorted({name_of(record) for record in records})
    for at in range(0, len(candidates), AT_ONCE):
        batch = {name for _, name in candidates[at : at + AT_ONCE]}
        question = sa.select(rows.topic, rows.name).where(rows.log == log, rows.name.in_(batch))
        names_aside |= {(topic, bytes(name)) for topic, name in await connection.execute(question)}
    return names_aside


async def add(
    connection: AsyncConnection, log: str, records: Sequence[log_words.Record], error: str
) -> list[Aside]:
    """Set records aside that are not set aside yet."""
    now = int(time.time() * 1000)
    values: list[Mapping[str, Any]] = [
        {
            "log": log,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "name": name_of(record)[1],
            "mark": str(marks.Mark.from_record(record)),
            "error": error[:255],
            "at_ms": now,
        }
        for record in records
    ]
    if values:
        await connection.execute(sa.insert(tables.SET_ASIDE), values)
    return [Aside(record.topic, record.partition, record.offset, error) for record in records]


async def rows(connection: AsyncConnection, log: str, name: Name | None = None) -> list[Row]:
    """The rows of a log, or of one name in it; by name, in the order of the log."""
    table, where = tables.SET_ASIDE.c, [tables.SET_ASIDE.c.log == log]
    if name is not None:
        where += [table.topic == name[0], table.name == name[1]]
    question = (
        sa.select(table.topic, table.name, table.partition, table.offset, table.mark)
        .where(*where)
        .order_by(table.topic, table.name, table.partition, table.offset)
    )
    result = (await connection.execute(question)).all()
    return [Row((topic, bytes(name)), *rest) for topic, name, *rest in result]


async def remove(connection: AsyncConnection, log: str, aside: Iterable[Row]) -> None:
    """Remove these rows."""
    table = tables.SET_ASIDE.c
    for row in aside:
        same_topic = sa.and_(table.log == log, table.topic == row.name[0])
        same_offset = sa.and_(table.partition == row.partition, table.offset == row.offset)
        await connection.execute(sa.delete(tables.SET_ASIDE).where(same_topic, same_offset))


async def count(connection: AsyncConnection) -> int:
    """The number of records that are set aside, of all logs."""
    question = sa.select(sa.func.count()).select_from(tables.SET_ASIDE)
    return int((await connection.execute(question)).scalar_one())


async def first(connection: AsyncConnection, log: str, topic: str, name: str) -> int | None:
    """The lowest offset that is set aside for a conversation or response; None if there is none."""
    rows = tables.SET_ASIDE.c
    question = sa.select(sa.func.min(rows.offset)).where(
        rows.log == log, rows.topic == topic, rows.name == name.encode()
    )
    offset: int | None = (await connection.execute(question)).scalar_one_or_none()
    return offset
