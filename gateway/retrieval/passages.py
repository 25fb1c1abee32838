"""The passages of files: appended to the log, folded into the vector database, searched there.

Each gateway folds `llm.passages`. With a database of its own (milvus-lite) it must; with a shared
one several gateways write the same.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from gateway.retrieval import vector_stores
from tailrace import log, telemetry
from tailrace.delivery.catch_up import Behind
from tailrace.delivery.whole_topic import WholeTopic
from tailrace.log import interfaces
from tailrace.protocol import errors, topics
from tailrace.protocol import vector_stores as acts
from tailrace.retry import retry_until
from tailrace.vectors import contract

CAUGHT_UP_S: Final = 10.0
RETRY_S: Final = 2.0
TOGETHER: Final = 500  # records appended at once
BEHIND_S: Final = 5.0  # retry-after while the database is rebuilt

T = TypeVar("T")


class Passages:
    """One vector database, and the topic that it folds.

    Attributes:
        _thread: makes all calls of the database.
        _positions: for each partition, the offset up to which the database has all records.
    """

    def __init__(
        self,
        database: contract.VectorDatabase,
        stores: vector_stores.VectorStores,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        writer: interfaces.RecordWriter,
    ) -> None:
        self._database = database
        self._stores = stores
        self._reader = reader
        self._writer = writer
        self._topic = WholeTopic(topics.PASSAGES, reader, offsets, self._on_batch)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "vectors")
        self._positions: dict[int, int] = {}

    async def run(self) -> None:
        """Fold until cancelled."""
        try:
            await self._persist(self._database.open)
            start = await self._persist(self._database.positions)
            await self._topic.run(start)
        finally:
            await self._reader.stop()
            await asyncio.shield(self._call(self._database.close))
            self._thread.shutdown(wait=False)

    async def add(self, passages: Sequence[acts.Passage]) -> None:
        """Append passages of one store. Raises log.AppendFailed."""
        for start in range(0, len(passages), TOGETHER):
            await asyncio.gather(
                *(
                    self._append(each.id, each.key, acts.encode(each))
                    for each in passages[start : start + TOGETHER]
                )
            )

    async def erase(self, store: str, attachment: str, count: int) -> None:
        """Erase the first `count` passages of a file from the log. Raises log.AppendFailed."""
        keys = [acts.passage_key(store, attachment, number) for number in range(count)]
        for start in range(0, len(keys), TOGETHER):
            await asyncio.gather(
                *(self._append(store, key, None) for key in keys[start : start + TOGETHER])
            )

    async def search(
        self,
        store: acts.Store,
        attachments: Sequence[str],
        model: str,
        vector: bytes,
        limit: int,
    ) -> list[contract.Hit]:
        """The passages of these files that are most similar to a vector, best first.

        Raises:
            errors.ApiError: 503, the database is down, or is being rebuilt.
            log.LogUnavailable
        """
        await self._caught_up(store.id)
        where = _where(store, attachments)
        return await self._now(lambda: self._database.search(where, model, vector, limit))

    async def numbers(self, store: acts.Store, attachment: str, model: str) -> set[int]:
        """Numbers of a file's passages in the database. Raises like `search`."""
        await self._caught_up(store.id)
        where = _where(store, [attachment])
        return await self._now(lambda: self._database.numbers(where, model))

    async def texts(self, store: acts.Store, attachment: str) -> list[str]:
        """The texts of a file's passages, in order. Raises like `search`."""
        await self._caught_up(store.id)
        where = _where(store, [attachment])
        return await self._now(lambda: self._database.texts(where))

    async def _append(self, store: str, key: str, value: bytes | None) -> None:
        partition = acts.passages_partition(store)
        await self._writer.append(topics.PASSAGES, partition, key, value)

    async def _caught_up(self, store: str) -> None:
        """Wait until the database has the store's records up to the log's present end."""
        try:
            await self._topic.caught_up([acts.passages_partition(store)], CAUGHT_UP_S)
        except Behind as error:
            raise errors.unavailable(
                "The vector database lags behind the log, or is down.", BEHIND_S
            ) from error

    async def _on_batch(self, batch: list[log.Record]) -> None:
        passages: dict[str, acts.Passage | None] = {}
        for each in batch:
            passage = acts.decode_passage(each.key, each.value)
            if passage is not None:
                passages[passage.key] = passage
            elif each.value is None and not each.forgery and each.key is not None:
                passages[each.key.decode(errors="replace")] = None
            else:
                telemetry.IGNORED_RECORDS.labels(reason="garbage").inc()
        await self._without_orphans(passages)
        positions = dict(self._reader.positions)
        if positions != self._positions:
            rows = [_row(each) for each in passages.values() if each is not None]
            tombstones = [key for key, each in passages.items() if each is None]
            await self._persist(lambda: self._fold(rows, tombstones, positions))
        self._positions = positions

    def _fold(
        self,
        rows: Sequence[contract.Passage],
        tombstones: Sequence[str],
        positions: Mapping[int, int],
    ) -> None:
        self._database.open()  # the server may have been down meanwhile
        try:
            self._database.fold(rows, tombstones, positions)
        except contract.Unavailable:
            self._database.check_writes()
            self._fold_alone(rows)
            self._database.fold((), tombstones, positions)

    def _fold_alone(self, rows: Sequence[contract.Passage]) -> None:
        """Fold each row alone. A row that the database refuses is left out, if the database accepts
        other writes: otherwise no later passage could be found."""
        for row in rows:
            try:
                self._database.fold([row], (), {})
            except contract.Unavailable as error:
                self._database.check_writes()
                telemetry.PASSAGES_REFUSED.inc()
                telemetry.log(
                    telemetry.Action.SET_ASIDE,
                    topic=topics.PASSAGES,
                    key=row.key,
                    reason=str(error),
                )

    async def _without_orphans(self, passages: dict[str, acts.Passage | None]) -> None:
        """Erase passages of files that are no longer in a store: a process wrote them before it
        read the deletion, or their erasure was interrupted. A file is in the log before its
        passages, so a file that is unknown after a full read was deleted."""
        unknown = {key: each for key, each in passages.items() if each and not self._belongs(each)}
        if not unknown:
            return
        partitions = sorted({acts.partition(each.by) for each in unknown.values()})
        await retry_until(
            lambda: self._stores.catch_up(partitions), on=log.LogUnavailable, pause_s=log.RETRY_S
        )
        for key, each in unknown.items():
            if not self._belongs(each):
                passages[key] = None
                with contextlib.suppress(log.AppendFailed):  # the next reader retries
                    await self._append(each.id, key, None)

    def _belongs(self, passage: acts.Passage) -> bool:
        store = self._stores.at_once(passage.id)
        return store is not None and store.owner == passage.by and passage.attachment in store.files

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _now(self, call: Callable[[], T]) -> T:
        try:
            return await self._call(call)
        except contract.Unavailable as error:
            raise errors.unavailable("The vector database does not answer.") from error

    async def _persist(self, call: Callable[[], T]) -> T:
        """Call until the database answers."""
        return await retry_until(
            lambda: self._call(call), on=contract.Unavailable, pause_s=RETRY_S, failed=_log_wait
        )


def _log_wait(error: Exception) -> None:
    telemetry.log(telemetry.Action.WAITING, part="vector database", reason=str(error))


def _where(store: acts.Store, attachments: Sequence[str]) -> contract.Where:
    return contract.Where(acts.scope(store.owner), store.id, attachments)


def _row(passage: acts.Passage) -> contract.Passage:
    return contract.Passage(
        passage.key,
        acts.scope(passage.by),
        passage.id,
        passage.attachment,
        passage.number,
        passage.text,
        passage.model,
        passage.vector,
    )
