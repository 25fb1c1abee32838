"""What the workers of a pool offer each other, seen from one of them (log rule P10). Best effort:
Redis may be away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import msgspec

from tailrace import log, telemetry
from tailrace.store.offers import Offers
from tailrace.store.redis_store import StoreUnavailable

EVERY_S: Final = 0.25

T = TypeVar("T", bound=msgspec.Struct)


class OfferChannel(Generic[T]):
    """Offers of one kind. Every call raises StoreUnavailable.

    Attributes:
        _told: Redis has an offer of this worker, as far as is known.
    """

    def __init__(self, store: Offers[T], pool: str, name: str) -> None:
        self._store = store
        self._pool = pool
        self._name = name
        self._has_offer = False

    async def publish(self, offer: T | None) -> None:
        """Offer this, in place of what was offered before. None: nothing more."""
        if offer is not None:
            self._has_offer = True
            await self._store.publish(self._pool, self._name, offer)
        elif self._has_offer:
            await self._store.withdraw(self._pool, self._name)
            self._has_offer = False

    async def from_others(self) -> dict[str, T]:
        """What the other workers offer, by their names."""
        offers = await self._store.all_of(self._pool)
        offers.pop(self._name, None)
        return offers


async def rounds(
    step: Callable[[], Awaitable[None]], part: str, every_s: float | None = None
) -> None:
    """Call `step` again and again until cancelled. What one round could not do, the next one does.

    Args:
        part: names it in the log line of an error.
    """
    while True:
        try:
            await step()
        except (StoreUnavailable, log.LogUnavailable, log.HistoryLost):
            pass
        except Exception as error:  # a defect here must not end the worker
            telemetry.log(telemetry.Action.TASK_FAILED, part=part, exc_info=error)
        await asyncio.sleep(EVERY_S if every_s is None else every_s)
