"""Offers waiting requests to idle workers of the pool, and serves offered ones while this one is
idle (log rule P10; docs/design/turns.md, Stealing). Best effort: Redis may be away."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from tailrace import telemetry
from tailrace.protocol import topics
from tailrace.store.offers import Offers
from worker.group.foreign_requests import ForeignRequests
from worker.group.request_consumer import RequestConsumer
from worker.queue import offer_selection
from worker.queue.offer_selection import At, Offer
from worker.queue.slots import STARTED
from worker.queue.workload import Workload
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext
from worker.sharing import offer_channel

# For this time a place is not accepted again: longer than a stale offer may be read.
RECENT_S: Final = 5.0


class Stealing:
    """Offers requests and steals offered ones, for one worker.

    Attributes:
        like: digest of what this worker serves (`offer_selection.Offer`).
        _recent: places that were accepted, with the time from which they may be accepted again.
    """

    def __init__(
        self,
        store: Offers[Offer],
        context: WorkerContext,
        responses: RunningResponses,
        consumer: RequestConsumer,
        foreign: ForeignRequests,
        workload: Workload,
        *,
        pool: str,
        name: str,
        after_s: float,
        engine_ok: Callable[[], bool] = lambda: True,
        below: Callable[[int], int] = random.randrange,
    ) -> None:
        """`engine_ok`: whether the engine serves requests. `below` gives a random number below its
        argument."""
        self._offers = offer_channel.OfferChannel(store, pool, name)
        self._context = context
        self._responses = responses
        self._consumer = consumer
        self._workload = workload
        self._pool = pool
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._foreign = foreign
        self._after_s = after_s
        self._engine_ok = engine_ok
        self._below = below
        self.like = _like(context)
        self._recent: dict[At, float] = {}

    async def run(self) -> None:
        """Offer and steal until cancelled."""
        await offer_channel.rounds(self.step, "stealing")

    async def step(self) -> None:
        """One round.

        Raises:
            StoreUnavailable, LogUnavailable, HistoryLost
        """
        await self._offer()
        if self._free():
            await self._steal()

    # ---- offers ----------------------------------------------------------------------------------

    async def _offer(self) -> None:
        slots, work = self._context.engine_slots, self._workload
        speed = offer_selection.Speed(
            work.part, work.each, work.forecast if work.measured else None
        )
        waiting = [] if self._context.leaving else self._responses.waiting
        places = offer_selection.select_offers(
            waiting, slots.waiting_cost(STARTED), speed, self._after_s
        )
        telemetry.OFFERED.set(len(places))
        length, pace = (
            self._context.engine.max_model_len,
            min(work.pace, offer_selection.MAX_FIGURE),
        )
        await self._offers.publish(Offer(self.like, length, pace, places) if places else None)

    # ---- stealing --------------------------------------------------------------------------------

    def _free(self) -> int:
        """How many requests of others this worker could start at once."""
        return self._foreign.room if self._engine_ok() else 0

    async def _steal(self) -> None:
        offers = await self._offers.from_others()
        now = self._context.monotonic()
        self._recent = {at: until for at, until in self._recent.items() if until > now}
        places = offer_selection.select_places(
            offers,
            like=self.like,
            length=self._context.engine.max_model_len,
            pace=self._workload.pace,
            free=self._free(),
            recent=self._recent,
            below=self._below,
        )
        by_partition: dict[tuple[str, int], list[int]] = defaultdict(list)
        for place in places:
            self._recent[place.at] = now + RECENT_S
            if place.rank < len(self._topics):
                by_partition[
                    topics.requests(self._pool, topics.CLASSES[place.rank]), place.partition
                ].append(place.offset)
        for (topic, partition), offsets in by_partition.items():
            await self._foreign.serve(topic, partition, offsets, self._free)


def _like(context: WorkerContext) -> str:
    """Digest of what a worker serves: its models, and what decides its engine's answers."""
    engine = context.engine
    parts = (
        *sorted(context.models | context.stands_in_for),
        context.model,
        engine.model_rev,
        engine.tokenizer_digest,
        ",".join((*sorted(engine.features), *(f"no {n}" for n in sorted(context.not_offered)))),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
