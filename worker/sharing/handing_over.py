"""Offers running responses of another model revision to the workers that have it, and continues
what others offer (log rule P10; docs/design/revisions.md). Best effort: Redis may be away."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from tailrace import telemetry
from tailrace.protocol import ids, topics
from tailrace.store.offers import Offers
from worker.group.foreign_requests import ForeignRequests
from worker.serving.response_state import ResponseState
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext
from worker.sharing import offer_channel

# For this time a response is not accepted again. A stale offer may be read for longer; then the
# fold says that there is nothing to do.
RECENT_S: Final = 1.0
MAX_ORPHANS: Final = 256

# (rank, partition, offset)
At = tuple[int, int, int]


class Orphan(msgspec.Struct, frozen=True, array_like=True):
    """A response that has begun and lost its owner.

    Attributes:
        rank: of its priority class.
        offset: of its request, in the topic of its class.
        model: digest of the model that began it (`digest`).
    """

    rank: Annotated[int, msgspec.Meta(ge=0, lt=len(topics.CLASSES))]
    partition: Annotated[int, msgspec.Meta(ge=0, le=ids.MAX_PARTITION)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    model: Annotated[str, msgspec.Meta(max_length=32)]

    @property
    def at(self) -> At:
        """Where its request lies."""
        return self.rank, self.partition, self.offset


class Handover(msgspec.Struct, frozen=True):
    """What one worker offers."""

    orphans: Annotated[list[Orphan], msgspec.Meta(max_length=MAX_ORPHANS)]


def digest(model_rev: str, tokenizer_digest: str) -> str:
    """Names a model in offers."""
    return hashlib.sha256(f"{model_rev}\0{tokenizer_digest}".encode()).hexdigest()[:32]


class HandingOver:
    """Offers responses and accepts offers, for one worker.

    Attributes:
        _recent: where the requests of recently accepted responses lie, with the time from which
            they may be accepted again (monotonic seconds).
    """

    def __init__(
        self,
        store: Offers[Handover],
        context: WorkerContext,
        responses: RunningResponses,
        foreign: ForeignRequests,
        *,
        pool: str,
        name: str,
        engine_ok: Callable[[], bool] = lambda: True,
    ) -> None:
        """`engine_ok`: whether the engine serves requests."""
        self._offers = offer_channel.OfferChannel(store, pool, name)
        self._context = context
        self._responses = responses
        self._foreign = foreign
        self._pool = pool
        self._engine_ok = engine_ok
        self._recent: dict[At, float] = {}

    async def run(self) -> None:
        """Offer and accept until cancelled."""
        await offer_channel.rounds(self.step, "handing over")

    async def step(self) -> None:
        """One round.

        Raises:
            StoreUnavailable, LogUnavailable, HistoryLost
        """
        await self._offer()
        # Only a worker of another model offers anything.
        engine = self._context.engine
        own_model = engine.model_rev, engine.tokenizer_digest
        if any(other != own_model for other in self._context.others()) and self._room() > 0:
            await self._continue_offers(digest(*own_model))

    async def _offer(self) -> None:
        responses = [] if self._context.leaving else self._responses.orphans[:MAX_ORPHANS]
        orphans = [orphan for each in responses if (orphan := self._orphan(each)) is not None]
        telemetry.ORPHANED.set(len(orphans))
        await self._offers.publish(Handover(orphans) if orphans else None)

    def _orphan(self, response: ResponseState) -> Orphan | None:
        delivery, model = response.deliveries[-1], response.orphan_model
        if model is None:
            return None
        return Orphan(delivery.rank, delivery.partition, delivery.offset, digest(*model[:2]))

    def _room(self) -> int:
        """How many more responses may be accepted: as many as the engine runs at once. Those
        without a slot wait for one before all requests that have not begun."""
        if self._context.leaving or not self._engine_ok():
            return 0
        return self._context.engine_slots.bound - self._responses.handed_over_count

    async def _continue_offers(self, model: str) -> None:
        offers = await self._offers.from_others()
        now = self._context.monotonic()
        self._recent = {at: until for at, until in self._recent.items() if until > now}
        by_partition: dict[tuple[str, int], list[int]] = defaultdict(list)
        for offer in offers.values():
            for each in offer.orphans:
                if each.model == model and each.at not in self._recent:
                    self._recent[each.at] = now + RECENT_S
                    topic = topics.requests(self._pool, topics.CLASSES[each.rank])
                    by_partition[topic, each.partition].append(each.offset)
        for (topic, partition), offsets in by_partition.items():
            await self._foreign.serve(topic, partition, offsets, self._room, handed_over=True)
