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


def test_the_installed_uvicorn_has_all_that_the_class_relies_on() -> None:
    assert uvicorn_protocol.missing() == []
    assert uvicorn_protocol.chosen() is uvicorn_protocol.Protocol


class Renamed:
    """A uvicorn whose protocol keeps its messages elsewhere and reads the request later."""

    def handle_connect(self, event: object) -> None:
        self.request = event
        self.queue = [event]
        self.queue.append(self.request)


def test_with_a_uvicorn_that_changed_its_own_class_serves_and_one_line_says_what_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "tailrace"):
        assert uvicorn_protocol.chosen(Renamed) == "websockets-sansio"
    (record,) = caplog.records
    assert record.__dict__["fields"]["changed"] == [
        "queue.put_nowait",
        "queue.get",
        "request, set and not read",
        "queue.append",
    ]
