"""How serving a response ended, and the records about it."""

from __future__ import annotations

import enum

from tailrace import telemetry
from tailrace.protocol import fold
from worker.log.tail_state import Entry
from worker.serving import claim_plan, costs
from worker.serving.response_state import ResponseState
from worker.serving.worker_context import WorkerContext


class Outcome(enum.Enum):
    """How serving a response ended here."""

    DONE = "done"  # the log says DONE
    LOST = "lost"  # its beginning is no longer in the log, or it belongs to another log
    LEFT = "left"  # the partition's present owner serves it


async def record_done(response: ResponseState, entry: Entry, context: WorkerContext) -> Outcome:
    """Write the records of a response that is DONE, then finish its offsets.

    Every worker that finishes the request writes these records, before the offset is finished: the
    worker that wrote END may have died right after it, or lost the partition in between. A crash
    repeats the records and never loses them. They are a function of the log, so copies are equal,
    and readers count a response once. Only the cost depends on the prices too, and the first
    token's time on the delivery (log rule §27): of copies that differ in these the first counts.
    """
    state, metering = entry.fold, context.metering
    assert state.ended is not None
    if state.owner in response.fencing_tokens:
        _note_end(response, state, state.ended)
        _note_cost(metering.cost(response.request, state))
        context.answers.store(response.request, context.engine, state, entry.draft)
    if state.first is not None and state.ended.reason != fold.HISTORY_LOST:
        letter = claim_plan.dead_letter(response.request, response.deliveries[-1], state)
        if letter is not None:
            await metering.dead(letter)
        await metering.record_usage(response.request, state, response.request_ms)
    # A device that receives the notice of the end finds the response in lists.
    await context.histories.write(response.request, response.partition, entry)
    await context.activity.write_end(response.request, state)
    response.finish()
    return Outcome.DONE


def record_lost(response: ResponseState, reason: str) -> Outcome:
    """Finish the offsets of a response that no worker can serve now."""
    telemetry.log(telemetry.Action.RECORD_UNREADABLE, response=response.rid, reason=reason)
    response.finish()
    return Outcome.LOST


def _note_cost(cost: costs.Cost | None) -> None:
    if cost is not None:
        telemetry.COST.labels(kind="input").inc(cost.input_nano / 1e9)
        telemetry.COST.labels(kind="output").inc(cost.output_nano / 1e9)


def _note_end(response: ResponseState, state: fold.Fold, ended: fold.Ended) -> None:
    usage = ended.usage
    telemetry.RESPONSES_ENDED.labels(status=ended.status).inc()
    if state.answer_of:
        telemetry.TOKENS.labels(kind="given").inc(usage.output_tokens)
    else:
        telemetry.TOKENS.labels(kind="prompt").inc(usage.input_tokens)
        telemetry.TOKENS.labels(kind="cached").inc(usage.cached_tokens)
        telemetry.TOKENS.labels(kind="output").inc(usage.output_tokens)
    telemetry.log(
        telemetry.Action.RESPONSE_ENDED,
        response=response.rid,
        status=ended.status,
        reason=ended.reason,
        epoch=state.epoch,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cached_answer=bool(state.answer_of),
    )
