"""Watches the responses that were submitted here until they end. It reports the health of their
pools to the circuit breakers, and sends a response to another pool when its own cannot answer (log
rule §22) or cannot continue (§25)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.load import breaker, pool_choice
from gateway.load.breakers import Breakers
from gateway.load.canaries import Canaries
from gateway.load.hedging import Hedges
from gateway.requests import request_writer
from gateway.responses import response_stream
from tailrace import log, settings, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import fold, records, segments, topics

CHECK_S: Final = 0.5
AT_ONCE: Final = 64  # reroutes under way
# A response without progress for this long in a broken pool is continued by another pool. Longer
# than `worker.serving.takeover.GRACE_MS`, so that a worker of its own model takes over first.
STALLED_S: Final = 4.0
# Codes of failures that the pool's engine caused (`worker.serving.claim_plan`).
_ENGINE_FAILURES: Final = frozenset({"server_error"})


@dataclass(slots=True, eq=False)
class WatchedResponse:
    """One response.

    Attributes:
        at: the pool that got its request last.
        others: pools that may also answer it and did not get it yet.
        requested_pool: the pool that the client named.
        continuers: pools that may continue its text and were not asked to yet.
        continuer: the last one that was asked; empty before.
        sent_at: when pool `at` got it (monotonic seconds).
        patience_s: how long it waits for a pool without any progress.
        progress: claims and tokens at the last check.
        progress_at: when they last grew (monotonic seconds).
        reported: an outcome was reported to the pool's breaker.
        revision_reported: its end was reported for its model revision.
        late, stalled: this was reported to the breaker.
    """

    subscription: delivery.Subscription
    at: str
    others: list[str]
    priority: topics.PriorityClass
    partition: int
    appended_ms: int
    sent_at: float = 0.0
    patience_s: float = math.inf
    requested_pool: str = ""
    continuers: list[str] = field(default_factory=list)
    continuer: str = ""
    progress: tuple[int, int] = (0, 0)
    progress_at: float = 0.0
    reported: bool = False
    revision_reported: bool = False
    late: bool = False
    stalled: bool = False

    @property
    def state(self) -> fold.Fold:
        return self.subscription.state

    @property
    def owner(self) -> str:
        """The pool of its worker, or else the pool that got it last."""
        return topics.pool_of(self.state.topic) or self.at


class Rerouting:
    """Watches the responses of this gateway; `run` is its only task.

    Attributes:
        _responses: by response id.
        _progress_at: when a response of a pool last made progress, by pool (monotonic seconds).
    """

    def __init__(
        self,
        pools: settings.CurrentPools,
        breakers: Breakers,
        routes: pool_choice.Routes,
        writer: request_writer.RequestWriter,
        canaries: Canaries,
        hedges: Hedges,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools = pools
        self._breakers = breakers
        self._routes = routes
        self._writer = writer
        self._canaries = canaries
        self._hedges = hedges
        self._clock = clock
        self._responses: dict[str, WatchedResponse] = {}
        self._progress_at: dict[str, float] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_S)

    def add(self, rid: str, response: WatchedResponse) -> None:
        """Watch a response that was submitted here."""
        response.sent_at = response.progress_at = self._clock()
        self._responses[rid] = response

    def on_end(self, stream: response_stream.ResponseStream) -> None:
        """The response has ended, or can no longer be followed."""
        self._hedges.on_end(stream.rid)
        response = self._responses.pop(stream.rid, None)
        if response is None:
            return
        self._progress_at[response.owner] = self._clock()
        failed = _code(stream.final) in _ENGINE_FAILURES
        if failed or (stream.final is not None and stream.final["status"] != "cancelled"):
            self._report_revision(response, failed=failed)
        if failed:
            self._breakers.record(response.owner, "failed")
        elif not response.reported:
            completed = stream.final is not None and stream.final["status"] == "completed"
            if completed or response.state.next:
                self._report_success(response)
            else:
                self._breakers.release(response.owner)

    def on_first_token(self, stream: response_stream.ResponseStream, seconds: float) -> None:
        """The first token came, `seconds` after the request."""
        self._hedges.on_first_token(stream.rid)
        response = self._responses.get(stream.rid)
        if response is not None and not response.state.served and not response.state.answer_of:
            self._canaries.on_first_token(response.owner, response.state.model[0], seconds)

    def _report_revision(self, response: WatchedResponse, *, failed: bool) -> None:
        """Report the end of a response for its revision, once."""
        if (
            not response.revision_reported
            and not response.state.served
            and not response.state.answer_of
        ):
            response.revision_reported = True
            self._canaries.on_end(response.owner, response.state.model[0], failed=failed)

    async def check(self) -> None:
        """Report outcomes to the breakers, and reroute responses that wait for a broken pool."""
        now = self._clock()
        jobs: list[tuple[Callable[[WatchedResponse], Awaitable[None]], WatchedResponse]] = []
        for response in list(self._responses.values()):
            if response.state.phase is fold.Phase.DONE:
                continue
            self._judge(response, now)
            if response.others and not response.state.next and self._needs_reroute(response, now):
                jobs.append((self._send_on, response))
            elif self._needs_continuation(response, now):
                jobs.append((self._send_continuation, response))
        for at in range(0, len(jobs), AT_ONCE):
            await asyncio.gather(*(send(response) for send, response in jobs[at : at + AT_ONCE]))

    def _judge(self, response: WatchedResponse, now: float) -> None:
        pool = self._pools.catalog.pool(response.owner)
        progress = (response.state.epoch, response.state.next)
        if progress != response.progress:
            response.progress, response.progress_at, response.stalled = progress, now, False
            self._progress_at[response.owner] = now
        if pool is None:
            return
        # Tokens from before a continuation are no evidence about the continuing pool.
        continued = response.continuer in ("", response.owner)
        if response.state.next and continued and not response.reported:
            response.reported = True
            self._report_success(response)
        late = 0 < pool.late_after_s < now - response.sent_at
        if late and not response.late and not response.state.next:
            response.late = response.reported = True
            self._breakers.record(pool.name, "late")
        since = response.progress_at
        # It is paused for other responses, which make progress.
        if response.state.owner in response.state.yielded:
            since = max(since, self._progress_at.get(response.owner, -math.inf))
        stalled = response.state.epoch and 0 < pool.stalled_after_s < now - since
        if stalled and not response.stalled:
            response.stalled = response.reported = True
            self._report_revision(response, failed=True)
            self._breakers.record(pool.name, "stalled")

    def _report_success(self, response: WatchedResponse) -> None:
        """Report a success. A cached answer is no evidence about the pool's engines."""
        if response.state.answer_of:
            self._breakers.release(response.owner)
        else:
            self._breakers.record(response.owner)

    def _needs_reroute(self, response: WatchedResponse, now: float) -> bool:
        """Whether its pool is broken, or made no progress for as long as the request may wait: its
        workers may crash one after the other, or not reach the log. This also holds after the
        deadline: then the next pool ends the request."""
        still_s = now - max(response.sent_at, self._progress_at.get(response.at, -math.inf))
        return (
            still_s >= response.patience_s
            or self._breakers.state(response.at) is breaker.State.OPEN
        )

    async def _send_on(self, response: WatchedResponse) -> None:
        """Send the request to the next pool. A failure is retried, because two copies are
        harmless."""
        request = records.decode_request(response.subscription.request)
        if request is None:
            response.others = []
            return
        to = self._routes.next(request, response.others)
        if to is not None:
            await self.send(request, response, to)

    def _needs_continuation(self, response: WatchedResponse, now: float) -> bool:
        """Whether another pool must continue the text: it makes no progress, and the pool of its
        owner and the last continuing pool are broken."""
        pool = self._pools.catalog.pool(response.requested_pool)
        return (
            bool(response.continuers)
            and pool is not None
            and pool.fallback_mid_answer
            and segments.state_allows(response.state)
            and now - max(response.progress_at, response.sent_at) > STALLED_S
            and all(
                self._breakers.state(name) is breaker.State.OPEN
                for name in {response.owner, response.continuer or response.owner}
            )
        )

    async def _send_continuation(self, response: WatchedResponse) -> None:
        """Send the request to the next pool to continue the text. Like `_send_on`."""
        request = records.decode_request(response.subscription.request)
        if request is None or not segments.request_allows(request):
            response.continuers = []
            return
        continuers = [name for name in response.continuers if name != response.owner]
        to = self._routes.next(segments.prompt(request, "…"), continuers)
        if to is not None:
            await self.send(request, response, to, continues=True)

    async def send(
        self,
        request: records.Request,
        response: WatchedResponse,
        to: str,
        *,
        continues: bool = False,
    ) -> None:
        """Send the request to the pool `to`. `continues`: to continue its text."""
        reroute = records.Reroute(request.rid, request, response.appended_ms, continues)
        topic = topics.requests(to, response.priority)
        try:
            await self._writer.reroute(reroute, topic, response.partition)
        except log.AppendFailed as error:
            telemetry.log(telemetry.Action.TASK_FAILED, response=request.rid, exc_info=error)
            return
        count_reroute(request.rid, response.at, to)
        response.others = [name for name in response.others if name != to]
        if continues:
            response.continuers = [name for name in response.continuers if name != to]
            response.continuer = to
        response.at, response.sent_at, response.reported, response.late = (
            to,
            self._clock(),
            False,
            False,
        )


def count_reroute(rid: str, pool: str, to: str) -> None:
    """Count and log a request that pool `to` got instead of `pool`."""
    telemetry.FALLBACKS.labels(pool=pool, to=to).inc()
    telemetry.log(telemetry.Action.RESPONSE_REROUTED, response=rid, pool=pool, to=to)


def _code(final: dict[str, Any] | None) -> str:
    error = (final or {}).get("error")
    return str(error["code"]) if error else ""
