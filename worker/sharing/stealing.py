"""Offers what waits here to idle workers of the pool, and takes what others offer while this one is
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
from worker.queue import offers
from worker.queue.offers import At, Offer
from worker.queue.slots import STARTED
from worker.queue.workload import Workload
from worker.serving.servings import Servings
from worker.serving.worker_context import WorkerContext
from worker.sharing import offering

# For so long a place is not taken again: longer than an offer that is stale already may be read.
TRIED_S: Final = 5.0


class Stealing:
    """Both sides of it, for one worker.

    Attributes:
        like: digest of what this worker serves (`offers.Offer`).
        _tried: places that were taken lately, with when they may be taken again.
    """

    def __init__(
        self,
        store: Offers[Offer],
        context: WorkerContext,
        servings: Servings,
        consumer: RequestConsumer,
        foreign: ForeignRequests,
        workload: Workload,
        *,
        pool: str,
        name: str,
        after_s: float,
        well: Callable[[], bool] = lambda: True,
        below: Callable[[int], int] = random.randrange,
    ) -> None:
        """`well`: whether the engine serves what it is given. `below` gives a random number below
        its argument."""
        self._offers = offering.Offering(store, pool, name)
        self._context = context
        self._servings = servings
        self._consumer = consumer
        self._workload = workload
        self._pool = pool
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._foreign = foreign
        self._after_s = after_s
        self._well = well
        self._below = below
        self.like = _like(context)
        self._tried: dict[At, float] = {}

    async def run(self) -> None:
        """Offer and take until cancelled."""
        await offering.rounds(self.step, "stealing")

    async def step(self) -> None:
        """One round.

        Raises:
            StoreUnavailable, LogUnavailable, HistoryLost
        """
        await self._offer()
        if self._free():
            await self._take()

    # ---- what waits here -------------------------------------------------------------------------

    async def _offer(self) -> None:
        slots, work = self._context.engine_slots, self._workload
        speed = offers.Speed(work.part, work.each, work.starts if work.measured else None)
        waiting = [] if self._context.leaving else self._servings.waiting
        places = offers.to_offer(waiting, slots.asked(STARTED), speed, self._after_s)
        telemetry.OFFERED.set(len(places))
        length, pace = self._context.engine.max_model_len, min(work.pace, offers.MAX_FIGURE)
        await self._offers.tell(Offer(self.like, length, pace, places) if places else None)

    # ---- what waits elsewhere --------------------------------------------------------------------

    def _free(self) -> int:
        """How many requests of others this worker could begin with at once."""
        return self._foreign.room if self._well() else 0

    async def _take(self) -> None:
        offered = await self._offers.of_others()
        now = self._context.monotonic()
        self._tried = {at: until for at, until in self._tried.items() if until > now}
        taken = offers.to_take(
            offered,
            like=self.like,
            length=self._context.engine.max_model_len,
            pace=self._workload.pace,
            free=self._free(),
            tried=self._tried,
            below=self._below,
        )
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for place in taken:
            self._tried[place.at] = now + TRIED_S
            if place.rank < len(self._topics):
                found[
                    topics.requests(self._pool, topics.CLASSES[place.rank]), place.partition
                ].append(place.offset)
        for (topic, partition), wanted in found.items():
            await self._foreign.serve(topic, partition, wanted, self._free)


def _like(context: WorkerContext) -> str:
    """Digest of what a worker serves: its models, and what its engine makes of a request."""
    engine = context.engine
    parts = (
        *sorted(context.models | context.stands_in_for),
        context.model,
        engine.model_rev,
        engine.tokenizer_digest,
        ",".join((*sorted(engine.features), *(f"no {n}" for n in sorted(context.not_offered)))),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
