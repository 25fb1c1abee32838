"""Feeds: events that keep an owner's devices in step, live and from a position on.

One tail of each topic serves all feeds of a process. A feed that begins at a position first reads
ranges of the log until it has caught up with the tails, and is served by them from then on. An
event for several feeds of one owner is encoded once and stored once.
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
MAX_NOTICES: Final = 500  # notices of a feed by which copies are recognised
QUIET: Final = 1_000  # records of others after which a feed sends its position
MOST: Final = 32  # feeds of one owner in this process
RETRY_AFTER_S: Final = 1.0
BATCH: Final = 200


# By feed position, the event of one record, which has one owner.
EventCache = dict[tuple[int, int], feed.Event]


class Subscription:
    """One feed of one device.

    Attributes:
        owner: whose it is.
        partition: where the owner's records are.
        live: the tails serve it.
        _at: its next offset in each topic, in the order of `feed.TOPICS`.
        _events: events that its reader has not read; `_size` bytes. `_since`: of the last read.
        _last_position: the position of the last event.
        _failed: the error that ended it.
        _notices: its notices, the newest last.
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
        self._last_position = sum(at)
        self._failed: BaseException | None = None
        self._notices: collections.OrderedDict[tuple[type, str], None] = collections.OrderedDict()
        self._woken = asyncio.Event()
        self._space = asyncio.Event()
        self._keepalive_due = False
        self._slow = False
        self._closed = False
        self.task: asyncio.Task[None] | None = None

    @property
    def position(self) -> feed.Position:
        """The position after its last record."""
        return feed.Position(self._log, (self._at[0], self._at[1]))

    @property
    def ready(self) -> bool:
        """Whether `pending` returns something or raises."""
        return bool(self._events) or self._slow or self._failed is not None

    def pending(self) -> list[feed.Event]:
        """The events that have arrived, a bounded batch.

        Raises:
            outbox.Slow: its reader read nothing while too much arrived. It resumes by its position.
            Exception: the feed failed.
        """
        if self._slow:
            raise outbox.Slow
        if self._failed is not None:
            raise self._failed
        self._since = self._clock()
        batch = [self._events.popleft() for _ in range(min(BATCH, len(self._events)))]
        self._size -= sum(len(each.body) for each in batch)
        if self._size < FULL_BYTES:
            self._space.set()
        return batch

    async def next_events(self) -> list[feed.Event]:
        """Wait for events; empty when a keep-alive is due. Raises like `pending`."""
        while True:
            batch = self.pending()
            if batch or self._keepalive_due:
                self._keepalive_due = False
                return batch
            self._woken.clear()
            await self._woken.wait()

    def keepalive(self) -> None:
        """Wake a waiting `next_events`, so that it returns."""
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
        """Whether its reader has to read before more records are read for it."""
        return self._size >= FULL_BYTES

    async def wait_for_space(self) -> None:
        """Return when its reader has read enough to make space."""
        while self.full:
            self._space.clear()
            await self._space.wait()

    def add(self, index: int, record: log.Record, cache: EventCache | None = None) -> None:
        """A record of the topic number `index`, of its partition."""
        if record.offset < self._at[index]:
            return
        self._at[index] = record.offset + 1
        typed_fields = self._of(record)
        if typed_fields is None:
            return
        kind, fields = typed_fields
        at = self.position
        event = cache.get(at.offsets) if cache is not None else None
        if event is None:
            event = feed.event(kind, at, **fields)
        if cache is not None:
            cache[at.offsets] = event
        self._put(event)

    def advance(self, index: int, offset: int) -> None:
        """Below this offset it has all of the topic number `index`. A device without events for
        long gets its position, so that it does not read all of that again."""
        self._at[index] = max(self._at[index], offset)
        if self.live and sum(self._at) - self._last_position >= QUIET:
            self._put(feed.event("feed.position", self.position))

    def fail(self, error: BaseException) -> None:
        """End it with an error, which its reader gets."""
        self._failed = error
        self._wake()

    def begin(self, at: tuple[int, int], *, reset: bool = False) -> None:
        """From now on the tails serve it. `reset`: its former events are incomplete."""
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
        key = type(notice), notice.rid
        # A worker that stalled may write STARTED after the response has ended.
        if key in self._notices or (activity.Ended, notice.rid) in self._notices:
            return None
        self._notices[key] = None
        if len(self._notices) > MAX_NOTICES:
            self._notices.popitem(last=False)
        return feed.notice_event(notice)

    def _put(self, event: feed.Event) -> None:
        now = self._clock()
        if not self._events:
            self._since = now
        self._events.append(event)
        self._size += len(event.body)
        self._last_position = sum(self._at)
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
        _of: the number of feeds by owner; an owner without one has no entry.
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
        """A feed of the owner: all events after `after`, then new ones; without `after`, only new
        ones. The caller closes it.

        Raises:
            errors.ApiError: 429, the owner has too many here.
        """
        if self._of[owner] >= MOST:
            raise errors.too_many_feeds(MOST, RETRY_AFTER_S)
        at = after.offsets if after is not None else (0, 0)
        subscription = Subscription(owner, self._tag, at, self._closed, on_ready)
        self._open.setdefault(subscription.partition, set()).add(subscription)
        self._of[owner] += 1
        telemetry.FEEDS.inc()
        subscription.task = asyncio.create_task(self._begin(subscription, after))
        subscription.task.add_done_callback(functools.partial(_on_done, subscription))
        return subscription

    def _closed(self, subscription: Subscription) -> None:
        telemetry.FEEDS.dec()
        self._of[subscription.owner] -= 1
        if not self._of[subscription.owner]:
            del self._of[subscription.owner]
        subscriptions = self._open.get(subscription.partition, set())
        subscriptions.discard(subscription)
        if not subscriptions:
            self._open.pop(subscription.partition, None)
            self._leave(subscription.partition)

    def _leave(self, partition: int) -> None:
        for reader in self._readers:
            if reader.follows(partition):
                reader.leave(partition)

    async def _begin(self, subscription: Subscription, after: feed.Position | None) -> None:
        now = await self._follow(subscription.partition)
        if after is None:
            subscription.begin(now)
            return
        if after.log != self._tag or await self._past_end(
            subscription.partition, after.offsets, now
        ):
            subscription.begin(await self._follow(subscription.partition), reset=True)
            return
        try:
            await self._catch_up(subscription)
        except log.HistoryLost:
            subscription.begin(await self._follow(subscription.partition), reset=True)
        else:
            # Nothing awaits between the last read of the tails' positions and this.
            subscription.begin(subscription.position.offsets)

    async def _past_end(self, partition: int, at: tuple[int, int], tails: tuple[int, int]) -> bool:
        """Whether a position is after the log's end. Another process may have sent events that the
        tails of this one do not have yet."""
        for index, offset in enumerate(at):
            if offset > tails[index] and offset > await self._end(index, partition):
                return True
        return False

    async def _follow(self, partition: int) -> tuple[int, int]:
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

    async def _catch_up(self, subscription: Subscription) -> None:
        """Read up to the positions of the tails. Raises log.HistoryLost."""
        while True:
            targets = await self._follow(subscription.partition)
            lagging = [i for i, at in enumerate(subscription.position.offsets) if at < targets[i]]
            if not lagging:
                return
            for index in lagging:
                start = subscription.position.offsets[index]
                stop = min(start + STRETCH, targets[index])
                # Outside of the turn: a slow reader must not hold up the others.
                await subscription.wait_for_space()
                async with self._turns.acquire(flow_of(subscription.owner), stop - start):
                    read = functools.partial(self._read, subscription, index, start, stop)
                    complete = await persist(read)
                if complete:
                    subscription.advance(index, stop)

    async def _read(self, subscription: Subscription, index: int, start: int, stop: int) -> bool:
        """Read a stretch. Returns whether all of it was read; not if the subscription is full."""
        begin = max(start, subscription.position.offsets[index])
        async with contextlib.aclosing(
            self._ranges.read(feed.TOPICS[index], subscription.partition, begin, stop)
        ) as batches:
            async for batch in batches:
                telemetry.REPLAYED_RECORDS.inc(len(batch))
                for record in batch:
                    subscription.add(index, record)
                    if subscription.full:
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
                event_cache: EventCache = {}
                for each in self._open.get(record.partition, ()):
                    if each.live:
                        each.add(index, record, event_cache)
            for partition, mine in self._open.items():
                if reader.follows(partition):
                    for each in mine:
                        if each.live:
                            each.advance(index, reader.next_offset(partition))

    async def _begin_anew(self, index: int) -> None:
        """The topic was cut above a position."""
        for partition in list(self._open):
            self._readers[index].follow(partition, await self._end(index, partition))
            now = await self._follow(partition)
            if partition not in self._open:  # the last was closed meanwhile
                self._leave(partition)
            for each in self._open.get(partition, ()):
                if each.live:
                    each.begin(now, reset=True)


def _on_done(subscription: Subscription, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        telemetry.log(telemetry.Action.TASK_FAILED, exc_info=error)
        subscription.fail(error)
