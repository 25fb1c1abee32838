"""Whether the topics of pools exist."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import topics


async def check(offsets: interfaces.OffsetQueries, pools: Sequence[str]) -> None:
    """Check that requests of these pools can be appended and read.

    Raises:
        ValueError: a topic is missing, or the broker does not answer.
    """
    for pool in pools:
        for priority in topics.CLASSES:
            try:
                await offsets.partitions(topics.requests(pool, priority))
            except log.LogUnavailable as error:
                raise ValueError(
                    f"pool {pool}: {error}: run `tailrace topics apply --pool {pool}`"
                ) from error
