"""Delivery: from (response id, position) to exactly the events after it, on any instance.

The gateway composes this for the sockets that ask; push serves everyone else with it. Nothing here
awaits a socket: the tail puts events where outboxes see them, and a subscriber takes at its own
pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tailrace import log, telemetry
from tailrace.delivery import hub, log_clients, outbox, token_tail
from tailrace.log import interfaces
from tailrace.protocol import errors, events, fold, ids, records, topics
from tailrace.retry import retry_until

T = TypeVar("T")

SWEEP_S = 5.0
LOOK_UP_DEADLINE_S = 20.0
CATCH_UP_S = 0.01
TRUST_S = 5.0  # anyone may ask for ids of other logs as often as they like
STRETCH = 50_000  # records of one replay before the next one in line has its turn
LOOK_UPS_AT_ONCE = (
    2  # per principal; a made-up id may cost reading all the log holds of a partition
)
LOOK_UPS_IN_ALL = (
    128  # per principal, waiting ones included: two sockets that come back with all they watch
)
LOOK_UPS_RETRY_S = 1.0

_PUSH_SECONDS = telemetry.STAGE_SECONDS.labels(stage="push")


class NotFound(Exception):
    """No such response for this caller: unknown, malformed, deleted or another's. One error, so
    that ids cannot be probed."""


@dataclass(frozen=True, slots=True)
class Found:
    """A response as it stands. `claim` is its first accepted claim, None while nobody has taken
    it."""

    response: dict[str, Any]
    phase: fold.Phase
    echo: dict[str, Any]
    claim: records.Claim | None
    owner: records.Owner


class Subscription:
    """One subscriber of one response."""

    def __init__(
        self, stream: hub.Stream, after: int, on_ready: Callable[[], None] | None = None
    ) -> None:
        self.rid = stream.rid
        self._stream = stream
        self._event = asyncio.Event()
        self._keepalive_due = False
        self._on_ready = on_ready
        self._box = stream.subscribe(after, self._wake)
        if on_ready is not None and self.ready:
            on_ready()

    def _wake(self) -> None:
        self._event.set()
        if self._on_ready is not None:
            self._on_ready()

    @property
    def ready(self) -> bool:
        """Whether `pending` has something to say."""
        return self._box.ready or self._stream.lost is not None

    @property
    def ended(self) -> bool:
        """Whether the terminal event was taken."""
        return self._box.ended

    @property
    def status(self) -> str:
        """Status of the response as it stands."""
        series = self._stream.series
        return str(series.snapshot()["status"]) if series is not None else "queued"

    @property
    def echo(self) -> dict[str, Any]:
        """The static part of the Response object, as the request record holds it."""
        return self._series.base

    @property
    def response(self) -> dict[str, Any]:
        """The Response object as it stands."""
        return self._series.snapshot()

    @property
    def _series(self) -> events.Series:
        series = self._stream.series
        if series is None:  # a look-up identifies a stream before anyone may subscribe to it
            raise NotFound(self.rid)
        return series

    def pending(self) -> list[events.Event]:
        """What has arrived, without waiting; empty if nothing has or the end was taken.

        Raises:
            outbox.Slow: this subscriber fell too far behind.
            log.HistoryLost: the log lost the response.
        """
        taken = [] if self._stream.hidden else self._box.dequeue()
        if not taken and self._stream.lost is not None:
            raise self._stream.lost
        return taken

    async def next_events(self) -> list[events.Event]:
        """Wait for events and return all that are pending (a bounded batch); an empty list says
        that the terminal event was already returned, or that there was a nudge.

        Safe to cancel: nothing is taken before it returns.
        """
        while True:
            taken = self.pending()
            if taken or self._box.ended or self._keepalive_due:
                self._keepalive_due = False
                return taken
            self._event.clear()
            await self._event.wait()

    def keepalive(self) -> None:
        """Let a `next_events` that waits return with nothing."""
        self._keepalive_due = True
        self._event.set()

    def close(self) -> None:
        """Stop watching; idempotent."""
        self._stream.unsubscribe(self._box, time.monotonic())


@dataclass(slots=True, eq=False)
class _Share:
    """One principal's look-ups: how many there are, and turns for those under way."""

    count: int = 0
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOK_UPS_AT_ONCE))


