"""Who may use the engine next: at most `capacity` at once, interactive before batch, else in order
of arrival."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Slots:
    """Slots of the engine.

    Attributes:
        running: slots taken.
        _waiting: (class rank, arrival, future), best first; futures of those who gave up stay until
            they come up.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.running = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    @property
    def queued(self) -> int:
        """How many wait for a slot."""
        return sum(not turn.done() for _, _, turn in self._waiting)

    def acquire(self, rank: int) -> asyncio.Future[None]:
        """A future that is done once a slot is granted (then `release` it); cancel it to give up
        waiting."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._arrivals), turn))
        self._admit()
        return turn

    def release(self) -> None:
        """Give a slot back."""
        self.running -= 1
        self._admit()

    def withdraw(self, turn: asyncio.Future[None]) -> None:
        """Give up waiting, or the slot if it was granted already."""
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
