"""What is done to a response after its request got into the log: cancel, delete, list its input."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

from gateway import cache
from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import fold, ids, records, topics

CANCEL_DEADLINE_S: Final = 5.0
_END_OF_SERIES: Final = 2**53  # a cursor beyond every sequence_number: only the end is waited for


class ResponseOperations:
    """Over the log and what this process reads of it. `owner` is whoever asks; to anybody else's
    response the answer is NotFound."""

    def __init__(self, deliver: delivery.Delivery, writer: log.Writer, cached: cache.Cache) -> None:
        self._delivery = deliver
        self._writer = writer
        self._cache = cached

    async def cancel(self, rid: str, owner: records.Owner) -> dict[str, Any]:
        """Cancel and return the object as it then stands; what has ended already stays what it is.

        Raises:
            delivery.NotFound, log.HistoryLost, log.LogUnavailable
        """
        found = await self._delivery.find(rid, owner)
        if found.phase is not fold.Phase.DONE:
            await self.append_cancel(rid, owner, found.echo)
            await self._until_end(rid, owner)
            found = await self._delivery.find(rid, owner)
        return found.response

    async def append_cancel(self, rid: str, owner: records.Owner, echo: dict[str, Any]) -> None:
        """Have it end, whenever it comes to that. Raises log.AppendFailed."""
        value = records.encode(records.Cancel(rid, owner, echo))
        await self._writer.append(
            topics.TOKENS, ids.parse(rid).partition, rid, value, telemetry.trace_headers()
        )

    async def _until_end(self, rid: str, owner: records.Owner) -> None:
        """Until this process has read the end, which by now is in the log: whichever of END and
        CANCEL came first."""
        subscription = await self._delivery.watch(rid, owner, _END_OF_SERIES)
        try:
            async with asyncio.timeout(CANCEL_DEADLINE_S):
                while await subscription.next_events():
                    pass
        except TimeoutError as error:
            raise log.LogUnavailable("the log is not read right now") from error
        finally:
            subscription.close()

    async def delete(self, rid: str, owner: records.Owner) -> None:
        """Delete: running ones are cancelled first. Raises like `cancel`."""
        response = await self.cancel(rid, owner)
        if not response["store"]:
            raise delivery.NotFound(rid)
        value = records.encode(records.Deleted(rid, owner))
        await self._writer.append(
            topics.CONVERSATIONS,
            _conversation_partition(rid),
            rid,
            value,
            telemetry.trace_headers(),
        )
        self._delivery.deleted(rid)
        await self._cache.drop_turn(rid)

    async def input_items(self, rid: str, owner: records.Owner) -> list[dict[str, Any]]:
        """The items of this turn as they were given, oldest first, with ids. Raises like
        `cancel`."""
        found = await self._delivery.find(rid, owner)
        if not found.response["store"]:
            raise delivery.NotFound(rid)
        request = await self._delivery.request_of(rid, owner)
        return [
            {"id": ids.item_id(rid, f"msg_{i}_"), **item} for i, item in enumerate(request.input)
        ]


_CONVERSATION_PARTITIONS: Final = next(
    t.partitions for t in topics.table(()) if t.name == topics.CONVERSATIONS
)


def _conversation_partition(key: str) -> int:
    return (
        int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
        % _CONVERSATION_PARTITIONS
    )