class Delivery:
    """Tail, hub and look-up of one process.

    Attributes:
        ready: the tail has positions for its home partitions and all deletions are known.
        _loads: look-ups under way by rid, so that two watchers of a cold response share one replay.
        _shares: who asked for them; a principal without any has no entry.
        _deleted: ids whose owner deleted them; fed by `llm.conversations`, only grows (a compacted
            topic of small records).
        _trusted_until: until then (monotonic seconds) nobody asks again whether the log is still
            the same.
        _replaced: set once it is not; `run` then ends.
        _visited: partitions followed for streams only (not home), left again when unused.
    """

    def __init__(
        self,
        clients: log_clients.LogClients,
        *,
        layout: log.Layout,
        pools: Sequence[str],
        preferred: Sequence[int],
        entropy: Callable[[int], bytes] = os.urandom,
        clock: Callable[[], float] = time.monotonic,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._layout = layout
        self._read_layout = clients.read_layout
        self._pools = tuple(pools)
        self.preferred = tuple(preferred)
        self._entropy = entropy
        self._clock = clock
        self._sweep_s = sweep_s
        self._hub = hub.Hub(
            on_ignored=lambda reason: telemetry.IGNORED_RECORDS.labels(reason=reason).inc()
        )
        self._tail = token_tail.TokenTail(clients.long_polled, clients.on_demand, self.preferred)
        self._offsets = clients.offsets
        self._replays = clients.replays
        self._conversations = clients.conversations
        self._loads: dict[str, asyncio.Task[hub.Stream]] = {}
        self._shares: dict[str, _Share] = {}
        self._following: dict[int, asyncio.Task[None]] = {}
        self._deleted: set[str] = set()
        self._asking = asyncio.Lock()
        self._trusted_until = 0.0
        self._replaced = asyncio.Event()
        self.ready = False

    # ------------------------------------------------------------------ tail

    async def run(self) -> None:
        """Tail until cancelled.

        Raises:
            log.LogChanged
        """
        try:
            await self._replays.start()
            ends = await _persist(lambda: self._offsets.ends(topics.TOKENS, self.preferred))
            for partition, offset in ends.items():
                if not self._tail.follows(
                    partition
                ):  # a client may have come already: its stream stands where the tail began for it
                    self._tail.follow(partition, offset)
            async with asyncio.TaskGroup() as tasks:
                for reader in self._tail.readers:
                    tasks.create_task(self._follow_tail(reader))
                tasks.create_task(self._tail_conversations())
                tasks.create_task(self._sweep())
                tasks.create_task(self._until_replaced())
        finally:
            self.ready = False
            for client in (self._tail, self._conversations, self._replays, self._offsets):
                with contextlib.suppress(
                    Exception
                ):  # closing what is already broken must not hide why the task group ended
                    await client.stop()

    async def stop(self) -> None:
        """Cancel look-ups; `run` closes the connections when it is cancelled."""
        for task in list(self._loads.values()):
            task.cancel()

    async def _follow_tail(self, reader: interfaces.TailReader) -> None:
        while True:
            try:
                batch = await reader.poll()
            except log.HistoryLost:
                await self._tail_lost(reader)
                continue
            except log.LogUnavailable:
                await asyncio.sleep(log.RETRY_S)
                continue
            now = self._clock()
            for record in batch:
                self._hub.dispatch(record, now)
            if batch:
                _PUSH_SECONDS.observe(self._clock() - now)

    async def _until_replaced(self) -> None:
        await self._replaced.wait()
        raise log.LogChanged(f"the log is not {self._layout.incarnation} any more")

    async def _same_log(self) -> None:
        """An id of another log was asked for: an old one, or it is our log that is gone (without
        streams nothing is followed that would tell).

        Raises:
            log.LogUnavailable: the latter, or nobody can say.
        """
        async with self._asking:
            if self._clock() < self._trusted_until:
                return
            if (await self._read_layout()).incarnation != self._layout.incarnation:
                self._replaced.set()
                raise log.LogUnavailable("the log is another one now")
            self._trusted_until = self._clock() + TRUST_S

    async def _tail_lost(self, reader: interfaces.TailReader) -> None:
        """A tail position is not in the log: retention passed it (a stall of hours), or this is
        another log."""
        layout = await _persist(self._read_layout)
        if layout.incarnation != self._layout.incarnation:
            raise log.LogChanged(
                f"the log's incarnation changed from {self._layout.incarnation} to "
                f"{layout.incarnation}"
            )
        positions = dict(reader.positions)
        beginnings = await _persist(lambda: self._offsets.beginnings(topics.TOKENS, positions))
        ends = await _persist(lambda: self._offsets.ends(topics.TOKENS, positions))
        for partition, position in positions.items():
            if beginnings[partition] <= position <= ends[partition]:
                continue
            for stream in self._hub.streams_on(partition):
                stream.fail(log.HistoryLost(f"the log no longer holds all of {stream.rid}"))
                self._hub.drop(stream.rid)
            reader.follow(partition, ends[partition])

    async def _tail_conversations(self) -> None:
        """Learn deletions from the beginning of the compacted topic on; the service is not ready
        before it has read what there is."""
        layout = await _persist(lambda: self._offsets.partitions(topics.CONVERSATIONS))
        begins = await _persist(
            lambda: self._offsets.beginnings(topics.CONVERSATIONS, range(layout))
        )
        ends = await _persist(lambda: self._offsets.ends(topics.CONVERSATIONS, range(layout)))
        for partition, offset in begins.items():
            self._conversations.follow(partition, offset)
        while True:
            if not self.ready and all(
                self._conversations.positions.get(p, -1) >= end or begins[p] >= end
                for p, end in ends.items()
            ):
                self.ready = True
            try:
                batch = await self._conversations.poll()
            except (
                log.HistoryLost
            ):  # compaction removed the record we stood on; its successors say the same
                for partition, offset in (
                    await _persist(
                        lambda: self._offsets.beginnings(topics.CONVERSATIONS, range(layout))
                    )
                ).items():
                    self._conversations.follow(
                        partition, max(offset, self._conversations.positions.get(partition, 0))
                    )
                continue
            except log.LogUnavailable:
                await asyncio.sleep(log.RETRY_S)
                continue
            for record in batch:
                decoded = records.decode_conversation(record.value)
                if decoded is not None:
                    self._deleted.add(decoded.rid)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            self._hub.sweep(self._clock())
            for partition in set(self._tail.positions) - set(self.preferred):
                if not self._hub.load(partition) and partition not in self._following:
                    self._tail.leave(partition)

    async def _follow(self, partition: int) -> None:
        """Have the tail on `partition`, at an offset that is in the log now."""
        if self._tail.follows(partition):
            return
        task = self._following.get(partition)
        if task is None:
            task = asyncio.create_task(self._follow_anew(partition))
            self._following[partition] = task
            task.add_done_callback(lambda _t: self._following.pop(partition, None))
        await asyncio.shield(task)

    async def _follow_anew(self, partition: int) -> None:
        end = (await self._offsets.ends(topics.TOKENS, [partition]))[partition]
        if not self._tail.follows(partition):
            self._tail.follow(partition, end)

    # ------------------------------------------------------- responses of ours

    async def mint(self, partition: int) -> str:
        """A fresh id on `partition`; its lower bound is the tail's position, which lies at or below
        the end of the log (log rule §4, start)."""
        await self._follow(partition)
        offset = self._tail.next_offset(partition)
        return ids.mint(
            ids.Address(self._layout.tag, partition, offset), self._entropy(ids.RANDOM_BYTES)
        )

    def open(self, request: records.Request) -> None:
        """Register before the request is appended, so that the tail cannot pass its first record
        unseen."""
        address = ids.parse(request.rid)
        stream = hub.Stream(request.rid, address.partition, hidden=True, request=request)
        stream.identify(request.owner, request.echo)
        self._hub.add(stream)
        if not self._tail.follows(
            address.partition
        ):  # without a stream on it, it may have been left since the id was minted
            self._tail.follow(address.partition, address.offset)

    def acknowledged(self, rid: str) -> None:
        """The request is in the log: `response.created` may be seen."""
        stream = self._hub.get(rid)
        if stream is not None:
            stream.show()

    def discard(self, rid: str) -> None:
        """The append failed; should the request be in the log after all, a look-up finds it."""
        self._hub.drop(rid)

    def deleted(self, rid: str) -> None:
        """This instance appended the deletion: it holds here at once, elsewhere when the record is
        read."""
        self._deleted.add(rid)

    def load(self, partition: int) -> int:
        """Streams this instance has on `partition`."""
        return self._hub.load(partition)

    def watchers(self, rid: str) -> int:
        """Subscribers of `rid` on this instance."""
        stream = self._hub.get(rid)
        return len(stream.boxes) if stream is not None else 0

    # --------------------------------------------------------------- look-ups

    async def watch(
        self,
        rid: str,
        owner: records.Owner,
        starting_after: int = -1,
        on_ready: Callable[[], None] | None = None,
    ) -> Subscription:
        """Subscribe to everything after `starting_after`.

        Raises:
            NotFound, log.HistoryLost, log.LogUnavailable
            errors.ApiError: 429, this principal has too many look-ups under way.
        """
        async with self._stream(rid, owner) as stream:
            return Subscription(stream, starting_after, on_ready)

    async def find(self, rid: str, owner: records.Owner) -> Found:
        """The response as it stands; raises like `watch`."""
        async with self._stream(rid, owner) as stream:
            if (
                stream.series is None or stream.owner is None
            ):  # _stream identifies a stream before it yields it
                raise NotFound(rid)
            return Found(
                stream.series.snapshot(),
                stream.state.phase,
                stream.series.base,
                stream.state.first,
                stream.owner,
            )

    async def request_of(self, rid: str, owner: records.Owner) -> records.Request:
        """The request record; raises like `watch`."""
        async with self._stream(rid, owner) as stream:
            if stream.request is None:
                stream.request = await self._request_by_claim(stream) or await self._scan_requests(
                    stream, from_beginning=True
                )
            if stream.request is None:
                raise log.HistoryLost(f"the log no longer holds the request of {rid}")
            return stream.request

    @contextlib.asynccontextmanager
    async def _stream(self, rid: str, owner: records.Owner) -> AsyncIterator[hub.Stream]:
        """The stream of `rid`, loaded, for its owner only."""
        stream = await self._loaded(rid, owner)
        if stream.owner != owner or rid in self._deleted:
            raise NotFound(rid)
        stream.holders += 1
        try:
            yield stream
        finally:
            stream.holders -= 1

    async def _loaded(self, rid: str, owner: records.Owner) -> hub.Stream:
        try:
            address = ids.parse(rid, self._layout.partitions)
        except ids.InvalidId as error:
            raise NotFound(rid) from error
        if rid in self._deleted:
            raise NotFound(rid)
        if address.incarnation != self._layout.tag:
            await self._same_log()
            raise log.HistoryLost(f"{rid} belongs to another log")
        stream = self._hub.get(rid)
        if stream is not None and rid not in self._loads:
            return stream
        task = self._loads.get(rid)
        if task is None:
            share = self._shares.setdefault(owner.key, _Share())
            if share.count >= LOOK_UPS_IN_ALL:
                raise errors.too_many_look_ups(LOOK_UPS_RETRY_S)
            share.count += 1
            task = asyncio.create_task(self._look_up(rid, address, share))
            self._loads[rid] = task
            task.add_done_callback(lambda t: self._looked_up(rid, owner, t))
        return await asyncio.shield(
            task
        )  # one watcher going away must not end the look-up of the others

    def _looked_up(self, rid: str, owner: records.Owner, task: asyncio.Task[hub.Stream]) -> None:
        self._loads.pop(rid, None)
        self._shares[owner.key].count -= 1
        if not self._shares[owner.key].count:
            del self._shares[owner.key]
        if task.cancelled() or task.exception() is not None:
            self._hub.drop(rid)

    async def _look_up(self, rid: str, address: ids.Address, share: _Share) -> hub.Stream:
        started = self._clock()
        try:
            async with asyncio.timeout(LOOK_UP_DEADLINE_S), share.turns:
                stream = await self._replay(rid, address)
        except TimeoutError as error:
            raise log.LogUnavailable(f"no answer in {LOOK_UP_DEADLINE_S:.0f} s") from error
        telemetry.REPLAY_SECONDS.observe(self._clock() - started)
        return stream

    async def _replay(self, rid: str, address: ids.Address) -> hub.Stream:
        await self._follow(address.partition)
        # From here to the end of this block nothing awaits: the tail cannot dispatch between taking
        # its position and registering the stream.
        stream = hub.Stream(rid, address.partition, held=[])
        live_from = self._tail.next_offset(address.partition)
        self._hub.add(stream)
        if address.offset > live_from and address.offset > await self._end(address.partition):
            raise NotFound(
                rid
                # no gateway can have seen an end that this log has not reached; our tail may well be
                # behind the gateway's
            )
        start = address.offset
        while start < live_from and not stream.done:
            stop = min(start + STRETCH, live_from)
            await self._replay_stretch(stream, start, stop)
            start = stop
            await asyncio.sleep(
                0
            )  # whoever waits for the connection that is free now comes before the next stretch
        stream.release()
        if stream.series is None:
            await self._scan_requests(stream)
        if stream.series is None:
            # It may have been finished and committed while the tail was behind. What a commit
            # speaks of lies below this end.
            await self._caught_up(stream, await self._end(address.partition))
        if stream.series is None:
            raise NotFound(rid)
        return stream

    async def _replay_stretch(self, stream: hub.Stream, start: int, stop: int) -> None:
        key = stream.rid.encode()
        async with contextlib.aclosing(
            self._replays.read(topics.TOKENS, stream.partition, start, stop)
        ) as batches:
            async for batch in batches:
                telemetry.REPLAYED_RECORDS.inc(len(batch))
                for record in batch:
                    if (
                        record.key == key
                        and (decoded := records.token_of(record.key, record.value)) is not None
                    ):
                        stream.apply(decoded, record.offset, record.timestamp)
                if stream.done:
                    return

    async def _end(self, partition: int) -> int:
        return (await self._offsets.ends(topics.TOKENS, [partition]))[partition]

    async def _caught_up(self, stream: hub.Stream, end: int) -> None:
        """Until the tail has read up to `end`, or the stream is known; the look-up's deadline
        bounds it."""
        while (  # noqa: ASYNC110 - the tail's progress has no event
            stream.series is None
            and stream.lost is None
            and self._tail.next_offset(stream.partition) < end
        ):
            await asyncio.sleep(CATCH_UP_S)

    async def _scan_requests(
        self, stream: hub.Stream, *, from_beginning: bool = False
    ) -> records.Request | None:
        """Find the request in its pool's topics: an unfinished one lies at or above the group's
        committed offset (log rule §10)."""
        for pool in self._pools:
            committed = {} if from_beginning else await self._offsets.committed(topics.group(pool))
            for priority in topics.CLASSES:
                topic = topics.requests(pool, priority)
                begin = (await self._offsets.beginnings(topic, [stream.partition]))[
                    stream.partition
                ]
                end = (await self._offsets.ends(topic, [stream.partition]))[stream.partition]
                start = max(begin, committed.get((topic, stream.partition), (0, ""))[0])
                request = await self._request_in(topic, stream.partition, start, end, stream.rid)
                if request is not None:
                    stream.request = request
                    stream.identify(request.owner, request.echo)
                    return request
        return None

    async def _request_by_claim(self, stream: hub.Stream) -> records.Request | None:
        claim = stream.state.first
        if claim is None:
            return None
        with contextlib.suppress(log.HistoryLost):
            return await self._request_in(
                claim.req_topic,
                stream.partition,
                claim.req_offset,
                claim.req_offset + 1,
                stream.rid,
            )
        return None

    async def _request_in(
        self, topic: str, partition: int, start: int, end: int, rid: str
    ) -> records.Request | None:
        async with contextlib.aclosing(self._replays.read(topic, partition, start, end)) as batches:
            async for batch in batches:
                for record in batch:
                    if (
                        record.key == rid.encode()
                        and (request := records.decode_request(record.value)) is not None
                        and request.rid == rid
                    ):
                        return request
        return None


async def _persist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the log answers: for what a service cannot start or go on without."""
    return await retry_until(ask, on=log.LogUnavailable, pause_s=log.RETRY_S)


__all__ = ["Delivery", "Found", "NotFound", "Subscription", "outbox"]
