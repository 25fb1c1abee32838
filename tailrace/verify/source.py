"""Reads a whole log: from the beginning of every partition to its end at this moment.

`llm.history` never expires. Only its records since the oldest record of `llm.tokens` are read: a
content is written after the end that it contains.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tailrace import log
from tailrace.protocol import ids, topics
from tailrace.verify import history

# Brokers that lead different partitions may have different clocks.
SLACK_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class Selection:
    """What to read. With a `rid`: only its partition, from its lower bound on.

    Attributes:
        digests: store a digest of every record, for L4.
    """

    pools: Sequence[str]
    rid: str = ""
    digests: bool = False


@dataclass(slots=True)
class Ranges:
    """The offsets of one topic, by partition: from `begin` up to `end`."""

    begin: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)


class Source:
    """Reads one history per token partition, so that memory holds only one of them."""

    def __init__(self, bootstrap: str, selection: Selection) -> None:
        self._bootstrap = bootstrap
        self._selection = selection
        self._offsets = log.Offsets(bootstrap, client_id="tailrace-verify")
        self._replays = log.Replays(bootstrap, size=1, client_id="tailrace-verify")
        self._ranges: dict[str, Ranges] = {}

    async def histories(self) -> AsyncIterator[history.History]:
        """Yield one history per token partition.

        Raises:
            log.LogUnavailable: the broker does not answer, or topics are missing.
            ids.InvalidId: `rid` is not a response id.
        """
        layout = await log.layout(self._bootstrap)
        numbers = range(layout.partitions)
        if self._selection.rid:
            numbers = range(
                (p := ids.parse(self._selection.rid, layout.partitions).partition), p + 1
            )
        requests = [
            topics.requests(pool, priority)
            for pool in self._selection.pools
            for priority in topics.CLASSES
        ]
        committed = {
            tp: at
            for pool in self._selection.pools
            for tp, at in (await self._offsets.committed(topics.group(pool))).items()
        }
        # The log may grow while it is read. Ends of effects are read before ends of their causes,
        # so that every record that a commit or a usage record refers to lies below the ends.
        tagged_topics = history.TAGGED_TOPICS if log.record_keys_in_use() else ()
        compacted_topics = (topics.HISTORY, topics.CONVERSATIONS)
        for topic in dict.fromkeys(
            (*tagged_topics, *compacted_topics, *history.SIDE_TOPICS, *requests, topics.TOKENS)
        ):
            await self._measure(topic)
        side = await self._read_side(layout.partitions)
        conversation_records = await self._read_conversations()
        since_ms = {partition: await self._oldest(partition) for partition in numbers}
        await self._shorten(min((ms for ms in since_ms.values() if ms is not None), default=None))
        for topic in tagged_topics:
            side[min(numbers)] += await self._read_forged(topic)
        for partition in numbers:
            part = history.History(
                tag=layout.tag, partitions=layout.partitions, has_usage=True, has_dead=True
            )
            part.keyed = log.record_keys_in_use()
            part.conversation_records = conversation_records
            part.digests = {} if self._selection.digests else None
            # A response is created by its request, and must know by then where the log begins.
            begin = self._ranges[topics.TOKENS].begin[partition]
            part.beginnings[(topics.TOKENS, partition)] = begin
            for topic in (*requests, topics.TOKENS):
                await self._read(part, topic, partition)
            for r in side.pop(partition, []):
                part.add(r)
            await self._read_stored(part, partition, since_ms[partition])
            part.committed = {
                tp: history.Commit(*at)
                for tp, at in committed.items()
                if tp[1] == partition and tp[0] in requests
            }
            if self._selection.rid:
                part.responses = {
                    rid: r for rid, r in part.responses.items() if rid == self._selection.rid
                }
                part.committed = {}
            yield part

    async def stop(self) -> None:
        """Close the connections."""
        await self._offsets.stop()
        await self._replays.stop()

    async def _measure(self, topic: str) -> None:
        partitions = range(await self._offsets.partitions(topic))
        self._ranges[topic] = Ranges(
            await self._offsets.beginnings(topic, partitions),
            await self._offsets.ends(topic, partitions),
        )

    async def _read(self, part: history.History, topic: str, partition: int) -> None:
        begin, end = self._ranges[topic].begin[partition], self._ranges[topic].end[partition]
        part.beginnings[(topic, partition)], part.ends[(topic, partition)] = begin, end
        start = begin
        if self._selection.rid and topic == topics.TOKENS:
            start = max(begin, ids.parse(self._selection.rid).offset)
        async for batch in self._replays.read(topic, partition, start, end):
            for r in batch:
                part.add(r)

    async def _oldest(self, partition: int) -> int | None:
        """Broker time (ms) of the first record of a token partition that is read; None: it has
        none."""
        ranges = self._ranges[topics.TOKENS]
        start, end = ranges.begin[partition], ranges.end[partition]
        if self._selection.rid:
            start = max(start, ids.parse(self._selection.rid).offset)
        if start >= end:
            return None
        async with contextlib.aclosing(
            self._replays.read(topics.TOKENS, partition, start, end)
        ) as batches:
            async for batch in batches:
                if batch:
                    return batch[0].timestamp
        return None

    async def _shorten(self, since_ms: int | None) -> None:
        """Make the ranges of `llm.history` begin where the oldest needed record may lie."""
        ranges = self._ranges[topics.HISTORY]
        if since_ms is None:
            ranges.begin = dict(ranges.end)
            return
        at = await self._offsets.since(topics.HISTORY, ranges.end, since_ms - SLACK_MS)
        for p, end in ranges.end.items():
            ranges.begin[p] = max(ranges.begin[p], min(at.get(p, end), end))

    async def _read_stored(
        self, part: history.History, partition: int, since_ms: int | None
    ) -> None:
        """The records in `llm.history` of the responses of a token partition that the log still
        has. The topic also has all others."""
        ranges = self._ranges[topics.HISTORY]
        p = partition % topics.partitions_of(topics.HISTORY)
        since = self._ranges[topics.TOKENS].begin[partition]
        if since_ms is None:
            return
        start = await self._offsets.since(topics.HISTORY, [p], since_ms - SLACK_MS)
        begin = max(ranges.begin[p], min(start.get(p, ranges.end[p]), ranges.end[p]))
        async for batch in self._replays.read(topics.HISTORY, p, begin, ranges.end[p]):
            for r in batch:
                name = history.stored_rid(r.key, part.partitions)
                if name is None or r.forgery:
                    continue
                address = name[1]
                if address.partition == partition and address.offset >= since:
                    part.add(r)

    async def _read_conversations(self) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
        """What `llm.conversations` has, by partition. It is small, and compacted."""
        ranges = self._ranges[topics.CONVERSATIONS]
        return {
            p: [
                (r.key, r.value)
                async for batch in self._replays.read(topics.CONVERSATIONS, p, begin, ranges.end[p])
                for r in batch
                if not r.forgery
            ]
            for p, begin in ranges.begin.items()
        }

    async def _read_forged(self, topic: str) -> list[log.Record]:
        ranges = self._ranges[topic]
        return [
            r
            for p, begin in ranges.begin.items()
            async for batch in self._replays.read(topic, p, begin, ranges.end[p])
            for r in batch
            if r.forgery
        ]

    async def _read_side(self, partitions: int) -> dict[int, list[log.Record]]:
        """Records of topics with partitions of their own, by token partition."""
        by_partition: dict[int, list[log.Record]] = defaultdict(list)
        for topic in history.SIDE_TOPICS:
            for p, begin in self._ranges[topic].begin.items():
                async for batch in self._replays.read(topic, p, begin, self._ranges[topic].end[p]):
                    for r in batch:
                        record = history.side_records(r)
                        with contextlib.suppress(ids.InvalidId):
                            by_partition[
                                ids.parse(record.rid, partitions).partition if record else 0
                            ].append(r)
        return by_partition
