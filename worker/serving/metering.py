"""Records about a finished response: usage, audit, dead letters."""

from __future__ import annotations

import zlib
from typing import Final

from tailrace import telemetry
from tailrace.log import interfaces
from tailrace.protocol import fold, records, segments, topics
from worker.log.appends import append_surely
from worker.serving import costs

USAGE_PARTITIONS: Final = topics.partitions_of(topics.USAGE)


def latencies(state: fold.Fold, request_ms: int) -> tuple[int | None, float | None]:
    """Time to the first token and mean time between tokens of a response that has ended, in ms (log
    rule §27). None where there is none or it would be wrong.

    Args:
        request_ms: broker time of the request; 0 where it is not known.
    """
    pace = state.pace
    if not pace.first_ms or state.answer_of:
        return None, None
    # Two brokers have two clocks, whose difference may exceed this time.
    first_token_ms = pace.first_ms - request_ms if 0 < request_ms <= pace.first_ms else None
    characters = state.first is not None and state.first.tokenizer_digest == segments.CHARACTERS
    inter_token_ms = None if characters else pace.token_ms(state.next)
    if inter_token_ms is not None and inter_token_ms < 0:
        inter_token_ms = None
    return first_token_ms, inter_token_ms


class Metering:
    """Writes records outside the token log. Each call returns once the broker has the record."""

    def __init__(
        self,
        writer: interfaces.RecordWriter,
        *,
        price: costs.Prices = lambda _model: None,
    ) -> None:
        self._writer = writer
        self._price = price

    def cost(self, request: records.Request, state: fold.Fold) -> costs.Cost | None:
        """The cost of a response that has ended, by the prices now; None where they are not
        known."""
        return costs.response_cost(request, state, self._price)

    async def record_usage(
        self, request: records.Request, state: fold.Fold, request_ms: int = 0
    ) -> None:
        """Append one record to usage and the same record to audit. `request_ms`: broker time of the
        request; 0 where it is not known."""
        assert state.ended is not None
        assert state.first is not None
        cost = self.cost(request, state)
        first_token_ms, inter_token_ms = latencies(state, request_ms)
        record = records.UsageRecord(
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
            cost_nano=sum(cost) if cost is not None else None,
            first_token_ms=first_token_ms,
            inter_token_ms=inter_token_ms,
        )
        key, value = request.owner.key, records.encode(record)
        place = zlib.crc32(key.encode()) % USAGE_PARTITIONS
        # An ambiguous append may double a record; readers count a response once.
        await append_surely(self._writer, topics.USAGE, place, key, value)
        await append_surely(self._writer, topics.AUDIT, 0, key, value)

    async def dead(self, letter: records.DeadLetter) -> None:
        """Append one dead letter."""
        telemetry.DEAD_LETTERS.labels(reason=letter.reason).inc()
        telemetry.log(
            telemetry.Action.DEAD_LETTER,
            response=letter.rid,
            reason=letter.reason,
            attempts=letter.attempts,
        )
        await append_surely(self._writer, topics.DLQ, 0, letter.rid, records.encode(letter))
