"""Delivery: from (response id, position) to exactly the events after it, on any instance.

The gateway uses it for the sockets that sent the request, push for all others. Nothing here awaits
a socket: the tail appends events to lists that outboxes read, and each subscriber reads at its own
pace.

    live           tail -> streams, while this instance has subscribers
    look_up        a response in the log, or in the archive -> its stream
    archived       the archive's rows -> streams and lists
    deletions      the deleted responses
    queue_news     queue places of responses that no worker has begun
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence

from tailrace import log, telemetry
from tailrace.archive import reader
from tailrace.delivery import archived, hub, kept_bytes
from tailrace.delivery.archived import StoredResponse
from tailrace.delivery.deletions import Deletions
from tailrace.delivery.live import LiveTail
from tailrace.delivery.log_clients import LogClients
from tailrace.delivery.look_up import LookUp
from tailrace.delivery.queue_news import QueueNews
from tailrace.delivery.subscription import NotFound, Snapshot, Subscription
from tailrace.delivery.token_tail import TokenTail
from tailrace.log.health import Health
from tailrace.log.identity import LogIdentity
from tailrace.protocol import ids, records, topics
from tailrace.store.queues import Queues

SWEEP_S = 5.0


class Delivery:
    """Live tail, look-up and deletions of one process, as one object.

    Attributes:
        preferred: partitions on which this instance begins new conversations; fixed.
        kept: bytes of the requests that this process holds in memory.
        archived: queries the archive, also for responses that the log has lost.
    """

    def __init__(
        self,
        clients: LogClients,
        *,
        layout: log.Layout,
        pools: Callable[[], Sequence[str]],
        preferred: Sequence[int],
        entropy: Callable[[int], bytes] = os.urandom,
        clock: Callable[[], float] = time.monotonic,
        sweep_s: float = SWEEP_S,
        request_bytes: kept_bytes.KeptBytes | None = None,
        archive: reader.Reader | None = None,
        queues: Queues | None = None,
    ) -> None:
        """`queues`: the places of queued requests; without it subscribers do not get them."""
        self.kept = request_bytes or kept_bytes.KeptBytes()
        self.preferred = tuple(preferred)
        self._clients = clients
        self._layout = layout
        self._entropy = entropy
        self._clock = clock
        self._streams = hub.Hub(on_ignored=_count_ignored)
        self._identity = LogIdentity(layout, clients.read_layout, clock)
        self._live = LiveTail(
            self._streams,
            TokenTail(clients.long_polled, clients.on_demand, self.preferred),
            clients.offsets,
            self._identity,
            self.preferred,
            clock=clock,
            sweep_s=sweep_s,
        )
        self.archived = archived.ArchiveQueries(archive, clients.offsets, layout.incarnation)
        self._deletions = Deletions(
            clients.deletions, clients.offsets, has_archive=archive is not None
        )
        self._look_up = LookUp(
            self._live,
            self._deletions,
            clients.replays,
            clients.offsets,
            pools,
            self.kept,
            self.archived,
            layout.tag,
            clock,
        )
        # Any partition will do; there is always a first one.
        self._health = Health(lambda: clients.offsets.ends(topics.TOKENS, [0]))
        self._queue_news = QueueNews(queues, self._streams, pools) if queues is not None else None
        self._running = False

    # ---- the process -----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `run` runs, follows the preferred partitions and knows all deletions."""
        return self._running and self._live.ready and self._deletions.ready

    @property
    def answered(self) -> bool:
        """Whether it is `ready`, the broker answered the last query, and no reader is blind."""
        readers_answer = all(reader.answers for reader in self._clients.tails)
        return self.ready and self._health.answers and readers_answer

    async def run(self) -> None:
        """Deliver until cancelled; stops the log clients at the end.

        Raises:
            log.LogChanged: in an exception group.
        """
        try:
            await self._clients.replays.start()
            self._running = True
            async with asyncio.TaskGroup() as tasks:
                for part in (self._live, self._deletions, self._identity, self._health):
                    tasks.create_task(part.run())
                if self._queue_news is not None:
                    tasks.create_task(self._queue_news.run())
        finally:
            self._running = False
            clients = self._clients
            for client in (
                *(self._live, clients.deletions, clients.replays, clients.offsets),
                self.archived,
            ):
                # An error while closing a broken client must not hide why the group ended.
                with contextlib.suppress(Exception):
                    await client.stop()

    async def stop(self) -> None:
        """Cancel look-ups. `run` closes the connections when it is cancelled."""
        self._look_up.cancel()

    # ---- responses opened here -------------------------------------------------------------------

    async def mint(self, partition: int) -> str:
        """A new id on `partition`.

        Its lower bound is the tail's position, which is at or below the end of the log (log rule
        §4, start). Raises log.LogUnavailable.
        """
        await self._live.follow(partition)
        address = ids.Address(self._layout.tag, partition, self._live.next_offset(partition))
        return ids.mint(address, self._entropy(ids.RANDOM_BYTES))

    def open(self, request: records.Request, value: bytes) -> None:
        """Register a response before its request is appended, so that the tail cannot pass its
        first record unseen. `value`: the request as it is appended.

        Raises:
            errors.ApiError: 429, the owner's requests take too much memory.
        """
        address = ids.parse(request.rid)
        stream = hub.Stream(request.rid, address.partition, hidden=True, kept=self.kept)
        stream.identify(request.owner, request.echo)
        stream.store_request(value)
        stream.ttl_ms = request.ttl_ms
        self._streams.add(stream)
        # The sweep may have left the partition since the id was minted.
        self._live.follow_from(address.partition, address.offset)

    def confirm(self, rid: str) -> None:
        """The request is in the log: `response.created` may be seen."""
        stream = self._streams.get(rid)
        if stream is not None:
            stream.show()

    def logged(self, rid: str) -> bool:
        """Whether a record of this response was read, which proves that its request is in the
        log."""
        stream = self._streams.get(rid)
        return stream is not None and not stream.hidden

    def discard(self, rid: str) -> None:
        """The append failed. If the request is in the log nevertheless, a look-up finds it."""
        self._streams.drop(rid)

    def deleted(self, rid: str, owner: records.Owner) -> None:
        """This instance appended the deletion of `rid` by its owner."""
        self._deletions.add(rid, owner)

    def known_deleted(self, rid: str, owner: records.Owner) -> bool:
        """Whether this instance knows that the owner deleted the response. It may forget that when
        neither log nor archive has the response."""
        return self._deletions.deleted_by(rid, owner)

    def load(self, partition: int) -> int:
        """Number of streams that this instance has on `partition`."""
        return self._streams.load(partition)

    def unclaimed(self) -> list[hub.Stream]:
        """Streams of this instance whose request is in the log and not claimed by a worker."""
        return self._streams.unclaimed()

    def watchers(self, rid: str) -> int:
        """Number of subscribers of `rid` on this instance."""
        stream = self._streams.get(rid)
        return len(stream.boxes) if stream is not None else 0

    # ---- any response ----------------------------------------------------------------------------

    async def watch(
        self,
        rid: str,
        owner: records.Owner,
        starting_after: int = -1,
        on_ready: Callable[[], None] | None = None,
        *,
        embeddings: bool = False,
    ) -> Subscription:
        """Subscribe to everything after `starting_after`. `embeddings`: also to a request for
        embeddings, which clients read nowhere but in its answer.

        Raises:
            NotFound, log.HistoryLost, log.LogUnavailable
            errors.ApiError: 429, this principal has too many look-ups under way.
        """
        async with self._stream(rid, owner, embeddings=embeddings) as stream:
            return Subscription(stream, starting_after, on_ready)

    async def find(self, rid: str, owner: records.Owner, *, embeddings: bool = False) -> Snapshot:
        """The present state of the response in the log; arguments and errors of `watch`. One that
        has ended here needs no query of the log."""
        async with self._stream(rid, owner, embeddings=embeddings) as stream:
            # Another instance may have sent its end already.
            await self._live.caught_up(stream, lambda: stream.done)
            if stream.series is None or stream.owner is None:  # a look-up identifies its stream
                raise NotFound(rid)
            state = stream.state
            return Snapshot(
                stream.series.snapshot(),
                state.phase,
                stream.series.base,
                state.first,
                stream.owner,
                withdrawn=state.ended is not None and state.ended.reason == "withdrawn",
                tokens=state.next,
                archived=stream.archived,
            )

    async def request_of(
        self, rid: str, owner: records.Owner, *, embeddings: bool = False
    ) -> records.Request:
        """The request record; arguments and errors of `watch`."""
        async with self._stream(rid, owner, embeddings=embeddings) as stream:
            return await self._look_up.request_of(stream)

    @contextlib.asynccontextmanager
    async def _stream(
        self, rid: str, owner: records.Owner, *, embeddings: bool
    ) -> AsyncIterator[hub.Stream]:
        """The stream of `rid`, complete up to now, for its owner only. It is not dropped inside."""
        try:
            address = ids.parse(rid, self._layout.partitions)
        except ids.InvalidId as error:
            raise NotFound(rid) from error
        if address.incarnation != self._layout.tag:
            await self._identity.require_same()
        if self._deletions.deleted_by(rid, owner):
            with contextlib.suppress(log.HistoryLost):
                await self._look_up.miss(rid, address, owner)
            raise NotFound(rid)
        stream = await self._look_up.stream(rid, address, owner)
        if self._deletions.deleted_by(rid, owner) or not (stream.shown or embeddings):
            raise NotFound(rid)
        with stream.in_use(self._clock):
            yield stream


def _count_ignored(reason: str) -> None:
    telemetry.IGNORED_RECORDS.labels(reason=reason).inc()


__all__ = ["Delivery", "NotFound", "Snapshot", "StoredResponse", "Subscription"]
