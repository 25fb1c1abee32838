"""Operations on a response whose request is in the log: cancel, delete, list its input."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gateway.cache import Cache
from gateway.files.files import Files
from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.log import interfaces
from tailrace.protocol import ids, images, records, topics

CANCEL_DEADLINE_S: Final = 5.0
_AFTER_ANY_EVENT: Final = 2**53  # above every sequence_number: this subscriber gets no events


class Withdrawn(Exception):
    """The gateway that wrote a request has withdrawn it."""


class ResponseOperations:
    """Cancels, deletes and lists responses for their owner. Other principals get `NotFound`."""

    def __init__(
        self,
        deliver: delivery.Delivery,
        writer: interfaces.RecordWriter,
        cache: Cache,
        files: Files,
    ) -> None:
        self._delivery = deliver
        self._writer = writer
        self._cache = cache
        self._files = files

    async def cancel(self, rid: str, owner: records.Owner) -> dict[str, Any]:
        """Cancel a response and return its final Response object.

        A response that has ended already stays as it is. The terminal event is END or CANCEL,
        whichever is first in the log.

        Raises:
            delivery.NotFound, log.HistoryLost, log.LogUnavailable
            errors.ApiError: 429, this principal has too many pending look-ups.
        """
        subscription = await self._delivery.watch(rid, owner, _AFTER_ANY_EVENT)
        try:
            if not subscription.ended:
                await self.append_cancel(rid, owner, subscription.echo)
                async with asyncio.timeout(CANCEL_DEADLINE_S):
                    while await subscription.next_events():
                        pass
            return subscription.response
        except TimeoutError as error:
            raise log.LogUnavailable("the log is not read right now") from error
        finally:
            subscription.close()

    async def append_cancel(
        self,
        rid: str,
        owner: records.Owner,
        echo: dict[str, Any],
        *,
        withdrawn: bool = False,
        failed: records.Failure = "",
    ) -> None:
        """Append a CANCEL record. The terminal event reaches every subscriber through the log.

        Args:
            withdrawn: no client knows that the request was accepted.
            failed: the response ends as failed.

        Raises:
            log.AppendFailed
        """
        record = records.Cancel(rid, owner, echo, withdrawn=withdrawn, failed=failed)
        value = records.encode(record)
        await self._writer.append(
            topics.TOKENS, ids.parse(rid).partition, rid, value, telemetry.trace_headers()
        )

    async def delete(self, rid: str, owner: records.Owner) -> None:
        """Delete a response; a running one is cancelled first. Raises like `cancel`."""
        response = await self.cancel(rid, owner)
        if not response["store"]:
            raise delivery.NotFound(rid)
        await self.append_deletion(rid, owner)

    async def append_deletion(self, rid: str, owner: records.Owner) -> None:
        """Delete a stored response that has ended. Raises log.AppendFailed."""
        value = records.encode(records.Deleted(rid, owner))
        await self._writer.append(
            topics.DELETIONS,
            topics.partition_of(topics.DELETIONS, rid),
            rid,
            value,
            telemetry.trace_headers(),
        )
        self._delivery.deleted(rid, owner)
        await self._cache.drop_turn(rid)

    async def body_digest(self, rid: str, owner: records.Owner) -> str | None:
        """Digest of the body that created a response; None if the log lost it. Raises like
        `cancel`, and Withdrawn."""
        if (await self._delivery.find(rid, owner, embeddings=True)).withdrawn:
            raise Withdrawn(rid)
        try:
            request = await self._delivery.request_of(rid, owner, embeddings=True)
            return request.body_digest
        except log.HistoryLost:
            return None

    async def input_items(
        self, rid: str, owner: records.Owner, *, images_whole: bool = True
    ) -> list[dict[str, Any]]:
        """The input items of this turn, oldest first, with ids. Raises like `cancel`.

        Args:
            images_whole: with the images; otherwise with their digests only.
        """
        request = await self._delivery.request_of(rid, owner)
        if not request.store:
            raise delivery.NotFound(rid)
        return await self.items_of(request, owner, images_whole=images_whole)

    async def items_of(
        self, request: records.Request, owner: records.Owner, *, images_whole: bool = True
    ) -> list[dict[str, Any]]:
        """The input items of a request's turn, like `input_items`.

        Raises:
            log.HistoryLost: an image of it is no longer stored.
            log.LogUnavailable
            errors.ApiError: 503, only the archive may have an image, and it does not answer.
        """
        digests = images.digests_in(request.input)
        showing = [
            m for m in request.messages if digests & {p["sha256"] for p in images.parts([m])}
        ]
        messages = await self._files.whole(owner, showing) if images_whole else []
        return [
            {"id": ids.item_id(request.rid, f"msg_{i}_"), **item}
            for i, item in enumerate(images.with_urls(request.input, messages))
        ]

    async def messages(self, rid: str, owner: records.Owner) -> list[dict[str, Any]]:
        """The messages of the model's prompt, with their files. Raises like `cancel`."""
        request = await self._delivery.request_of(rid, owner)
        return await self._files.whole(owner, request.messages)
