"""The queue between uvicorn's protocol and the application."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.web import uvicorn_protocol


async def test_items_come_in_order_also_those_put_before_anybody_reads() -> None:
    box = uvicorn_protocol.Inbox()
    assert box.empty()
    for i in range(3):
        box.put_nowait(i)
    assert not box.empty()
    assert [await box.get() for _ in range(3)] == [0, 1, 2]
    assert box.empty()


async def test_a_reader_that_waits_is_woken_and_reads_what_came_meanwhile() -> None:
    box = uvicorn_protocol.Inbox()
    reading = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put_nowait("a")
    box.put_nowait("b")
    assert await asyncio.wait_for(reading, 5) == "a"
    assert await asyncio.wait_for(box.get(), 5) == "b"


async def test_a_reader_that_is_cancelled_takes_nothing_with_it() -> None:
    box = uvicorn_protocol.Inbox()
    reading = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put_nowait("a")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await asyncio.wait_for(box.get(), 5) == "a"
