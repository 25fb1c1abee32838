"""Where an input partition begins: at the committed position, if the log still holds it."""

from __future__ import annotations

import logging
from typing import Final, Literal

import msgspec

from pipelines import counts, definition, former_outputs, metrics
from pipelines.partition import Beginning
from tailrace import log

_logger = logging.getLogger(__name__)

_MESSAGES: Final = {
    "deleted": "%s: of partition %d the offsets from %d to %d were deleted before they were read",
    "rolled_back": "%s: partition %d does not hold what was read below offset %d: it was rolled "
    "back or made again. It is read from offset %d on; rows with an output are not asked again",
}


async def begin(
    pipeline: definition.Pipeline, number: int, offsets: log.Offsets, replays: log.Replays
) -> Beginning:
    """The committed offset. Without one, or if rows are read again, outputs may exist already: a
    gateway knows its idempotency keys for a day only.

    Raises:
        LogUnavailable, HistoryLost: try again.
    """
    topic = pipeline.input.topic
    offsets_by_partition = await offsets.committed(pipeline.group)
    first = (await offsets.beginnings(topic, [number]))[number]
    offset, metadata = offsets_by_partition.get((topic, number), (-1, ""))
    former_counts, reset = counts.decode(metadata), False
    position = log.Position(offset, log.Mark.parse(former_counts.mark))
    if offset < 0:
        if pipeline.input.start == "latest":
            return Beginning((await offsets.ends(topic, [number]))[number])
        offset = first
        former_counts = msgspec.structs.replace(former_counts, look_until=first + 1)
    elif await log.rolled_back(offsets, replays, topic, {number: position}):
        again = await _reread_offset(pipeline, number, first, former_counts, offsets)
        _report(pipeline, "rolled_back", number, offset, again)
        former_counts = msgspec.structs.replace(
            former_counts, look_until=max(former_counts.look_until, offset), mark=""
        )
        offset, reset = again, True
    elif offset < first:
        _report(pipeline, "deleted", number, offset, first)
        offset = first
    outputs = frozenset[str]()
    if offset < former_counts.look_until:
        outputs = await former_outputs.places(pipeline, number, offsets, replays)
    return Beginning(offset, former_counts, outputs, reset)


async def _reread_offset(
    pipeline: definition.Pipeline,
    number: int,
    first: int,
    former_counts: counts.Counts,
    offsets: log.Offsets,
) -> int:
    """The offset to read again from. A pipeline that began at the end must not process older
    rows."""
    if pipeline.input.start == "earliest":
        return first
    topic = pipeline.input.topic
    end = (await offsets.ends(topic, [number]))[number]
    mark = log.Mark.parse(former_counts.mark)
    if mark is None:
        return end
    return (await offsets.since(topic, [number], mark.timestamp)).get(number, end)


def _report(
    pipeline: definition.Pipeline,
    reason: Literal["deleted", "rolled_back"],
    number: int,
    offset: int,
    place: int,
) -> None:
    metrics.POSITIONS.labels(pipeline=pipeline.name, reason=reason).inc()
    _logger.warning(_MESSAGES[reason], pipeline.name, number, offset, place)
