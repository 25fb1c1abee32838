"""Copies deletions to `llm.deletions` from `llm.conversations`, where version 0.1 wrote them.

A deletion must not be undone by an upgrade. Gateways of the older version may still write when the
new topic already exists, so each run of `tailrace topics apply` copies the missing deletions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final

from tailrace.log import compacted, offsets, readers
from tailrace.protocol import log_words, records, topics

# An hour less than the topic's retention: no record of it is deleted while it is read.
_COPIED_MS: Final = topics.DELETION_MS - topics.HOUR_MS
# Each batch has a deadline of its own.
_BATCH: Final = 500


async def copy_deletions(bootstrap: str) -> int:
    """Append to `llm.deletions` the deletions of the last two days that only `llm.conversations`
    has. Returns their number.

    Raises:
        LogUnavailable
    """
    queries, replays = offsets.Offsets(bootstrap), readers.Replays(bootstrap, size=1)
    try:
        present = {deletion async for deletion in _deletions(queries, replays, topics.DELETIONS)}
        missing: dict[int, list[records.Deleted]] = defaultdict(list)
        async for deletion in _deletions(queries, replays, topics.CONVERSATIONS):
            if deletion not in present:
                present.add(deletion)
                missing[topics.partition_of(topics.DELETIONS, deletion.rid)].append(deletion)
    except log_words.HistoryLost as error:  # somebody emptied the topic meanwhile
        raise log_words.LogUnavailable(f"deletions could not be copied: {error}") from error
    finally:
        await queries.stop()
        await replays.stop()
    for partition, deletions in missing.items():
        for n in range(0, len(deletions), _BATCH):
            batch = [
                (each.rid.encode(), records.encode(each)) for each in deletions[n : n + _BATCH]
            ]
            await compacted.append(bootstrap, topics.DELETIONS, batch, partition)
    return sum(map(len, missing.values()))


async def _deletions(
    queries: offsets.Offsets, replays: readers.Replays, topic: str
) -> AsyncIterator[records.Deleted]:
    partitions = range(await queries.partitions(topic))
    begins = await queries.since(topic, partitions, int(time.time() * 1000) - _COPIED_MS)
    ends = await queries.ends(topic, partitions)
    for partition, begin in begins.items():
        async for batch in replays.read(topic, partition, begin, ends[partition]):
            for r in batch:
                deletion = records.deletion_of(r.key, r.value)
                if deletion is not None:
                    yield deletion
