"""Requests into the log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.log import interfaces
from tailrace.protocol import errors, records

# The rest of a Kafka record is for key, headers and the batch around it.
MAX_BODY_BYTES: Final = records.MAX_RECORD_BYTES - 65_536


class RequestWriter:
    """Appends request records and subscribes to their responses."""

    def __init__(self, deliver: delivery.Delivery, writer: interfaces.RecordWriter) -> None:
        self._delivery = deliver
        self._writer = writer

    @property
    def ready(self) -> bool:
        """Whether a request can be appended and its response be read now."""
        return self._writer.connected and self._delivery.ready

    async def append(
        self, request: records.Request, topic: str, partition: int
    ) -> tuple[delivery.Subscription, int]:
        """Append with acks=all.

        Returns:
            A subscription to the response, and the offset after the request record. The offset is
            -1 when the client library does not know it: it knows none for a retry that the broker
            had already taken.

        Raises:
            errors.ApiError: the record is too large, or too much is kept for its owner.
            log.AppendFailed
        """
        value = records.encode(request)
        if len(value) > MAX_BODY_BYTES:
            raise errors.record_too_large()
        async with self._registered(request, value) as subscription:
            appended = await self._append_twice(topic, partition, request.rid, value)
        return subscription, appended.offset + 1 or -1

    @contextlib.asynccontextmanager
    async def _registered(
        self, request: records.Request, value: bytes
    ) -> AsyncIterator[delivery.Subscription]:
        """Register the response before the append, so that the tail cannot miss its first record.

        The response becomes visible when the block succeeds. It is forgotten when the block fails;
        should the request be in the log after all, a look-up finds it.
        """
        self._delivery.open(request, value)
        try:
            yield await self._delivery.watch(request.rid, request.owner)
        except BaseException:
            self._delivery.discard(request.rid)
            raise
        self._delivery.acknowledged(request.rid)

    async def _append_twice(
        self, topic: str, partition: int, rid: str, value: bytes
    ) -> log.Appended:
        """Append; after a failure append the same record once more.

        If both appends reach the log it is still one response, because both records have one id and
        one claim wins.
        """
        headers = telemetry.trace_headers()
        try:
            return await self._writer.append(topic, partition, rid, value, headers)
        except log.TooLarge as error:
            raise errors.record_too_large() from error
        except log.AppendFailed:
            return await self._writer.append(topic, partition, rid, value, headers)
