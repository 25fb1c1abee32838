"""When frames go out."""

from __future__ import annotations

import asyncio

from worker import flush


def test_the_window_widens_with_load() -> None:
    assert [flush.window_s(n) for n in (0, 1, 2, 3, 16, 17, 500)] == [0, 0, 0, 0.01, 0.01, 0.04, 0.04]


async def test_everything_marked_in_a_window_goes_out_once_and_together() -> None:
    calls: list[str] = []
    flusher = flush.Flusher(lambda: 10)

    def first() -> None:
        calls.append("first")

    def second() -> None:
        calls.append("second")

    flusher.mark(first)
    flusher.mark(second)
    flusher.mark(first)
    assert calls == []
    await asyncio.sleep(0.03)
    assert calls == ["first", "second"]
    flusher.mark(second)
    await asyncio.sleep(0.03)
    assert calls == ["first", "second", "second"]


async def test_one_who_wrote_by_itself_is_not_called_again() -> None:
    calls: list[int] = []
    flusher = flush.Flusher(lambda: 1)

    def write() -> None:
        calls.append(1)

    flusher.mark(write)
    flusher.forget(write)
    await asyncio.sleep(0.01)
    assert calls == []
