"""The responses of an idempotency key, from the log alone (log rule §10).

With a key, the partition is a hash of (principal, key). So the order in one request partition tells
which request was first, and all gateways agree. A gateway reads a partition once, from the first
unfinished request or `RECENT` records back, whichever is earlier. From then on it reads only new
records.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import Final

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import commits, records, topics

# Finished requests to read back. A retry follows the first attempt within seconds or minutes.
RECENT: Final = 1_000
# Bound on the memory of all partitions. Above it the oldest keys are dropped. Each partition may
# keep `RECENT` keys in any case.
MAX_BYTES: Final = 16 << 20
RID_BYTES: Final = 350  # measured: a key with one response
MAX_RIDS: Final = 16  # per key, of requests that raced; the first one is valid
_FIELD: Final = b'"idempotency_key"'  # nearly every request has none, and need not be decoded

Key = tuple[records.Owner, str]


def _digest(key: Key) -> bytes:
    """A key in a fixed size: names may be long, and there are thousands of keys."""
    owner, client_key = key
    return hashlib.blake2b(f"{owner.key}|{client_key}".encode(), digest_size=16).digest()


@dataclass(slots=True)
class _Partition:
    """



    Attributes:
        position: next offset to read; -1 before the first read.
        rids: responses by digest of a key, in log order, each once; both bounded.
        count: number of responses in `rids`.
        lock: one read at a time, so that each record is folded once.
    """

    position: int = -1
    rids: dict[bytes, list[str]] = field(default_factory=dict)
    count: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, record: log.Record, limit: int) -> None:
        """Add the record, and drop the oldest keys above `limit` responses."""
        self.position = record.offset + 1
        if record.value is None or _FIELD not in record.value:
            return
        request = records.decode_request(record.value)
        if request is None or request.idempotency_key is None or record.key != request.rid.encode():
            return
        if request.late(record.timestamp):
            return
        rids = self.rids.setdefault(_digest((request.owner, request.idempotency_key)), [])
        # An ambiguous append is repeated under the same id.
        if request.rid not in rids and len(rids) < MAX_RIDS:
            rids.append(request.rid)
            self.count += 1
        while self.count > limit:
            self.count -= len(self.rids.pop(next(iter(self.rids))))


class IdempotencyIndex:
    """Folds the request partitions of keys."""

    def __init__(self, offsets: interfaces.OffsetQueries, replays: interfaces.RangeReader) -> None:
        self._offsets = offsets
        self._replays = replays
        self._partitions: dict[tuple[str, int], _Partition] = {}

    async def rids(
        self, pool: str, priority: topics.PriorityClass, partition: int, key: Key, end: int = -1
    ) -> list[str]:
        """Responses of `key`, oldest first, from all records below `end` (-1: the log's present
        end).

        Raises:
            log.LogUnavailable
        """
        topic = topics.requests(pool, priority)
        state = self._partitions.setdefault((topic, partition), _Partition())
        async with state.lock:
            if end < 0:
                end = (await self._offsets.ends(topic, [partition]))[partition]
            try:
                await self._read(state, pool, topic, partition, end)
            except log.HistoryLost as error:  # retention passed the offset in between
                state.position = -1
                raise log.LogUnavailable(str(error)) from error
            return list(state.rids.get(_digest(key), ()))

    async def stop(self) -> None:
        """Close the connections."""
        await self._replays.stop()
        await self._offsets.stop()

    async def _read(
        self, state: _Partition, pool: str, topic: str, partition: int, end: int
    ) -> None:
        if state.position < 0 or end - state.position > RECENT:
            state.position = max(state.position, await self._start(pool, topic, partition, end))
        async with contextlib.aclosing(
            self._replays.read(topic, partition, state.position, end)
        ) as batches:
            limit = max(RECENT, MAX_BYTES // RID_BYTES // len(self._partitions))
            async for batch in batches:
                for record in batch:
                    state.add(record, limit)

    async def _start(self, pool: str, topic: str, partition: int, end: int) -> int:
        """Finished requests lie below the committed offset, so this covers every running one."""
        begin = (await self._offsets.beginnings(topic, [partition]))[partition]
        committed = (await self._offsets.committed(topics.group(pool))).get((topic, partition))
        return max(begin, min(commits.finished_below(committed), end - RECENT))
