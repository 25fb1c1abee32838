"""A batch of records becomes one transaction, together with the positions after it."""

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


class FoldResult(NamedTuple):
    """The result of folding a batch.

    Attributes:
        next: the present positions of the database. They differ from those after the batch if
            another process was faster, or if the database was dropped.
        rows: responses that were written.
        erased: responses that were erased from the topic, and records of conversations.
        garbage: records that could not be read.
        texts: searchable texts that were erased or rebuilt.
        aside: records that were set aside, each because of an error, or because of one before it.
    """

    next: dict[Place, int]
    rows: int = 0
    erased: int = 0
    garbage: int = 0
    texts: int = 0
    aside: tuple[set_aside.Aside, ...] = ()

    def plus(self, other: FoldResult) -> FoldResult:
        """The sum of two results of one transaction, without positions."""
        return FoldResult(
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
    """Folds batches into a database. `log`: the incarnation of their log."""

    def __init__(self, engine: AsyncEngine, log: str, erase: Erase) -> None:
        self._engine = engine
        self._log = log
        self._erase = erase

    async def positions(self) -> dict[Place, int]:
        """The next offsets to read; without partitions that were never folded. Raises
        `database.ERRORS`."""
        async with self._engine.connect() as connection:
            return await positions(connection, self._log)

    async def apply(
        self, batch: Sequence[log_words.Record], starts: Mapping[Place, int]
    ) -> FoldResult:
        """Fold a batch. `starts`: for each partition in it, the offset at which reading began:
        everything from there to its first record was read. Records that another process has folded
        are skipped; a partition with a gap before the batch is not changed.

        Raises:
            database.ERRORS, or what `erase` raises: nothing was folded.
        """
        last = {(record.topic, record.partition): record for record in batch}
        ends = {place: record.offset + 1 for place, record in last.items()}
        async with database.writing(self._engine) as connection:
            positions_ = await self._lock_positions(connection, sorted(ends))
            good = {place for place in ends if positions_[place] >= starts[place]}
            new = [
                record
                for record in batch
                if (place := (record.topic, record.partition)) in good
                and record.offset >= positions_[place]
            ]
            result = await self._fold_or_set_aside(connection, new)
            for place in good:
                if ends[place] > positions_[place]:
                    positions_[place] = ends[place]
                    mark = marks.Mark.from_record(last[place])
                    await self._move(connection, place, marks.Position(ends[place], mark))
        return result._replace(next=positions_)

    async def retry(
        self, rows: Sequence[set_aside.Row], batch: Sequence[log_words.Record]
    ) -> tuple[set_aside.Aside, ...] | None:
        """Fold the records that are set aside under one name. `batch`: those of `rows` that the log
        still has. Returns which of them were set aside again; None: others of this name were set
        aside meanwhile, and nothing was folded.

        Raises:
            database.ERRORS, or what `erase` raises: nothing was folded.
        """
        async with database.writing(self._engine) as connection:
            current = await set_aside.rows(connection, self._log, rows[0].name)
            if {row.place for row in current} != {row.place for row in rows}:
                return None
            await set_aside.remove(connection, self._log, current)
            return (await self._fold_group(connection, batch)).aside

    async def set_aside(self) -> int:
        """The number of records that are set aside. Raises `database.ERRORS`."""
        async with self._engine.connect() as connection:
            return await set_aside.count(connection)

    async def marked_positions(self) -> dict[Place, marks.Position]:
        """Like `positions`, with the marks. Raises `database.ERRORS`."""
        async with self._engine.connect() as connection:
            return await _marked_positions(connection, self._log)

    async def begin(
        self, places: Mapping[Place, int], rewinds: Mapping[Place, tuple[marks.Position, int]] = {}
    ) -> dict[Place, int]:
        """Set missing positions, and those below the beginning of the topic, to `places`. Set back
        the positions in `rewinds` that still have their former value. Returns all of these
        positions afterwards. Raises `database.ERRORS`."""
        async with database.writing(self._engine) as connection:
            positions_ = await self._lock_positions(connection, sorted(places))
            stored = await _marked_positions(connection, self._log) if rewinds else {}
            for place, (was, offset) in rewinds.items():
                if stored.get(place) == was:  # no other process was faster
                    positions_[place] = offset
                    await self._move(connection, place, marks.Position(offset))
            for place, first in places.items():
                if positions_[place] < first:
                    positions_[place] = first
                    await self._move(connection, place, marks.Position(first))
        return positions_

    async def _lock_positions(
        self, connection: AsyncConnection, places: Sequence[Place]
    ) -> dict[Place, int]:
        """Their positions; no other process changes them until the transaction ends."""
        table = tables.POSITIONS
        if connection.dialect.name == "postgresql":
            # Only a row can be locked. Two processes that insert it wait for each other.
            rows = [
                {"log": self._log, "topic": topic, "partition": partition, "next": 0}
                for topic, partition in places
            ]
            if rows:
                insert = postgresql.insert(table).on_conflict_do_nothing()
                await connection.execute(insert, rows)
        question = (
            sa.select(table.c.topic, table.c.partition, table.c.next)
            .where(table.c.log == self._log)
            .order_by(table.c.topic, table.c.partition)
            .with_for_update()
        )
        offsets = {(t, p): n for t, p, n in (await connection.execute(question)).all()}
        return {place: offsets.get(place, 0) for place in places}

    async def _move(self, connection: AsyncConnection, place: Place, at: marks.Position) -> None:
        table, (topic, partition) = tables.POSITIONS, place
        same_place = sa.and_(
            table.c.log == self._log, table.c.topic == topic, table.c.partition == partition
        )
        values = {"next": at.next, "mark": str(at.mark or "")}
        update = await connection.execute(sa.update(table).where(same_place).values(values))
        if not update.rowcount:
            row = {"log": self._log, "topic": topic, "partition": partition, **values}
            await connection.execute(sa.insert(table).values(row))

    async def _fold_or_set_aside(
        self, connection: AsyncConnection, new: Sequence[log_words.Record]
    ) -> FoldResult:
        """Fold records. If that fails because of one of them, the records of each name are folded
        separately, and set aside if that fails."""
        waiting = await set_aside.names(connection, self._log, new)
        groups: dict[set_aside.Name, list[log_words.Record]] = {}
        for record in new:
            groups.setdefault(set_aside.name_of(record), []).append(record)
        later = [r for name in groups.keys() & waiting for r in groups.pop(name)]
        aside = await set_aside.add(connection, self._log, later, set_aside.FOLLOWS)
        result = FoldResult({}, aside=tuple(aside))
        try:
            async with connection.begin_nested():
                ready = [r for r in new if set_aside.name_of(r) in groups] if later else new
                return result.plus(await self._fold(connection, ready))
        except Exception as error:
            if not database.is_data_error(error):
                raise
        for each in groups.values():
            result = result.plus(await self._fold_group(connection, each))
        return result

    async def _fold_group(
        self, connection: AsyncConnection, group: Sequence[log_words.Record]
    ) -> FoldResult:
        """Fold records of one name, or set all of them aside."""
        try:
            async with connection.begin_nested():
                return await self._fold(connection, group)
        except Exception as error:
            if not database.is_data_error(error):
                raise
            error_name = type(
                getattr(getattr(error, "orig", None), "__cause__", None) or error
            ).__name__
        return FoldResult(
            {}, aside=tuple(await set_aside.add(connection, self._log, group, error_name))
        )

    async def _fold(
        self, connection: AsyncConnection, new: Sequence[log_words.Record]
    ) -> FoldResult:
        garbage = 0
        files: dict[str, bytes | None] = {}
        acts: list[tuple[str, fold.Key | None, bytes | None, str]] = []
        conversation_records = [record for record in new if record.topic == topics.CONVERSATIONS]
        for record in new:
            if record.topic == topics.CONVERSATIONS:
                continue
            if record.forgery:
                garbage += 1
            elif record.topic == fold.DELETIONS:
                deletion = records.deletion_of(record.key, record.value)
                if deletion is not None:
                    acts.append((deletion.rid, None, None, deletion.by.key))
                garbage += deletion is None and record.value is not None
            elif (key := fold.parse_key(record.key)) is not None:
                acts.append((key.rid, key, record.value, ""))
            elif history.file_from_key(record.key) is not None:
                files[(record.key or b"").decode(errors="replace")] = record.value
            else:
                garbage += 1
        states = await _states(connection, sorted({rid for rid, *_ in acts}))
        changed_states: dict[str, fold.State] = {}
        for rid, key, value, by in acts:
            state = changed_states[rid] = states[rid]
            if key is None:
                state.delete(by)
            else:
                garbage += not state.apply(key, value)
        await _save(connection, list(changed_states.values()))
        await _save_files(connection, files)
        rows = sum(state.whole is not None for state in changed_states.values())
        conversations_ = await conversation_rows.fold(connection, conversation_records)
        texts = await text_rows.refresh(
            connection, conversations_.texts._replace(responses=_turns(changed_states.values()))
        )
        erased_states = [state for state in changed_states.values() if state.tombstones]
        keys = {
            conversation_rows.Address(
                topics.HISTORY, history.partition(state.rid, _PARTITIONS), key
            )
            for state in erased_states
            for key in state.tombstones
        }
        if keys or conversations_.erased:  # before the commit: after it, a kill would lose them
            await self._erase(keys | conversations_.erased)
        return FoldResult(
            {},
            rows,
            len(erased_states) + len(conversations_.erased),
            garbage + conversations_.garbage,
            texts,
        )


async def positions(connection: AsyncConnection, log: str) -> dict[Place, int]:
    """All positions of one log."""
    table = tables.POSITIONS
    question = sa.select(table.c.topic, table.c.partition, table.c.next).where(table.c.log == log)
    return {(t, p): n for t, p, n in (await connection.execute(question)).all()}


async def _marked_positions(connection: AsyncConnection, log: str) -> dict[Place, marks.Position]:
    table = tables.POSITIONS.c
    question = sa.select(table.topic, table.partition, table.next, table.mark)
    rows = (await connection.execute(question.where(table.log == log))).all()
    return {(t, p): marks.Position(n, marks.Mark.parse(mark)) for t, p, n, mark in rows}


def _turns(states: Iterable[fold.State]) -> dict[str, history.History | None]:
    """Responses that were archived, or that have no row (now)."""
    return {s.rid: s.whole for s in states if s.row is None or s.whole is not None}


def _slices(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[i : i + AT_ONCE] for i in range(0, len(values), AT_ONCE))


async def _states(connection: AsyncConnection, rids: Sequence[str]) -> dict[str, fold.State]:
    states = {rid: fold.State(rid) for rid in rids}
    rows, changes = tables.RESPONSES.c, tables.CHANGES.c
    erased, parts = tables.ERASED.c, tables.PARTS.c
    for batch in _slices(rids):
        for rid, owner, count in await connection.execute(
            sa.select(rows.rid, rows.owner, rows.records).where(rows.rid.in_(batch))
        ):
            states[rid].row = fold.Row(owner, count)
        for rid, owner in await connection.execute(
            sa.select(erased.rid, erased.owner).where(erased.rid.in_(batch))
        ):
            states[rid].erased.add(owner)
        for rid, owner, metadata in await connection.execute(
            sa.select(changes.rid, changes.owner, changes.metadata).where(changes.rid.in_(batch))
        ):
            states[rid].changes[owner] = _metadata.decode(metadata)
        for rid, part, value in await connection.execute(
            sa.select(parts.rid, parts.part, parts.value).where(parts.rid.in_(batch))
        ):
            states[rid].parts[part] = value
    return states


async def _save(connection: AsyncConnection, states: Sequence[fold.State]) -> None:
    """Write states. Their former rows are deleted first: the two databases share no upsert."""
    for batch in _slices(states):
        rids = [state.rid for state in batch]
        for table in (tables.PARTS, tables.ERASED, tables.CHANGES):
            await connection.execute(sa.delete(table).where(table.c.rid.in_(rids)))
        replaced_rids = [
            state.rid for state in batch if state.row is None or state.whole is not None
        ]
        for table in (tables.RESPONSES, tables.LABELS):
            await connection.execute(sa.delete(table).where(table.c.rid.in_(replaced_rids)))
        inserts: dict[sa.Table, list[dict[str, Any]]] = {
            tables.RESPONSES: [_row(state) for state in batch if state.whole is not None],
            tables.CHANGES: [
                {"rid": s.rid, "owner": owner, "metadata": fold.encode_metadata(metadata)}
                for s in batch
                for owner, metadata in sorted(s.changes.items())
            ],
            tables.ERASED: [
                {"rid": s.rid, "owner": owner} for s in batch for owner in sorted(s.erased)
            ],
            tables.PARTS: [
                {"rid": s.rid, "part": part, "value": value}
                for s in batch
                for part, value in sorted(s.parts.items())
            ],
        }
        for table, rows in inserts.items():
            if rows:
                await connection.execute(sa.insert(table), rows)
        for state in batch:
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
    """Write the metadata of a row if this batch created or changed it."""
    assert state.row is not None
    if state.whole is not None:
        metadata = fold.current_metadata(state.whole, state.changes)
    elif state.row.owner not in state.changes:
        return
    else:
        metadata = state.changes[state.row.owner]
        rows = tables.RESPONSES
        await connection.execute(
            sa.update(rows)
            .where(rows.c.rid == state.rid)
            .values(metadata=fold.encode_metadata(metadata))
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
