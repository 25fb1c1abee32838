"""What is written about a finished response: usage, audit, dead letters, and prefix metadata in
Redis."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable
from typing import Final

from tailrace import settings, telemetry
from tailrace.log import interfaces
from tailrace.protocol import fold, records, topics
from tailrace.store.prefixes import Prefixes
from tailrace.store.redis_store import StoreUnavailable
from worker.appends import append_surely

USAGE_PARTITIONS: Final = topics.partitions_of(topics.USAGE)


class Metering:
    """Writes records beside the token log. Each call returns once the broker has the record.

    Attributes:
        price: gives what tokens cost now.
        _publishing: prefix publications under way. The set keeps their tasks alive, and `stop`
            waits for them.
    """

    def __init__(
        self,
        writer: interfaces.RecordWriter,
        prefixes: Prefixes | None,
        *,
        pool: str,
        worker: str,
        price: Callable[[], settings.Price] = settings.Price,
    ) -> None:
        """`price`: gives what tokens cost now."""
        self._writer = writer
        self._prefixes = prefixes
        self._pool = pool
        self._worker = worker
        self.price = price
        self._publishing: set[asyncio.Task[None]] = set()

    async def finished(self, request: records.Request, state: fold.Fold) -> None:
        """Append one record to usage and the same record to audit."""
        assert state.ended is not None
        assert state.first is not None
        metered = records.Metered(
            rid=request.rid,
            owner=request.owner,
            model=state.served or request.model,
            model_rev=state.model[0] if state.served else state.first.model_rev,
            status=state.ended.status,
            usage=state.ended.usage,
            claims=state.epoch,
            worker=state.claims[-1][1],
            ts=state.ended.timestamp,
            prompt_digest=request.prompt_digest,
            ids_digest=state.h,
            answer_of=state.answer_of,
        )
        key, value = request.owner.key, records.encode(metered)
        place = zlib.crc32(key.encode()) % USAGE_PARTITIONS
        # An ambiguous append may double a record; readers count a response once.
        await append_surely(self._writer, topics.USAGE, place, key, value)
        await append_surely(self._writer, topics.AUDIT, 0, key, value)

    async def dead(self, letter: records.Dead) -> None:
        """Append one dead letter."""
        telemetry.DEAD_LETTERS.labels(reason=letter.reason).inc()
        telemetry.log(
            telemetry.Action.DEAD_LETTER,
            response=letter.rid,
            reason=letter.reason,
            attempts=letter.attempts,
        )
        await append_surely(self._writer, topics.DLQ, 0, letter.rid, records.encode(letter))

    def prefix(self, request: records.Request, partition: int, cached_tokens: int) -> None:
        """Tell gateways which partition's engine has this prompt in its cache. Best effort: Redis
        may be away."""
        if self._prefixes is not None and request.prefix:
            task = asyncio.create_task(self._publish(request.prefix, partition, cached_tokens))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    async def stop(self) -> None:
        """Wait for publications under way; the Redis client bounds each of them."""
        if self._publishing:
            await asyncio.wait(self._publishing)

    async def _publish(self, digests: list[str], partition: int, cached_tokens: int) -> None:
        assert self._prefixes is not None
        with contextlib.suppress(StoreUnavailable):
            await self._prefixes.publish_prefix(
                self._pool, digests, partition, cached_tokens, self._worker
            )
