"""A batch of records becomes one transaction, together with the positions behind it."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tailrace.archive import conversation_rows, database, fold, set_aside, tables, text_rows
from tailrace.log import marks
from tailrace.protocol import history, log_words, records, topics

AT_ONCE: Final = 500  # values of one statement; SQLite takes 32,766
LEVEL: Final = 4  # of zlib; histories shrink to a third. 6 takes 1.7 times as long for 6 % less

_metadata = msgspec.json.Decoder(dict[str, str])
_PARTITIONS: Final = topics.partitions_of(topics.HISTORY)

Place = tuple[str, int]  # topic and partition


class Folded(NamedTuple):
    """What became of a batch.

    Attributes:
        next: positions as the database has them now. They differ from those that the batch led to
            where another process was faster, or where the database was dropped.
        rows: responses that were written.
        erased: responses that were erased from the topic, and records of conversations.
        garbage: records that could not be read.
        texts: texts that were erased, or made anew, of those that are searched.
        aside: records that were set aside, each because of an error, or because of one before it.
    """

    next: dict[Place, int]
    rows: int = 0
    erased: int = 0
    garbage: int = 0
    texts: int = 0
    aside: tuple[set_aside.Aside, ...] = ()

    def plus(self, other: Folded) -> Folded:
        """What became of two batches of one transaction; without positions."""
        return Folded(
            {},
            self.rows + other.rows,
            self.erased + other.erased,
            self.garbage + other.garbage,
            self.texts + other.texts,
            self.aside + other.aside,
        )


# Writes tombstones. Returns when they are in the log, or raises.
Erase = Callable[[set[conversation_rows.Address]], Awaitable[None]]


class Folding:
    """Folds batches into a database. `log`: the incarnation of the log that they are from."""

    def __init__(self, engine: AsyncEngine, log: str, erase: Erase) -> None:
        self._engine = engine
        self._log = log
        self._erase = erase

    async def positions(self) -> dict[Place, int]:
        """Where to read on; a partition that was never folded is not there. Raises
        `database.ERRORS`."""
        async with self._engine.connect() as connection:
            return await positions(connection, self._log)

    async def apply(self, batch: Sequence[log_words.Record], starts: Mapping[Place, int]) -> Folded:
        """Fold a batch. `starts`: for each partition in it, the offset behind which it begins:
        everything from there to its first record was read. Records that another process has folded
        are left out; a partition of which records are missing in between is left as it is.

        Raises:
            database.ERRORS, or what `erase` raises: nothing was folded.
        """
        last = {(record.topic, record.partition): record for record in batch}
        ends = {place: record.offset + 1 for place, record in last.items()}
        async with database.writing(self._engine) as connection:
            known = await self._locked(connection, sorted(ends))
            good = {place for place in ends if known[place] >= starts[place]}
            new = [
                record
                for record in batch
                if (place := (record.topic, record.partition)) in good
                and record.offset >= known[place]
            ]
            folded = await self._fold_or_set_aside(connection, new)
            for place in good:
                if ends[place] > known[place]:
                    known[place] = ends[place]
                    mark = marks.Mark.from_record(last[place])
                    await self._move(connection, place, marks.Position(ends[place], mark))
        return folded._replace(next=known)

    async def retry(
        self, of: Sequence[set_aside.Row], batch: Sequence[log_words.Record]
    ) -> tuple[set_aside.Aside, ...] | None:
        """Fold what is set aside under one name. `batch`: those of the records `of` that the log
        still has. Returns which of them were set aside again; None: there are others of this name
        by now, and nothing was folded.

        Raises:
            database.ERRORS, or what `erase` raises: nothing was folded.
        """
        async with database.writing(self._engine) as connection:
            known = await set_aside.rows(connection, self._log, of[0].name)
            if {row.place for row in known} != {row.place for row in of}:
                return None
            await set_aside.remove(connection, self._log, known)
            return (await self._fold_group(connection, batch)).aside

    async def set_aside(self) -> int:
        """How many records are set aside. Raises `database.ERRORS`."""
        async with self._engine.connect() as connection:
            return await set_aside.count(connection)

    async def marked(self) -> dict[Place, marks.Position]:
        """Like `positions`, with the marks. Raises `database.ERRORS`."""
        async with self._engine.connect() as connection:
            return await _marked(connection, self._log)

    async def begin(
        self, places: Mapping[Place, int], again: Mapping[Place, tuple[marks.Position, int]] = {}
    ) -> dict[Place, int]:
        """Set positions that are not there, or lie below these, where the topic begins now. Of
        `again`, those that are still as they are said to be are set back. Returns all of these
        positions as they are then. Raises `database.ERRORS`."""
        async with database.writing(self._engine) as connection:
            known = await self._locked(connection, sorted(places))
            stored = await _marked(connection, self._log) if again else {}
            for place, (was, offset) in again.items():
                if stored.get(place) == was:  # no other process was faster
                    known[place] = offset
                    await self._move(connection, place, marks.Position(offset))
            for place, first in places.items():
                if known[place] < first:
                    known[place] = first
                    await self._move(connection, place, marks.Position(first))
        return known

    async def _locked(
        self, connection: AsyncConnection, places: Sequence[Place]
    ) -> dict[Place, int]:
        """Their positions; no other process changes them until the transaction ends."""
        table = tables.POSITIONS
        if connection.dialect.name == "postgresql":
            # Without a row there is nothing to lock. Two that insert it wait for each other.
            rows = [
                {"log": self._log, "topic": topic, "partition": partition, "next": 0}
                for topic, partition in places
            ]
            if rows:
                made = postgresql.insert(table).on_conflict_do_nothing()
                await connection.execute(made, rows)
        question = (
            sa.select(table.c.topic, table.c.partition, table.c.next)
            .where(table.c.log == self._log)
            .order_by(table.c.topic, table.c.partition)
            .with_for_update()
        )
        found = {(t, p): n for t, p, n in (await connection.execute(question)).all()}
        return {place: found.get(place, 0) for place in places}

    async def _move(self, connection: AsyncConnection, place: Place, at: marks.Position) -> None:
        table, (topic, partition) = tables.POSITIONS, place
        mine = sa.and_(
            table.c.log == self._log, table.c.topic == topic, table.c.partition == partition
        )
        values = {"next": at.next, "mark": str(at.mark or "")}
        moved = await connection.execute(sa.update(table).where(mine).values(values))
        if not moved.rowcount:
            row = {"log": self._log, "topic": topic, "partition": partition, **values}
            await connection.execute(sa.insert(table).values(row))

    async def _fold_or_set_aside(
        self, connection: AsyncConnection, new: Sequence[log_words.Record]
    ) -> Folded:
        """Fold records. If that fails because of one of them, each name's records are folded by
        themselves, and set aside if that fails."""
        waiting = await set_aside.names(connection, self._log, new)
        groups: dict[set_aside.Name, list[log_words.Record]] = {}
        for record in new:
            groups.setdefault(set_aside.name_of(record), []).append(record)
        later = [r for name in groups.keys() & waiting for r in groups.pop(name)]
        aside = await set_aside.put(connection, self._log, later, set_aside.FOLLOWS)
        folded = Folded({}, aside=tuple(aside))
        try:
            async with connection.begin_nested():
                ready = [r for r in new if set_aside.name_of(r) in groups] if later else new
                return folded.plus(await self._fold(connection, ready))
        except Exception as error:
            if not database.refused(error):
                raise
        for each in groups.values():
            folded = folded.plus(await self._fold_group(connection, each))
        return folded

    async def _fold_group(
        self, connection: AsyncConnection, group: Sequence[log_words.Record]
    ) -> Folded:
        """Fold records of one name, or set all of them aside."""
        try:
            async with connection.begin_nested():
                return await self._fold(connection, group)
        except Exception as error:
            if not database.refused(error):
                raise
            named = type(getattr(getattr(error, "orig", None), "__cause__", None) or error).__name__
        return Folded({}, aside=tuple(await set_aside.put(connection, self._log, group, named)))

    async def _fold(self, connection: AsyncConnection, new: Sequence[log_words.Record]) -> Folded:
        garbage = 0
        files: dict[str, bytes | None] = {}
        acts: list[tuple[str, fold.Key | None, bytes | None, str]] = []
        told = [record for record in new if record.topic == topics.CONVERSATIONS]
        for record in new:
            if record.topic == topics.CONVERSATIONS:
                continue
            if record.forgery:
                garbage += 1
            elif record.topic == fold.DELETIONS:
                deleted = records.deletion_of(record.key, record.value)
                if deleted is not None:
                    acts.append((deleted.rid, None, None, deleted.by.key))
                garbage += deleted is None and record.value is not None
            elif (key := fold.key_of(record.key)) is not None:
                acts.append((key.rid, key, record.value, ""))
            elif history.file_from_key(record.key) is not None:
                files[(record.key or b"").decode(errors="replace")] = record.value
            else:
                garbage += 1
        states = await _states(connection, sorted({rid for rid, *_ in acts}))
        touched: dict[str, fold.State] = {}
        for rid, key, value, by in acts:
            state = touched[rid] = states[rid]
            if key is None:
                state.delete(by)
            else:
                garbage += not state.take(key, value)
        await _save(connection, list(touched.values()))
        await _save_files(connection, files)
        rows = sum(state.whole is not None for state in touched.values())
        talks = await conversation_rows.fold(connection, told)
        texts = await text_rows.refresh(
            connection, talks.texts._replace(responses=_turns(touched.values()))
        )
        erased = [state for state in touched.values() if state.tombstones]
        keys = {
            conversation_rows.Address(
                topics.HISTORY, history.partition(state.rid, _PARTITIONS), key
            )
            for state in erased
            for key in state.tombstones
        }
        if keys or talks.erased:  # before the commit: behind it, a kill would lose them
            await self._erase(keys | talks.erased)
        return Folded({}, rows, len(erased) + len(talks.erased), garbage + talks.garbage, texts)


async def positions(connection: AsyncConnection, log: str) -> dict[Place, int]:
    """All positions of one log."""
    table = tables.POSITIONS
    question = sa.select(table.c.topic, table.c.partition, table.c.next).where(table.c.log == log)
    return {(t, p): n for t, p, n in (await connection.execute(question)).all()}


async def _marked(connection: AsyncConnection, log: str) -> dict[Place, marks.Position]:
    table = tables.POSITIONS.c
    question = sa.select(table.topic, table.partition, table.next, table.mark)
    found = (await connection.execute(question.where(table.log == log))).all()
    return {(t, p): marks.Position(n, marks.Mark.parse(mark)) for t, p, n, mark in found}


def _turns(states: Iterable[fold.State]) -> dict[str, history.History | None]:
    """Responses that were archived, or of which there is none (any more)."""
    return {s.rid: s.whole for s in states if s.row is None or s.whole is not None}


def _slices(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[i : i + AT_ONCE] for i in range(0, len(values), AT_ONCE))


async def _states(connection: AsyncConnection, rids: Sequence[str]) -> dict[str, fold.State]:
    found = {rid: fold.State(rid) for rid in rids}
    rows, changes = tables.RESPONSES.c, tables.CHANGES.c
    erased, parts = tables.ERASED.c, tables.PARTS.c
    for some in _slices(rids):
        for rid, owner, count in await connection.execute(
            sa.select(rows.rid, rows.owner, rows.records).where(rows.rid.in_(some))
        ):
            found[rid].row = fold.Row(owner, count)
        for rid, owner in await connection.execute(
            sa.select(erased.rid, erased.owner).where(erased.rid.in_(some))
        ):
            found[rid].erased.add(owner)
        for rid, owner, metadata in await connection.execute(
            sa.select(changes.rid, changes.owner, changes.metadata).where(changes.rid.in_(some))
        ):
            found[rid].changes[owner] = _metadata.decode(metadata)
        for rid, part, value in await connection.execute(
            sa.select(parts.rid, parts.part, parts.value).where(parts.rid.in_(some))
        ):
            found[rid].parts[part] = value
    return found


async def _save(connection: AsyncConnection, states: Sequence[fold.State]) -> None:
    """Write states. What they were is removed first: there is no statement for both that both
    databases know."""
    for some in _slices(states):
        rids = [state.rid for state in some]
        for table in (tables.PARTS, tables.ERASED, tables.CHANGES):
            await connection.execute(sa.delete(table).where(table.c.rid.in_(rids)))
        gone = [state.rid for state in some if state.row is None or state.whole is not None]
        for table in (tables.RESPONSES, tables.LABELS):
            await connection.execute(sa.delete(table).where(table.c.rid.in_(gone)))
        inserts: dict[sa.Table, list[dict[str, Any]]] = {
            tables.RESPONSES: [_row(state) for state in some if state.whole is not None],
            tables.CHANGES: [
                {"rid": s.rid, "owner": owner, "metadata": fold.encoded(metadata)}
                for s in some
                for owner, metadata in sorted(s.changes.items())
            ],
            tables.ERASED: [
                {"rid": s.rid, "owner": owner} for s in some for owner in sorted(s.erased)
            ],
            tables.PARTS: [
                {"rid": s.rid, "part": part, "value": value}
                for s in some
                for part, value in sorted(s.parts.items())
            ],
        }
        for table, rows in inserts.items():
            if rows:
                await connection.execute(sa.insert(table), rows)
        for state in some:
            if state.row is not None:
                await _label(connection, state)


def _row(state: fold.State) -> dict[str, Any]:
    assert state.whole is not None
    assert state.row is not None
    return {
        **fold.columns(state.whole, state.changes),
        "records": state.row.records,
        "history": zlib.compress(history.encode(state.whole), LEVEL),
    }


async def _label(connection: AsyncConnection, state: fold.State) -> None:
    """Write the metadata of a row where this batch made or changed it."""
    assert state.row is not None
    if state.whole is not None:
        metadata = fold.metadata_of(state.whole, state.changes)
    elif state.row.owner not in state.changes:
        return
    else:
        metadata = state.changes[state.row.owner]
        rows = tables.RESPONSES
        await connection.execute(
            sa.update(rows).where(rows.c.rid == state.rid).values(metadata=fold.encoded(metadata))
        )
        await connection.execute(sa.delete(tables.LABELS).where(tables.LABELS.c.rid == state.rid))
    if metadata:
        await connection.execute(
            sa.insert(tables.LABELS),
            [{"rid": state.rid, "name": n, "value": v} for n, v in sorted(metadata.items())],
        )


async def _save_files(connection: AsyncConnection, files: Mapping[str, bytes | None]) -> None:
    for some in _slices(sorted(files)):
        await connection.execute(sa.delete(tables.FILES).where(tables.FILES.c.key.in_(some)))
        rows = [{"key": key, "value": value} for key in some if (value := files[key]) is not None]
        if rows:
            await connection.execute(sa.insert(tables.FILES), rows)
