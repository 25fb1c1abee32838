"""Serves responses whose first token is late at another worker of the pool, while this one is idle
(log rule §26; docs/design/hedging.md). Best effort: Redis may be away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.protocol import topics
from tailrace.store.offers import Late, Offers
from worker.group.foreign_requests import ForeignRequests
from worker.group.request_consumer import RequestConsumer
from worker.serving.running_responses import RunningResponses
from worker.sharing import offer_channel

EVERY_S: Final = 0.1


class Hedging:
    """Accepts offers of gateways, for one worker."""

    def __init__(
        self,
        store: Offers[Late],
        responses: RunningResponses,
        consumer: RequestConsumer,
        foreign: ForeignRequests,
        *,
        pool: str,
        enabled: Callable[[], bool],
        engine_ok: Callable[[], bool] = lambda: True,
    ) -> None:
        """`enabled`: whether the pool hedges. `engine_ok`: whether the engine serves requests."""
        self._store = store
        self._responses = responses
        self._consumer = consumer
        self._foreign = foreign
        self._pool = pool
        self._enabled = enabled
        self._engine_ok = engine_ok

    async def run(self) -> None:
        """Accept until cancelled."""
        await offer_channel.rounds(self.step, "hedging", EVERY_S)

    async def step(self) -> None:
        """One round.

        Raises:
            StoreUnavailable, LogUnavailable, HistoryLost
        """
        if not self._enabled() or not self._room():
            return
        topic = topics.requests(self._pool, "interactive")
        for rid, late in (await self._store.all_of(self._pool)).items():
            if not self._room():
                return
            if late.partition in self._consumer.partitions or self._responses.serves(rid):
                continue
            # The worker that withdraws the offer serves it: one is enough.
            if await self._store.withdraw(self._pool, rid):
                at = [late.offset]
                await self._foreign.serve(topic, late.partition, at, self._room, hedged=True)

    def _room(self) -> int:
        return self._foreign.room if self._engine_ok() else 0
