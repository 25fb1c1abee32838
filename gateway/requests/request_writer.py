"""Appends requests to the log."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.log import interfaces
from tailrace.protocol import errors, records
from tailrace.protocol.broker_clock import BrokerClock

# The rest of a Kafka record is for the key, the headers and the batch.
MAX_BODY_BYTES: Final = records.MAX_RECORD_BYTES - 65_536
# Deadline of one append. There are two appends, so a client waits for 10 s at most.
APPEND_DEADLINE_S: Final = 5.0
# A record that the broker appends later is ignored. The client has its answer by then.
APPEND_WITHIN_MS: Final = 10_000


class RequestWriter:
    """Appends request records and subscribes to their responses.

    Attributes:
        _clock: bound on the broker's time, from its acknowledgements.
        _times: the broker's time of appended requests, by response id, until `append_time_ms` reads
            it.
    """

    def __init__(
        self,
        deliver: delivery.Delivery,
        writer: interfaces.RecordWriter,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delivery = deliver
        self._writer = writer
        self._monotonic = monotonic
        self._clock = BrokerClock()
        self._times: dict[str, int] = {}

    @property
    def ready(self) -> bool:
        """Whether a request can be appended and its response read now."""
        return self._writer.connected and self._delivery.ready

    @property
    def responsive(self) -> bool:
        """Whether `ready`, and the broker answers queries and appends in time."""
        return self.ready and self._delivery.answered and not self._writer.stalled

    async def append(
        self,
        request: records.Request,
        topic: str,
        partition: int,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[delivery.Subscription, int]:
        """Append with acks=all.

        The response is registered before the append, so that the tail cannot miss its first record.
        It becomes visible when the append succeeds, and is forgotten when it fails.

        Args:
            first: called after the registration and before the append, for example to publish the
                response's id. Its exceptions are raised, and nothing is appended.

        Returns:
            A subscription to the response, and the offset after the request record. The offset is
            -1 when the client library does not know it: it knows none for a retry that the broker
            had already taken.

        Raises:
            errors.ApiError: the record is too large, or too many bytes are held for its owner.
            log.NotAppended: the request is not in the log and never will be.
            log.AppendFailed: it may be in the log, or reach it until `append_by`.
        """
        request = msgspec.structs.replace(request, append_by=request.append_by or self.append_by())
        value = records.encode(request)
        if len(value) > MAX_BODY_BYTES:
            raise errors.record_too_large()
        self._delivery.open(request, value)
        try:
            subscription = await self._delivery.watch(
                request.rid, request.owner, embeddings=request.embed is not None
            )
            if first is not None:
                await first()
            offset = await self._append_or_find(request, topic, partition, value)
        except BaseException:
            self._delivery.discard(request.rid)
            raise
        self._delivery.confirm(request.rid)
        return subscription, offset + 1 or -1

    async def reroute(self, reroute: records.Reroute, topic: str, partition: int) -> None:
        """Append a reroute with acks=all. Raises log.AppendFailed."""
        value = records.encode(reroute)
        await self._writer.append(topic, partition, reroute.rid, value, telemetry.trace_headers())

    def append_time_ms(self, rid: str) -> int:
        """The broker's time, in ms, of a request appended here; 0: unknown. It is returned once."""
        return self._times.pop(rid, 0)

    def append_by(self) -> int:
        """The broker's time, in ms, after which a request appended now is ignored; 0 before the
        first acknowledgement, while the broker's time is unknown."""
        if not self._clock.settled:
            return 0
        return int(self._clock.now_ms(self._monotonic())) + APPEND_WITHIN_MS

    async def _append_or_find(
        self, request: records.Request, topic: str, partition: int, value: bytes
    ) -> int:
        """The offset of the record; -1: it is in the log at an unknown offset."""
        try:
            return await self._append_twice(request, topic, partition, value)
        except log.NotAppended:
            raise
        except log.AppendFailed:
            # If a worker has claimed it, it is in the log, whatever the append reports.
            if self._delivery.logged(request.rid):
                return -1
            raise

    async def _append_twice(
        self, request: records.Request, topic: str, partition: int, value: bytes
    ) -> int:
        """Append; after a failure append the same record once more.

        If both appends reach the log it is still one response, because both records have one id and
        one claim wins.
        """
        try:
            return await self._append_once(request, topic, partition, value)
        except log.TooLarge as error:
            raise errors.record_too_large() from error
        except log.NotAppended:
            return await self._append_once(request, topic, partition, value)
        except log.AppendFailed:
            try:
                return await self._append_once(request, topic, partition, value)
            except log.NotAppended as error:  # this holds for the second record only
                raise log.AppendFailed(str(error)) from error

    async def _append_once(
        self, request: records.Request, topic: str, partition: int, value: bytes
    ) -> int:
        headers = telemetry.trace_headers()
        position = await self._writer.append(topic, partition, request.rid, value, headers)
        now = self._monotonic()
        if position.timestamp > 0:
            self._clock.observe_acknowledgement(position.timestamp, now)
            if request.late(position.timestamp):
                raise log.NotAppended("the broker took it too late")
            self._times[request.rid] = position.timestamp
        elif request.late(int(self._clock.now_ms(now))):
            raise log.AppendFailed("the broker does not say when it took it")
        return position.offset
