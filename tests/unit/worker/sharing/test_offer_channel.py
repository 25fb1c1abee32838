"""What a worker offers and is offered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tailrace.store.redis_store import StoreUnavailable
from tests.support.memory_offers import MemoryOffers
from worker.sharing import offer_channel


class Offer(msgspec.Struct, frozen=True):
    number: int


async def test_an_offer_is_told_replaced_and_taken_back_once() -> None:
    store = MemoryOffers(Offer)
    held: Any = store
    mine = offer_channel.OfferChannel(held, "default", "mine")
    await store.publish("default", "theirs", Offer(9))
    await mine.publish(Offer(1))
    await mine.publish(Offer(2))
    assert await store.all_of("default") == {"theirs": Offer(9), "mine": Offer(2)}
    assert await mine.from_others() == {"theirs": Offer(9)}
    await mine.publish(None)
    assert await store.all_of("default") == {"theirs": Offer(9)}
    store.away = True
    await mine.publish(None)  # nothing is asked of Redis


async def test_rounds_go_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offer_channel, "EVERY_S", 0.0)
    errors: list[Exception] = [StoreUnavailable("away"), ValueError("a defect")]
    done = asyncio.Event()

    async def step() -> None:
        if errors:
            raise errors.pop(0)
        done.set()

    running = asyncio.create_task(offer_channel.rounds(step, "a part"))
    async with asyncio.timeout(10):
        await done.wait()
    running.cancel()
    [told] = [r for r in caplog.records if r.message == "task_failed"]
    assert told.fields["part"] == "a part"  # type: ignore[attr-defined]
