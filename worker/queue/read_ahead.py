"""How far a worker reads ahead of its engine, so that no principal hides another (pure).

Requests lie in a partition in the order in which they were sent. A worker that read only what its
engine can run would never see the requests after one principal's flood. So it reads further, and
holds of each principal (and class) only as many requests as the engine could run. Further requests
are *set aside*: only their offsets are held, and they are read again when their principal has room.
"""

from __future__ import annotations

import collections
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.protocol import topics
from worker.queue.commit_tracker import Tracker

# Record bytes in memory: of one principal and class, and in total.
FLOW_BYTES: Final = 8 << 20
ALL_BYTES: Final = 32 << 20
# Requests in memory, in total; batch requests may use half of it, and half of the bytes.
MAX_IN_MEMORY: Final = 2_000
# Offsets set aside, in total (250 bytes each). Above the first limit reading stops. Above the
# second one batch requests are not read, so that interactive ones are seen.
MAX_ASIDE: Final = 20_000
MAX_BATCH_ASIDE: Final = 10_000
# Offsets that one read covers when requests are read again.
MAX_SPAN: Final = 500


class Key(NamedTuple):
    """One principal's requests of one class."""

    topic: str
    principal: str


class Footprint(NamedTuple):
    """A request in memory that has or will want an engine slot."""

    key: Key
    size: int


@dataclass(frozen=True, slots=True)
class Aside:
    """A request that was set aside: its id, where it lies, its cost in tokens, and the assignment
    under which it was read."""

    rid: str
    partition: int
    offset: int
    size: int
    cost: float
    tracker: Tracker


class Overflow(NamedTuple):
    """Requests of one topic that are not in memory. `aside`: cost of those that were set aside, in
    tokens, by principal; `unread`: number of those that were not read."""

    aside: Mapping[str, float]
    unread: int


@dataclass(slots=True)
class Room:
    """How much is in memory now.

    Attributes:
        each: most requests of one principal and class.
        counts, sizes: requests and record bytes in memory, by principal and class.
        total, total_bytes: their sums.
    """

    each: int
    counts: Counter[Key] = field(default_factory=Counter)
    sizes: Counter[Key] = field(default_factory=Counter)
    total: int = 0
    total_bytes: int = 0

    @classmethod
    def after(cls, each: int, footprints: Iterable[Footprint]) -> Room:
        """The room that remains with these requests in memory."""
        room = cls(each)
        for one in footprints:
            room.add(one.key, one.size)
        return room

    def admits(self, key: Key, size: int) -> bool:
        """Whether one more request fits. The first one of a principal always does."""
        count, part = self.counts[key], 0.5 if topics.class_of(key.topic) == "batch" else 1.0
        return count == 0 or (
            count < self.each
            and self.sizes[key] + size <= FLOW_BYTES
            and self.total < part * MAX_IN_MEMORY
            and self.total_bytes + size <= part * ALL_BYTES
        )

    def add(self, key: Key, size: int) -> None:
        """One more is in memory."""
        self.counts[key] += 1
        self.sizes[key] += size
        self.total += 1
        self.total_bytes += size


class Reread(NamedTuple):
    """Requests of one principal to be read again, from one partition, oldest first."""

    key: Key
    partition: int
    requests: list[Aside]


class SetAside:
    """Requests that were set aside, by principal and class, oldest first."""

    def __init__(self) -> None:
        self._places: dict[Key, collections.deque[Aside]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, key: Key) -> bool:
        """Whether requests of the key are here; then its later ones are set aside too."""
        return key in self._places

    def add(self, key: Key, place: Aside) -> None:
        """Append after the others of its key."""
        self._places.setdefault(key, collections.deque()).append(place)
        self._length += 1

    def costs(self, topic: str) -> dict[str, float]:
        """Cost of the requests of a topic, in tokens, by principal."""
        return {
            key.principal: sum(place.cost for place in places)
            for key, places in self._places.items()
            if key.topic == topic
        }

    def waiting(self, topic: str) -> dict[str, Iterator[tuple[str, float]]]:
        """Ids and costs of the requests of a topic, by principal, oldest first."""
        return {
            key.principal: ((place.rid, place.cost) for place in places)
            for key, places in self._places.items()
            if key.topic == topic
        }

    def drop_revoked(self) -> None:
        """Drop requests of assignments that have ended: the present owner reads them."""
        for key, places in list(self._places.items()):
            valid = collections.deque(each for each in places if each.tracker.valid)
            self._length -= len(places) - len(valid)
            if valid:
                self._places[key] = valid
            else:
                del self._places[key]

    def next_reread(self, room: Room) -> Reread | None:
        """The requests to read again now, of the principal with the fewest in memory. None while no
        principal has a quarter of its room free. They move from here into `room`."""
        few = room.each - room.each // 4
        roomy = [
            key
            for key, places in self._places.items()
            if room.counts[key] <= few and room.admits(key, places[0].size)
        ]
        if not roomy:
            return None
        key = min(roomy, key=lambda each: room.counts[each])
        places = self._places[key]
        first, requests = places[0], []
        while (
            places
            and places[0].partition == first.partition
            and places[0].offset < first.offset + MAX_SPAN
            and room.admits(key, places[0].size)
        ):
            room.add(key, places[0].size)
            requests.append(places.popleft())
        self._length -= len(requests)
        if not places:
            del self._places[key]
        return Reread(key, first.partition, requests)

    def put_back(self, key: Key, requests: Sequence[Aside]) -> None:
        """They could not be read: insert before the others of their key."""
        if requests:
            self._places.setdefault(key, collections.deque()).extendleft(reversed(requests))
            self._length += len(requests)
