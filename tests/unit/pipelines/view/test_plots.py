"""Ranges, and how often a store is read for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipelines.view import plots
from pipelines.view.plots import NoStore, Plots, Range, StoreUnavailable, range_of
from tests.support import cases
from tests.support.view_results import HOUR, MINUTE, T


def test_a_step_keeps_a_range_bounded() -> None:
    assert range_of(T, T + 60 * MINUTE) == HOUR
    assert range_of(T + 1, T + 60 * MINUTE - 1) == HOUR
    assert range_of(T, T + 24 * 60 * MINUTE).step == 10 * MINUTE
    for minutes in (1, 180, 181, 1_440, 10_080, plots.MAX_MINUTES):
        asked = range_of(T + 17, T + 17 + minutes * MINUTE)
        assert (asked.until - asked.since) / asked.step <= plots.MAX_POINTS + 1
        assert asked.since <= T + 17 < T + 17 + minutes * MINUTE <= asked.until


@cases.each(
    ("since", "until"),
    [
        (T, T),
        (T, T - 1),
        (T, T + (plots.MAX_MINUTES + 1) * MINUTE),
        (-MINUTE, 0),
        (1 << 50, (1 << 50) + MINUTE),
    ],
)
def test_ranges_that_are_none(since: int, until: int) -> None:
    with pytest.raises(ValueError, match="it "):
        range_of(since, until)


class FakeReader:
    def __init__(self) -> None:
        self.read_of: list[Range] = []
        self.error: Exception | None = None

    def read(self, asked: Range) -> dict[str, Any]:
        self.read_of.append(asked)
        if self.error:
            raise self.error
        return {"n": len(self.read_of)}

    def close(self) -> None:
        self.error = RuntimeError("it is closed")


async def test_a_range_is_read_once_for_many() -> None:
    clock = [0.0]
    of = Plots(FakeReader(), lambda: clock[0]).results_for
    assert await asyncio.gather(*(of(HOUR) for _ in range(5))) == [{"n": 1}] * 5
    other = HOUR._replace(step=2 * MINUTE)
    assert await of(other) == {"n": 2}
    clock[0] = plots.CACHE_S
    assert await of(HOUR) == {"n": 3}


async def test_a_store_that_is_away_is_not_asked_for_each_caller() -> None:
    clock, reader = [0.0], FakeReader()
    of = Plots(reader, lambda: clock[0]).results_for
    reader.error = StoreUnavailable("It is away.")
    for asked in (HOUR, HOUR, HOUR._replace(step=2 * MINUTE)):
        with pytest.raises(StoreUnavailable, match=r"It is away\."):
            await of(asked)
    assert reader.read_of == [HOUR]
    reader.error = None
    clock[0] = plots.CACHE_S
    assert await of(HOUR) == {"n": 2}
    assert await of(HOUR._replace(step=2 * MINUTE)) == {"n": 3}


async def test_another_error_is_of_its_caller_alone() -> None:
    reader = FakeReader()
    of = Plots(reader, lambda: 0.0).results_for
    reader.error = NoStore("None.")
    with pytest.raises(NoStore):
        await of(HOUR)
    reader.error = None
    assert await of(HOUR) == {"n": 2}


async def test_without_a_store_it_is_said_how_to_name_one() -> None:
    with pytest.raises(NoStore, match="--store"):
        await Plots(None).results_for(HOUR)
