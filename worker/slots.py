"""Which response may use the engine next.

At most `capacity` responses run at once. Interactive requests go before batch requests, otherwise
the order of arrival counts.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable

Turn = asyncio.Future[None]


class Slots:
    """A pool of slots.

    Attributes:
        capacity: number of slots.
        running: slots in use.
        _waiting: (class rank, arrival, future), best first. Futures of requests that gave up stay
            until their turn comes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.running = 0
        self._waiting: list[tuple[int, int, Turn]] = []
        self._arrivals = itertools.count()

    @property
    def queued(self) -> int:
        """Number of requests that wait for a slot."""
        return sum(not turn.done() for _, _, turn in self._waiting)

    def acquire(self, rank: int) -> Turn:
        """Queue for a slot. The future is done when the slot is granted; then `release` the slot.
        `withdraw` the future to give up."""
        turn: Turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._arrivals), turn))
        self._admit()
        return turn

    def release(self) -> None:
        """Give a slot back."""
        self.running -= 1
        self._admit()

    def withdraw(self, turn: Turn) -> None:
        """Give up waiting; a slot that was granted already is given back."""
        if turn.done() and not turn.cancelled():
            self.release()
        else:
            turn.cancel()

    def _admit(self) -> None:
        while self._waiting and (self.running < self.capacity or self._waiting[0][2].done()):
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self.running += 1
                turn.set_result(None)


class HeldSlots:
    """The slots that one response holds, at most one of each pool.

    Attributes:
        _pools: pools a slot is held of; empty after `release`.
    """

    def __init__(self) -> None:
        self._pools: set[Slots] = set()

    def __contains__(self, pool: Slots) -> bool:
        return pool in self._pools

    async def acquire(
        self, pool: Slots, rank: int, wait: Callable[[Turn], Awaitable[None]]
    ) -> None:
        """Queue for a slot of `pool`. `wait` returns when the future is done, or when the slot is
        no longer wanted; then the request is withdrawn."""
        turn = pool.acquire(rank)
        try:
            await wait(turn)
        except asyncio.CancelledError:
            pool.withdraw(turn)
            raise
        if turn.done():
            self._pools.add(pool)
        else:
            pool.withdraw(turn)

    def release(self) -> None:
        """Give all slots back."""
        while self._pools:
            self._pools.pop().release()
