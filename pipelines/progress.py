"""The progress of a pipeline, by the committed offsets of its group; needs no runner."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from pipelines import counts, definition
from tailrace.log import Offsets

WATCH_S: Final = 3.0  # between the two reads that give the rate


class Place(NamedTuple):
    """One input partition: `committed` is the next offset; without a commit, the one where a runner
    would begin."""

    committed: int
    end: int
    done: counts.Counts


class Progress(NamedTuple):
    """All partitions together. `rate`: rows per second, None where it was not measured."""

    by_partition: dict[int, Place]
    rate: float | None = None

    @property
    def done(self) -> counts.Counts:
        """What was done."""
        total = counts.Counts()
        for place in self.by_partition.values():
            total = total.plus(place.done)
        return total

    @property
    def lag(self) -> int:
        """Offsets that are not committed. Some of them are not records if the input is written in
        transactions."""
        return sum(place.end - place.committed for place in self.by_partition.values())

    @property
    def eta_s(self) -> float | None:
        """Seconds until the lag is gone at this rate, without new records."""
        return self.lag / self.rate if self.rate else None

    def members(self) -> dict[str, Any]:
        """For programs."""
        done = self.done
        return {
            **{name: getattr(done, name) for name in counts.SUMS},
            "lag": self.lag,
            "rows_per_s": None if self.rate is None else round(self.rate, 2),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
            "partitions": {
                number: {"committed": place.committed, "end": place.end}
                for number, place in self.by_partition.items()
            },
        }


async def read(pipeline: definition.Pipeline, offsets: Offsets) -> Progress:
    """Where the pipeline is. Raises LogUnavailable."""
    topic = pipeline.input.topic
    numbers = range(await offsets.partitions(topic))
    committed_offsets = await offsets.committed(pipeline.group)
    begins, ends = await offsets.beginnings(topic, numbers), await offsets.ends(topic, numbers)
    places = {}
    for number in numbers:
        first = begins if pipeline.input.start == "earliest" else ends
        offset, metadata = committed_offsets.get((topic, number), (first[number], ""))
        place = min(max(offset, begins[number]), ends[number])
        places[number] = Place(place, ends[number], counts.decode(metadata))
    return Progress(places)


async def read_with_rate(pipeline: definition.Pipeline, offsets: Offsets) -> Progress:
    """Like `read`, with the rate of the next WATCH_S seconds. Raises LogUnavailable."""
    before = await read(pipeline, offsets)
    await asyncio.sleep(WATCH_S)
    after = await read(pipeline, offsets)
    return after._replace(rate=max(0, after.done.read - before.done.read) / WATCH_S)
