"""Wires the parts of a submission."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.files import files
from gateway.load import (
    breakers,
    canaries,
    hedging,
    pool_choice,
    principal_counts,
    rate_limits,
    worker_registry,
)
from gateway.requests import (
    admitting,
    appending,
    busy_turns,
    deciding,
    earlier,
    following,
    idempotency,
    preparing,
    request_builder,
    request_writer,
    rerouting,
    stream_keeper,
    submission,
    token_counts,
    turns,
    withdrawals,
)
from tailrace import settings
from tailrace.auth.principal import Principal
from tailrace.settings.shapes import Limits


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a submission. `permit` raises ApiError if the principal's credential was
    revoked."""

    pools: settings.CurrentPools
    limits: Limits
    builder: request_builder.RequestBuilder
    writer: request_writer.RequestWriter
    rates: rate_limits.RateLimiter
    keys: idempotency.Idempotency
    streams: stream_keeper.StreamKeeper
    workers: worker_registry.WorkerRegistry
    counts: principal_counts.PrincipalCounts
    permit: Callable[[Principal], None]
    withdrawals: withdrawals.Withdrawals
    files: files.Files
    turns: turns.Turns
    busy: busy_turns.BusyTurns
    tokens: token_counts.TokenCounts
    breakers: breakers.Breakers
    canaries: canaries.Canaries
    hedges: hedging.Hedges
    spawn: Callable[[Coroutine[Any, Any, None]], None]


def submission_of(
    parts: Parts, clock: Callable[[], float] = time.monotonic
) -> submission.Submission:
    """A submission made of these parts. `clock` times its watch over responses."""
    builder, writer, streams = parts.builder, parts.writer, parts.streams
    intake = admitting.Intake()
    routes = pool_choice.Routes(parts.pools, parts.breakers, parts.workers, builder.wait_s)
    watch = rerouting.Rerouting(
        *(parts.pools, parts.breakers, routes, writer, parts.canaries, parts.hedges), clock=clock
    )
    streams.on_end, streams.on_first_token = watch.on_end, watch.on_first_token
    admitting_stage = admitting.Admitting(
        *(parts.limits, intake, builder, writer, routes, parts.counts, streams)
    )
    earlier_requests = earlier.EarlierRequests(parts.keys, builder)
    return submission.Submission(
        intake,
        admitting_stage,
        deciding.Deciding(admitting_stage, builder, parts.turns),
        preparing.Preparing(builder, parts.rates, parts.tokens, parts.files, parts.permit),
        appending.Appending(writer, parts.keys, earlier_requests, parts.turns, parts.withdrawals),
        following.Following(builder, streams, routes, watch, parts.hedges, parts.spawn),
        earlier_requests,
        parts.rates,
        parts.busy,
        writer,
        streams,
    )
