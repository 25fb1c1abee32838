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
        _has_offer: as far as is known, Redis may have an offer of this worker.
    """

    def __init__(self, store: Offers[T], pool: str, name: str) -> None:
        self._store = store
        self._pool = pool
        self._name = name
        self._has_offer = False

    async def publish(self, offer: T | None) -> None:
        """Replace the former offer by this one; None withdraws it."""
        if offer is not None:
            self._has_offer = True
            await self._store.publish(self._pool, self._name, offer)
        elif self._has_offer:
            await self._store.withdraw(self._pool, self._name)
            self._has_offer = False

    async def from_others(self) -> dict[str, T]:
        """The offers of the other workers, by their names."""
        offers = await self._store.all_of(self._pool)
        offers.pop(self._name, None)
        return offers


async def rounds(
    step: Callable[[], Awaitable[None]], part: str, every_s: float | None = None
) -> None:
    """Call `step` repeatedly until cancelled. The next round repeats what one could not do.

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
