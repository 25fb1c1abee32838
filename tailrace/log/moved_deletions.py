"""Copies deletions to `llm.deletions` from `llm.conversations`, where version 0.1 wrote them.

A deletion must not be undone by an upgrade. Gateways of the older version may still write while
the new topic is there already, so `tailrace topics apply` copies at each run what is missing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final

from tailrace.log import compacted, offsets, readers
from tailrace.protocol import log_words, records, topics

# An hour less than the topic keeps: nothing of it is cleaned up while it is read.
_COPIED_MS: Final = topics.DELETION_MS - topics.HOUR_MS
# With one deadline for each batch, not for all that there is.
_BATCH: Final = 500


async def copy_deletions(bootstrap: str) -> int:
    """Append to `llm.deletions` what only `llm.conversations` has of the last two days. Returns how
    many deletions.

    Raises:
        LogUnavailable
    """
    asking, replays = offsets.Offsets(bootstrap), readers.Replays(bootstrap, size=1)
    try:
        there = {deleted async for deleted in _deletions(asking, replays, topics.DELETIONS)}
        missing: dict[int, list[records.Deleted]] = defaultdict(list)
        async for deleted in _deletions(asking, replays, topics.CONVERSATIONS):
            if deleted not in there:
                there.add(deleted)
                missing[topics.partition_of(topics.DELETIONS, deleted.rid)].append(deleted)
    except log_words.HistoryLost as error:  # somebody emptied the topic meanwhile
        raise log_words.LogUnavailable(f"deletions could not be copied: {error}") from error
    finally:
        await asking.stop()
        await replays.stop()
    for partition, found in missing.items():
        for n in range(0, len(found), _BATCH):
            batch = [(each.rid.encode(), records.encode(each)) for each in found[n : n + _BATCH]]
            await compacted.append(bootstrap, topics.DELETIONS, batch, partition)
    return sum(map(len, missing.values()))


async def _deletions(
    asking: offsets.Offsets, replays: readers.Replays, topic: str
) -> AsyncIterator[records.Deleted]:
    partitions = range(await asking.partitions(topic))
    begins = await asking.since(topic, partitions, int(time.time() * 1000) - _COPIED_MS)
    ends = await asking.ends(topic, partitions)
    for partition, begin in begins.items():
        async for batch in replays.read(topic, partition, begin, ends[partition]):
            for r in batch:
                deleted = records.deletion_of(r.key, r.value)
                if deleted is not None:
                    yield deleted
