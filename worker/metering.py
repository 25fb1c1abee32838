"""What is written about a finished response: usage, audit, dead letters."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from tailrace import settings, telemetry
from tailrace.log import interfaces
from tailrace.protocol import fold, records, topics
from worker.appends import append_surely

USAGE_PARTITIONS: Final = topics.partitions_of(topics.USAGE)


class Metering:
    """Writes records beside the token log. Each call returns once the broker has the record.

    Attributes:
        price: gives what tokens cost now.
    """

    def __init__(
        self,
        writer: interfaces.RecordWriter,
        *,
        price: Callable[[], settings.Price] = settings.Price,
    ) -> None:
        """`price`: gives what tokens cost now."""
        self._writer = writer
        self.price = price

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
