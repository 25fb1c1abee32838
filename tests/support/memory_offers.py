"""What workers offer each other, in memory; and workers that the group has no partition for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from tailrace.store.redis_store import StoreUnavailable
from worker.group import membership
from worker.serving import response_task

T = TypeVar("T", bound=msgspec.Struct)


def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members and responses look again after a few milliseconds."""
    for name in ("COMMIT_S", "RETRY_S"):
        monkeypatch.setattr(membership, name, 0.005)
    monkeypatch.setattr(membership, "POLL_MS", 5)
    monkeypatch.setattr(response_task, "RECHECK_S", 0.005)


class MemoryOffers(Generic[T]):
    """Offers, each as the JSON that Redis would hold.

    Attributes:
        asked: how often they were read.
        away: Redis does not answer.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self.held: dict[str, bytes] = {}
        self.asked = 0
        self.away = False

    async def publish(self, pool: str, name: str, offer: T, ttl_s: float = 0) -> None:
        self._answer()
        self.held[name] = msgspec.json.encode(offer)

    async def withdraw(self, pool: str, name: str) -> bool:
        self._answer()
        return self.held.pop(name, None) is not None

    async def all_of(self, pool: str) -> dict[str, T]:
        self._answer()
        self.asked += 1
        return {n: msgspec.json.decode(value, type=self._kind) for n, value in self.held.items()}

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailable("away")


class Tasks(asyncio.TaskGroup):
    """Tasks that can be killed all at once, as the process's end does."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[asyncio.Task[Any]] = []

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self.made.append(task)
        return task

    async def kill(self) -> None:
        for task in self.made:
            task.cancel()
        await asyncio.gather(*self.made, return_exceptions=True)
