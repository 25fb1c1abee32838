"""The look-up half of delivery: finds a response in the log and makes its stream."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tailrace import log, telemetry
from tailrace.delivery import archived, hub, kept_bytes
from tailrace.delivery.deletions import Deletions
from tailrace.delivery.live import LiveTail
from tailrace.delivery.subscription import NotFound
from tailrace.delivery.turns import Turns
from tailrace.fair_queue import flow_of
from tailrace.log import interfaces
from tailrace.protocol import commits, errors, ids, records, topics

DEADLINE_S = 20.0
STRETCH = 50_000  # records of one replay before the next one in line has its turn
# Per principal: an invented id may cost reading a whole partition.
AT_ONCE = 2
# Of all principals: as many as there are connections for replays (`tailrace.log.Replays`).
READING = 2
# Per principal, waiting ones included: two sockets that reconnect with everything they watch.
IN_ALL = 128
RETRY_AFTER_S = 1.0
# Streams that were used within this time are not dropped for space: their callers may reconnect.
UNUSED_S = 1.0


_NOBODY = records.Owner("", "")


@dataclass(slots=True, eq=False)
class _Share:
    """One principal's look-ups.

    Attributes:
        count: how many there are, waiting ones included.
        turns: lets `AT_ONCE` of them read.
    """

    count: int = 0
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class LookUp:
    """Builds streams of responses that this instance does not have.

    Attributes:
        _secret: for the ids that stand in for responses of others.
        _loads: running look-ups by rid. Two watchers of one response share a replay.
        _turns: turns at the replays, between principals.
        _shares: look-ups by principal; a principal without any has no entry.
        _replay_bytes: bytes of the streams that were built here, by principal. Without it a slow
            client could fill the memory of this process.
    """

    def __init__(
        self,
        live: LiveTail,
        deletions: Deletions,
        replays: interfaces.RangeReader,
        offsets: interfaces.OffsetQueries,
        pools: Callable[[], Sequence[str]],
        request_bytes: kept_bytes.KeptBytes,
        archive: archived.ArchiveQueries,
        tag: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live = live
        self._deletions = deletions
        self._replays = replays
        self._offsets = offsets
        self._pools = pools
        self._request_bytes = request_bytes
        self._archive = archive
        self._tag = tag
        self._clock = clock
        self._secret = os.urandom(16)
        self._loads: dict[str, asyncio.Task[hub.Stream]] = {}
        self._shares: dict[str, _Share] = {}
        self._replay_bytes = kept_bytes.KeptBytes(request_bytes.most)
        self._turns = Turns(READING)

    async def stream(self, rid: str, address: ids.Address, owner: records.Owner) -> hub.Stream:
        """The stream of `rid`, complete up to now, for its owner.

        Another principal's response costs as much as one that does not exist, so that the time of
        the refusal does not reveal which it was.

        Raises:
            NotFound: also when it is not `owner`'s.
            log.HistoryLost, log.LogUnavailable
            errors.ApiError: 429, `owner` has too many running look-ups, or watches too much.
        """
        stream = self._live.streams.get(rid)
        if stream is None or rid in self._loads:
            starts_load = rid not in self._loads
            stream = await self._loaded_stream(rid, address, owner)
            if starts_load and stream.owner != owner:
                raise NotFound(rid)  # the look-up cost as much as that of an unknown id
        if stream.owner != owner:
            await self.miss(rid, address, owner)
        return stream

    async def miss(self, rid: str, address: ids.Address, owner: records.Owner) -> NoReturn:
        """Look up a response that does not exist instead of `rid`. Raises like `stream`."""
        entropy = hashlib.blake2b(rid.encode(), key=self._secret, digest_size=ids.RANDOM_BYTES)
        await self._loaded_stream(ids.mint(address, entropy.digest()), address, owner)
        raise NotFound(rid)

    async def _loaded_stream(
        self, rid: str, address: ids.Address, owner: records.Owner
    ) -> hub.Stream:
        task = self._loads.get(rid)
        if task is None:
            share = self._shares.setdefault(owner.key, _Share())
            if share.count >= IN_ALL:
                raise errors.too_many_look_ups(RETRY_AFTER_S)
            share.count += 1
            task = asyncio.create_task(self._load(rid, address, owner, share))
            self._loads[rid] = task
            task.add_done_callback(lambda t: self._on_loaded(rid, owner, t))
        # One watcher that goes away must not end the look-up of the others.
        return await asyncio.shield(task)

    async def request_of(self, stream: hub.Stream) -> records.Request:
        """The request record of a stream. The log loses requests before answers, so the archive may
        have a request whose answer the log still has.

        Raises:
            log.HistoryLost: neither log nor archive has it.
            log.LogUnavailable
            errors.ApiError: 503, the archive does not answer.
        """
        request = None if stream.archived else await self._logged_request(stream)
        if request is None and stream.owner is not None:
            row = await self._archive.find(stream.rid, stream.owner)
            request = row.request if row is not None else None
        if request is None:
            raise log.HistoryLost(f"the request of {stream.rid} is not there any more")
        return request

    async def _logged_request(self, stream: hub.Stream) -> records.Request | None:
        value = stream.request or await self._request_by_claim(stream)
        if value is None:
            value = await self._scan_requests(stream, stream.owner or _NOBODY, from_beginning=True)
        return records.decode_request(value)

    def cancel(self) -> None:
        """Cancel the running look-ups."""
        for task in list(self._loads.values()):
            task.cancel()

    def _on_loaded(self, rid: str, owner: records.Owner, task: asyncio.Task[hub.Stream]) -> None:
        self._loads.pop(rid, None)
        self._shares[owner.key].count -= 1
        if not self._shares[owner.key].count:
            del self._shares[owner.key]
        if task.cancelled() or task.exception() is not None:
            self._live.streams.drop(rid)

    async def _load(
        self, rid: str, address: ids.Address, owner: records.Owner, share: _Share
    ) -> hub.Stream:
        start = self._clock()
        try:
            async with asyncio.timeout(DEADLINE_S), share.turns:
                stream = await self._find(rid, address, owner)
                if stream.owner == owner:  # who may have deleted it at another instance
                    await self._deletions.caught_up(rid)
        except TimeoutError as error:
            raise log.LogUnavailable(f"no answer in {DEADLINE_S:.0f} s") from error
        telemetry.REPLAY_SECONDS.observe(self._clock() - start)
        if stream.owner == owner:
            self._count(stream, owner)
        return stream

    async def _find(self, rid: str, address: ids.Address, owner: records.Owner) -> hub.Stream:
        """The stream from the log or, if the log has lost it, from the archive. If the log was
        rolled back, the archive may have responses that are unknown to the log."""
        try:
            if address.incarnation != self._tag:
                raise log.HistoryLost(f"{rid} belongs to another log")
            return await self._replay(rid, address, owner)
        except log.HistoryLost:
            row = await self._archive.find(rid, owner)
            if row is None:
                raise
        except NotFound:
            row = await self._archive.find_if_available(rid, owner)
            if row is None:
                raise
        self._live.streams.drop(rid)  # the unfinished stream
        stream = archived.build_stream(row, self._request_bytes)
        self._live.streams.add(stream)
        return stream

    def _count(self, stream: hub.Stream, owner: records.Owner) -> None:
        fits = self._replay_bytes.fits(owner.key, stream.memory)
        if not fits:
            self._live.streams.drop_unused(owner, self._clock() - UNUSED_S)
        # One response alone may be read, however long it is.
        if fits or self._replay_bytes.of(owner.key):
            stream.charge_replay(self._replay_bytes)

    async def _replay(self, rid: str, address: ids.Address, owner: records.Owner) -> hub.Stream:
        """Find all records of `rid`. Another principal's response is searched for to the end, as if
        it did not exist."""
        await self._live.follow(address.partition)
        # Up to `add` nothing awaits: the tail cannot dispatch between the reading of its position
        # and the registration of the stream.
        stream = hub.Stream(rid, address.partition, held=[], kept=self._request_bytes)
        live_from = self._live.next_offset(address.partition)
        self._live.streams.add(stream)
        if address.offset > live_from and address.offset > await self._live.end(address.partition):
            # This log has not reached the end that a gateway saw: it was rolled back. This
            # tail may lag behind that gateway's.
            raise log.HistoryLost(f"the log ends before {rid}")
        start = address.offset
        while start < live_from and not (stream.done and stream.owner == owner):
            stop = min(start + STRETCH, live_from)
            async with self._turns.acquire(flow_of(owner), stop - start):
                await self._replay_stretch(stream, start, stop, owner)
            start = stop
            # Another look-up that waits for the free connection has it before the next stretch.
            await asyncio.sleep(0)
        stream.release()
        if stream.lost is not None:
            raise stream.lost
        if stream.owner != owner:
            await self._scan_requests(stream, owner)
        if stream.owner != owner:
            # The response may have been finished and committed while the tail lagged. Its records
            # lie below the present end.
            await self._live.caught_up(stream, lambda: stream.owner == owner)
        stream.identify_by_cancel()
        if stream.series is None:
            raise NotFound(rid)
        return stream

    async def _replay_stretch(
        self, stream: hub.Stream, start: int, stop: int, owner: records.Owner
    ) -> None:
        key = stream.rid.encode()
        async with contextlib.aclosing(
            self._replays.read(topics.TOKENS, stream.partition, start, stop)
        ) as batches:
            async for batch in batches:
                telemetry.REPLAYED_RECORDS.inc(len(batch))
                for record in batch:
                    token_record = (
                        records.token_of(record.key, record.value) if record.key == key else None
                    )
                    if token_record is not None:
                        stream.apply(token_record, record.offset, record.timestamp)
                if stream.done and stream.owner == owner:
                    return

    async def _scan_requests(
        self, stream: hub.Stream, owner: records.Owner, *, from_beginning: bool = False
    ) -> bytes | None:
        """Find the request in its pool's topics, and identify the stream by it. An unfinished one
        lies at or above the group's committed offset (log rule §10)."""
        for pool in self._pools():
            offsets = {} if from_beginning else await self._offsets.committed(topics.group(pool))
            for priority in topics.CLASSES:
                topic, partition = topics.requests(pool, priority), stream.partition
                begin = (await self._offsets.beginnings(topic, [partition]))[partition]
                end = (await self._offsets.ends(topic, [partition]))[partition]
                start = max(begin, commits.finished_below(offsets.get((topic, partition))))
                value = await self._request_in(topic, partition, start, end, stream.rid, owner)
                request = records.decode_request(value)
                if value is not None and request is not None:
                    stream.identify(request.owner, request.echo)
                    if request.owner == owner:
                        stream.ttl_ms = request.ttl_ms
                        if self._request_bytes.fits(owner.key, len(value)):
                            stream.store_request(value)
                        return value
        return None

    async def _request_by_claim(self, stream: hub.Stream) -> bytes | None:
        claim = stream.state.first
        if claim is None:
            return None
        start = claim.req_offset
        with contextlib.suppress(log.HistoryLost):
            return await self._request_in(
                claim.req_topic, stream.partition, start, start + 1, stream.rid, claim.owner
            )
        return None

    async def _request_in(
        self, topic: str, partition: int, start: int, end: int, rid: str, owner: records.Owner
    ) -> bytes | None:
        """The request record of `rid`. The search ends early only for its owner."""
        value: bytes | None = None
        async with contextlib.aclosing(self._replays.read(topic, partition, start, end)) as batches:
            async for batch in batches:
                for record in batch:
                    if record.key != rid.encode():
                        continue
                    request = records.decode_request(record.value)
                    if (
                        request is not None
                        and request.rid == rid
                        and not request.late(record.timestamp)
                    ):
                        value = record.value
                        if request.owner == owner:
                            return value
        return value
