"""Work that has a deadline, and a caller that is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.log import deadlines
from tests.support import waiting


async def test_what_takes_longer_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def closing() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert not await deadlines.finishes_within(closing(), 0.01)
    await asyncio.wait_for(cancelled.wait(), 10)
    assert not await deadlines.finishes_within(failing(), 10)
    assert await deadlines.finishes_within(asyncio.sleep(0), 10)


async def failing() -> None:
    raise ValueError


async def test_what_a_cancelled_caller_was_closing_is_closed_all_the_same() -> None:
    closed = asyncio.Event()

    async def closing() -> None:
        await asyncio.sleep(0.01)
        closed.set()

    async def caller() -> None:
        await deadlines.finishes_within(closing(), 10)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)  # it has made the work, which has not begun
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    await waiting.eventually(closed.is_set, "what it was closing is closed")


async def test_a_client_that_cancels_its_own_start_does_not_cancel_its_caller() -> None:
    class Client:
        async def start(self) -> None:
            raise asyncio.CancelledError

    with pytest.raises(OSError, match="gave up"):
        await deadlines.start_client(Client())
