"""Responses that were submitted here, until they end: what they say of their pools, and their way
to another pool where their own cannot answer (log rule §22), or cannot go on (§25)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.load import breaker, breakers, canaries, hedging, pool_choice
from gateway.requests import request_writer
from gateway.responses import response_stream
from tailrace import log, settings, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import fold, records, segments, topics

LOOK_S: Final = 0.5
AT_ONCE: Final = 64  # reroutes under way
# A response that stands still for so long, in a broken pool, is continued by another one. Longer
# than `worker.serving.takeover.GRACE_MS`: a worker of its own model goes first.
STANDS_STILL_S: Final = 4.0
# Codes of failed responses by which their pool's engine is to blame (`worker.serving.claim_plan`).
_BROKEN: Final = frozenset({"server_error"})


@dataclass(slots=True, eq=False)
class Watched:
    """One response.

    Attributes:
        at: the pool that got its request last.
        others: pools that may answer it too, and did not get it yet.
        asked: the pool that was asked for.
        continuers: pools that may continue its text, and were not asked to yet.
        continuer: the last one that was; empty before.
        sent_at: when the pool got it (monotonic seconds).
        patience_s: how long it waits for a pool in which nothing moves.
        seen: claims and tokens at the last look.
        seen_at: when they last grew (monotonic seconds).
        told: something was said of the pool.
        judged: its revision was told of how it ended.
        late, stalled: so was that.
    """

    subscription: delivery.Subscription
    at: str
    others: list[str]
    priority: topics.PriorityClass
    partition: int
    asked_ms: int
    sent_at: float = 0.0
    patience_s: float = math.inf
    asked: str = ""
    continuers: list[str] = field(default_factory=list)
    continuer: str = ""
    seen: tuple[int, int] = (0, 0)
    seen_at: float = 0.0
    told: bool = False
    judged: bool = False
    late: bool = False
    stalled: bool = False

    @property
    def state(self) -> fold.Fold:
        return self.subscription.state

    @property
    def owner(self) -> str:
        """The pool whose worker has it, or else the one that got it last."""
        return topics.pool_of(self.state.topic) or self.at


class Rerouting:
    """Watches the responses of this gateway; `run` is its one task.

    Attributes:
        _watched: by response id.
        _moved_at: when a response of a pool was last seen to get on, by pool (monotonic seconds).
    """

    def __init__(
        self,
        pools: settings.CurrentPools,
        broken: breakers.Breakers,
        ways: pool_choice.Routes,
        writer: request_writer.RequestWriter,
        weighed: canaries.Canaries,
        late: hedging.Hedges,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools = pools
        self._breakers = broken
        self._routes = ways
        self._writer = writer
        self._canaries = weighed
        self._late = late
        self._clock = clock
        self._watched: dict[str, Watched] = {}
        self._moved_at: dict[str, float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    def add(self, rid: str, found: Watched) -> None:
        """A response was submitted here."""
        found.sent_at = found.seen_at = self._clock()
        self._watched[rid] = found

    def ended(self, stream: response_stream.ResponseStream) -> None:
        """Nobody here follows the response any more: it has ended, or cannot be followed."""
        self._late.ended(stream.rid)
        found = self._watched.pop(stream.rid, None)
        if found is None:
            return
        self._moved_at[found.owner] = self._clock()
        failed = _code(stream.final) in _BROKEN
        if failed or (stream.final is not None and stream.final["status"] != "cancelled"):
            self._of_revision(found, failed=failed)
        if failed:
            self._breakers.settled(found.owner, "failed")
        elif not found.told:
            answered = stream.final is not None and stream.final["status"] == "completed"
            if answered or found.state.next:
                self._went_well(found)
            else:
                self._breakers.left(found.owner)

    def began(self, stream: response_stream.ResponseStream, seconds: float) -> None:
        """The first token came, so long after the request."""
        self._late.began(stream.rid)
        found = self._watched.get(stream.rid)
        if found is not None and not found.state.served and not found.state.answer_of:
            self._canaries.began(found.owner, found.state.model[0], seconds)

    def _of_revision(self, found: Watched, *, failed: bool) -> None:
        """Say how a response ended, once."""
        if not found.judged and not found.state.served and not found.state.answer_of:
            found.judged = True
            self._canaries.ended(found.owner, found.state.model[0], failed=failed)

    async def look(self) -> None:
        """Tell the breakers what there is to tell, and send on what waits for a broken pool."""
        now = self._clock()
        due: list[tuple[Callable[[Watched], Awaitable[None]], Watched]] = []
        for found in list(self._watched.values()):
            if found.state.phase is fold.Phase.DONE:
                continue
            self._judge(found, now)
            if found.others and not found.state.next and self._stuck(found, now):
                due.append((self._send_on, found))
            elif self._stands_still(found, now):
                due.append((self._send_continuation, found))
        for at in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(send(found) for send, found in due[at : at + AT_ONCE]))

    def _judge(self, found: Watched, now: float) -> None:
        pool = self._pools.catalog.pool(found.owner)
        progress = (found.state.epoch, found.state.next)
        if progress != found.seen:
            found.seen, found.seen_at, found.stalled = progress, now, False
            self._moved_at[found.owner] = now
        if pool is None:
            return
        # The tokens before a continuation say nothing of the pool that is to continue.
        continued = found.continuer in ("", found.owner)
        if found.state.next and continued and not found.told:
            found.told = True
            self._went_well(found)
        late = 0 < pool.late_after_s < now - found.sent_at
        if late and not found.late and not found.state.next:
            found.late = found.told = True
            self._breakers.settled(pool.name, "late")
        since = found.seen_at
        if found.state.owner in found.state.yielded:  # it makes way for others that get on
            since = max(since, self._moved_at.get(found.owner, -math.inf))
        stalled = found.state.epoch and 0 < pool.stalled_after_s < now - since
        if stalled and not found.stalled:
            found.stalled = found.told = True
            self._of_revision(found, failed=True)
            self._breakers.settled(pool.name, "stalled")

    def _went_well(self, found: Watched) -> None:
        """It has tokens. A former answer says nothing of the pool's engines."""
        if found.state.answer_of:
            self._breakers.left(found.owner)
        else:
            self._breakers.settled(found.owner)

    def _stuck(self, found: Watched, now: float) -> bool:
        """Whether its pool is broken, or nothing of it was seen to move for as long as the request
        can wait: its workers may die one after the other, or not reach the log. Behind the
        deadline, too: the next pool says so then."""
        still_s = now - max(found.sent_at, self._moved_at.get(found.at, -math.inf))
        return still_s >= found.patience_s or self._breakers.state(found.at) is breaker.State.OPEN

    async def _send_on(self, found: Watched) -> None:
        """Give the request to the next pool. What fails is tried again: two copies are
        harmless."""
        request = records.decode_request(found.subscription.request)
        if request is None:
            found.others = []
            return
        to = self._routes.next(request, found.others)
        if to is not None:
            await self.send(request, found, to)

    def _stands_still(self, found: Watched, now: float) -> bool:
        """Whether another pool is to continue the text: the pool of its owner is broken, it stands
        still, and so is the pool that was asked to continue it, if one was."""
        pool = self._pools.catalog.pool(found.asked)
        return (
            bool(found.continuers)
            and pool is not None
            and pool.fallback_mid_answer
            and segments.possible(found.state)
            and now - max(found.seen_at, found.sent_at) > STANDS_STILL_S
            and all(
                self._breakers.state(name) is breaker.State.OPEN
                for name in {found.owner, found.continuer or found.owner}
            )
        )

    async def _send_continuation(self, found: Watched) -> None:
        """Ask the next pool to continue the text. Like `_send_on`."""
        request = records.decode_request(found.subscription.request)
        if request is None or not segments.allowed(request):
            found.continuers = []
            return
        continuers = [name for name in found.continuers if name != found.owner]
        to = self._routes.next(segments.prompt(request, "…"), continuers)
        if to is not None:
            await self.send(request, found, to, continues=True)

    async def send(
        self, request: records.Request, found: Watched, to: str, *, continues: bool = False
    ) -> None:
        """Give the request to the pool `to` too. `continues`: to continue its text."""
        reroute = records.Reroute(request.rid, request, found.asked_ms, continues)
        topic = topics.requests(to, found.priority)
        try:
            await self._writer.reroute(reroute, topic, found.partition)
        except log.AppendFailed as error:
            telemetry.log(telemetry.Action.TASK_FAILED, response=request.rid, exc_info=error)
            return
        moved(request.rid, found.at, to)
        found.others = [name for name in found.others if name != to]
        if continues:
            found.continuers = [name for name in found.continuers if name != to]
            found.continuer = to
        found.at, found.sent_at, found.told, found.late = to, self._clock(), False, False


def moved(rid: str, pool: str, to: str) -> None:
    """Count and log that another pool got a request than would have been its next."""
    telemetry.FALLBACKS.labels(pool=pool, to=to).inc()
    telemetry.log(telemetry.Action.RESPONSE_REROUTED, response=rid, pool=pool, to=to)


def _code(final: dict[str, Any] | None) -> str:
    error = (final or {}).get("error")
    return str(error["code"]) if error else ""
