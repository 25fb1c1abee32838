"""Feeds: what an owner's devices must know to stay in step, live and from a position on.

One tail of each topic serves all feeds of a process. A feed that begins at a position reads ranges
beside the tails until it has all that they returned, and is served by them from then on. What
several feeds of one owner are told is encoded once, and kept once.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from typing import Final

from tailrace import log, telemetry
from tailrace.delivery import outbox
from tailrace.delivery.persist import persist
from tailrace.delivery.turns import Turns
from tailrace.fair_queue import flow_of
from tailrace.log import interfaces
from tailrace.protocol import activity, conversations, errors, feed, records, topics

NAME: Final = "feed"  # in the place of a response id
READING: Final = 1  # feeds that catch up at once: replays of responses use the same connections
STRETCH: Final = 20_000  # records until the next one in line has its turn
FULL_BYTES: Final = 256 << 10  # a feed that catches up waits for its reader
SLOW_BYTES: Final = 1 << 20
REMEMBERED: Final = 500  # notices of a feed whose copies are told from new ones
QUIET: Final = 1_000  # records of others behind which a feed tells how far it is
MOST: Final = 32  # feeds of one owner in this process
RETRY_AFTER_S: Final = 1.0
BATCH: Final = 200


# What feeds at these offsets were told of one record, which has one owner.
Made = dict[tuple[int, int], feed.Event]


class Subscription:
    """One feed of one device.

    Attributes:
        owner: whose it is.
        partition: where the owner's records are.
        live: the tails serve it.
        _at: the offset behind what it has of each topic, in the order of `feed.TOPICS`.
        _events: what its reader has not taken; `_size` bytes. `_since`: since when it took nothing.
        _told: the position of the last event.
        _failed: what ended it, of itself.
        _known: notices that it had, the last one last.
    """

    ended: Final = False
    status: Final = "in_progress"
    rid: Final = NAME

    def __init__(
        self,
        owner: records.Owner,
        log_tag: bytes,
        at: tuple[int, int],
        on_close: Callable[[Subscription], None],
        on_ready: Callable[[], None] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.owner = owner
        self.partition = conversations.partition(owner)
        self.live = False
        self._log = log_tag
        self._at = list(at)
        self._on_close = on_close
        self._on_ready = on_ready
        self._events: collections.deque[feed.Event] = collections.deque()
        self._size = 0
        self._since = 0.0
        self._clock = clock
        self._told = sum(at)
        self._failed: BaseException | None = None
        self._known: collections.OrderedDict[tuple[type, str], None] = collections.OrderedDict()
        self._woken = asyncio.Event()
        self._room = asyncio.Event()
        self._keepalive_due = False
        self._slow = False
        self._closed = False
        self.task: asyncio.Task[None] | None = None

    @property
    def position(self) -> feed.Position:
        """Behind all that it has."""
        return feed.Position(self._log, (self._at[0], self._at[1]))

    @property
    def ready(self) -> bool:
        """Whether `pending` returns something or raises."""
        return bool(self._events) or self._slow or self._failed is not None

    def pending(self) -> list[feed.Event]:
        """What has arrived, a bounded batch.

        Raises:
            outbox.Slow: its reader took nothing while too much arrived. It resumes by its position.
            Exception: it could not go on.
        """
        if self._slow:
            raise outbox.Slow
        if self._failed is not None:
            raise self._failed
        self._since = self._clock()
        found = [self._events.popleft() for _ in range(min(BATCH, len(self._events)))]
        self._size -= sum(len(each.body) for each in found)
        if self._size < FULL_BYTES:
            self._room.set()
        return found

    async def next_events(self) -> list[feed.Event]:
        """Wait for events; empty when a keep-alive is due. Raises like `pending`."""
        while True:
            found = self.pending()
            if found or self._keepalive_due:
                self._keepalive_due = False
                return found
            self._woken.clear()
            await self._woken.wait()

    def keepalive(self) -> None:
        """Have a waiting `next_events` return."""
        self._keepalive_due = True
        self._woken.set()

    def close(self) -> None:
        """End it; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_ready = None
        if self.task is not None:
            self.task.cancel()
        self._on_close(self)

    @property
    def full(self) -> bool:
        """Whether its reader has to take something before more is read for it."""
        return self._size >= FULL_BYTES

    async def room(self) -> None:
        """Return when its reader has taken enough for more."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def take(self, index: int, record: log.Record, made: Made | None = None) -> None:
        """A record of the topic number `index`, of its partition."""
        if record.offset < self._at[index]:
            return
        self._at[index] = record.offset + 1
        told = self._of(record)
        if told is None:
            return
        kind, fields = told
        at = self.position
        event = made.get(at.offsets) if made is not None else None
        if event is None:
            event = feed.event(kind, at, **fields)
        if made is not None:
            made[at.offsets] = event
        self._put(event)

    def passed(self, index: int, offset: int) -> None:
        """Below this offset it has all of the topic number `index`. A device that is told nothing
        for long learns how far it is, so that it does not read all of that again."""
        self._at[index] = max(self._at[index], offset)
        if self.live and sum(self._at) - self._told >= QUIET:
            self._put(feed.event("feed.position", self.position))

    def fail(self, error: BaseException) -> None:
        """It cannot go on: its reader is told."""
        self._failed = error
        self._wake()

    def begin(self, at: tuple[int, int], *, reset: bool = False) -> None:
        """From now on the tails serve it. `reset`: what came before is not known any more."""
        self._at = list(at)
        self.live = True
        self._put(feed.event("feed.reset" if reset else "feed.ready", self.position))

    def _of(self, record: log.Record) -> tuple[str, dict[str, object]] | None:
        if record.forgery or record.value is None:
            return None
        if record.topic == topics.CONVERSATIONS:
            act = conversations.decode(record.key, record.value)
            return feed.act_event(act) if act is not None and act.by == self.owner else None
        notice = activity.decode(record.key, record.value)
        if notice is None or notice.owner != self.owner:
            return None
        known = type(notice), notice.rid
        # A worker that stalled may say late that it has begun with what has ended.
        if known in self._known or (activity.Ended, notice.rid) in self._known:
            return None
        self._known[known] = None
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return feed.notice_event(notice)

    def _put(self, event: feed.Event) -> None:
        now = self._clock()
        if not self._events:
            self._since = now
        self._events.append(event)
        self._size += len(event.body)
        self._told = sum(self._at)
        # One fetch can bring more than the bound, which says nothing about the reader.
        if self.live and self._size > SLOW_BYTES and now - self._since > outbox.SLOW_AFTER_S:
            self._slow = True
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        if self._on_ready is not None:
            self._on_ready()


class Feeds:
    """All feeds of a process.

    Attributes:
        _open: by partition.
        _of: how many an owner has; one without any has no entry.
        _turns: turns at the replays, between principals.
    """

    def __init__(
        self,
        tag: bytes,
        readers: Mapping[str, interfaces.TailReader],
        offsets: interfaces.OffsetQueries,
        ranges: interfaces.RangeReader,
    ) -> None:
        """`tag`: of the log. `readers`: one for each of `feed.TOPICS`."""
        self._tag = tag
        self._readers = [readers[topic] for topic in feed.TOPICS]
        self._offsets = offsets
        self._ranges = ranges
        self._open: dict[int, set[Subscription]] = {}
        self._of: collections.Counter[records.Owner] = collections.Counter()
        self._turns = Turns(READING)
        self._following = asyncio.Lock()

    async def run(self) -> None:
        """Serve feeds until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(len(feed.TOPICS)):
                    tasks.create_task(self._tail(index))
        finally:
            for reader in self._readers:
                with contextlib.suppress(Exception):
                    await reader.stop()

    def watch(
        self,
        owner: records.Owner,
        after: feed.Position | None,
        on_ready: Callable[[], None] | None = None,
    ) -> Subscription:
        """A feed of the owner: all behind `after`, then what comes; without, what comes from now
        on. The caller closes it.

        Raises:
            errors.ApiError: 429, the owner has too many here.
        """
        if self._of[owner] >= MOST:
            raise errors.too_many_feeds(MOST, RETRY_AFTER_S)
        at = after.offsets if after is not None else (0, 0)
        made = Subscription(owner, self._tag, at, self._closed, on_ready)
        self._open.setdefault(made.partition, set()).add(made)
        self._of[owner] += 1
        telemetry.FEEDS.inc()
        made.task = asyncio.create_task(self._begin(made, after))
        made.task.add_done_callback(functools.partial(_seen, made))
        return made

    def _closed(self, subscription: Subscription) -> None:
        telemetry.FEEDS.dec()
        self._of[subscription.owner] -= 1
        if not self._of[subscription.owner]:
            del self._of[subscription.owner]
        mine = self._open.get(subscription.partition, set())
        mine.discard(subscription)
        if not mine:
            self._open.pop(subscription.partition, None)
            self._leave(subscription.partition)

    def _leave(self, partition: int) -> None:
        for reader in self._readers:
            if reader.follows(partition):
                reader.leave(partition)

    async def _begin(self, made: Subscription, after: feed.Position | None) -> None:
        now = await self._followed(made.partition)
        if after is None:
            made.begin(now)
            return
        if after.log != self._tag or await self._beyond(made.partition, after.offsets, now):
            made.begin(await self._followed(made.partition), reset=True)
            return
        try:
            await self._catch_up(made)
        except log.HistoryLost:
            made.begin(await self._followed(made.partition), reset=True)
        else:
            # Nothing awaits between the last look at the tails and this.
            made.begin(made.position.offsets)

    async def _beyond(self, partition: int, at: tuple[int, int], tails: tuple[int, int]) -> bool:
        """Whether a position is behind the log's end. Another process may have told what the tails
        of this one do not have yet."""
        for index, mine in enumerate(at):
            if mine > tails[index] and mine > await self._end(index, partition):
                return True
        return False

    async def _followed(self, partition: int) -> tuple[int, int]:
        """The positions of the tails in this partition, which they follow from now on."""
        while True:
            async with self._following:
                for index, reader in enumerate(self._readers):
                    if not reader.follows(partition):
                        end = await self._end(index, partition)
                        reader.follow(partition, end)
            first, second = self._readers
            if first.follows(partition) and second.follows(partition):
                return first.next_offset(partition), second.next_offset(partition)

    async def _end(self, index: int, partition: int) -> int:
        topic = feed.TOPICS[index]
        ends = await persist(lambda: self._offsets.ends(topic, [partition]))
        return ends[partition]

    async def _catch_up(self, made: Subscription) -> None:
        """Read up to where the tails are. Raises log.HistoryLost."""
        while True:
            targets = await self._followed(made.partition)
            behind = [i for i, at in enumerate(made.position.offsets) if at < targets[i]]
            if not behind:
                return
            for index in behind:
                start = made.position.offsets[index]
                stop = min(start + STRETCH, targets[index])
                # Outside of the turn: a slow reader must not hold up the others.
                await made.room()
                async with self._turns.take(flow_of(made.owner), stop - start):
                    read = functools.partial(self._read, made, index, start, stop)
                    whole = await persist(read)
                if whole:
                    made.passed(index, stop)

    async def _read(self, made: Subscription, index: int, start: int, stop: int) -> bool:
        """Read a stretch. Returns whether all of it was read; not where `made` is full."""
        begin = max(start, made.position.offsets[index])
        async with contextlib.aclosing(
            self._ranges.read(feed.TOPICS[index], made.partition, begin, stop)
        ) as batches:
            async for batch in batches:
                telemetry.REPLAYED_RECORDS.inc(len(batch))
                for record in batch:
                    made.take(index, record)
                    if made.full:
                        return False
        return True

    async def _tail(self, index: int) -> None:
        reader = self._readers[index]
        while True:
            try:
                batch = await persist(reader.poll)
            except log.HistoryLost:
                await self._begin_anew(index)
                continue
            for record in batch:
                made: Made = {}
                for each in self._open.get(record.partition, ()):
                    if each.live:
                        each.take(index, record, made)
            for partition, mine in self._open.items():
                if reader.follows(partition):
                    for each in mine:
                        if each.live:
                            each.passed(index, reader.next_offset(partition))

    async def _begin_anew(self, index: int) -> None:
        """The topic was cut above a position."""
        for partition in list(self._open):
            self._readers[index].follow(partition, await self._end(index, partition))
            now = await self._followed(partition)
            if partition not in self._open:  # the last was closed meanwhile
                self._leave(partition)
            for each in self._open.get(partition, ()):
                if each.live:
                    each.begin(now, reset=True)


def _seen(made: Subscription, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        telemetry.log(telemetry.Action.TASK_FAILED, exc_info=error)
        made.fail(error)
