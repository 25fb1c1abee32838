"""The results of analytics for a time range, from their store, as rows for plots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

STEPS_MIN: Final = (1, 2, 5, 10, 30, 60, 180, 360, 720, 1_440)
MAX_POINTS: Final = 180
MAX_MINUTES: Final = 60 * 24 * 31
LATEST_MS: Final = 1 << 42  # in the year 2109
CACHE_S: Final = 5.0
MAX_CACHED: Final = 16
_MINUTE_MS: Final = 60_000


class NoStore(Exception):
    """There is nothing to read. The text states the reason for users."""


class StoreBusy(Exception):
    """Another process has the file open."""


class StoreUnavailable(Exception):
    """The server does not answer in time. The text is for users."""


class Range(NamedTuple):
    """From `since` to before `until`, in ms since the epoch and at multiples of `step`."""

    since: int
    until: int
    step: int


def range_of(since_ms: int, until_ms: int) -> Range:
    """The range with the shortest step that leads to at most MAX_POINTS (one more where the times
    are between two steps).

    Raises:
        ValueError: it is empty, or too long.
    """
    minutes = (until_ms - since_ms) / _MINUTE_MS
    if not 0 < minutes <= MAX_MINUTES:
        raise ValueError(f"it has to have more than 0 and at most {MAX_MINUTES} minutes")
    if not 0 <= since_ms <= LATEST_MS:
        raise ValueError("it is of another age")
    step = next(each for each in STEPS_MIN if minutes / each <= MAX_POINTS or each == STEPS_MIN[-1])
    step *= _MINUTE_MS
    return Range(since_ms // step * step, -(-until_ms // step) * step, step)


class Reader(Protocol):
    """One store (`readers`)."""

    def read(self, time_range: Range) -> dict[str, Any]:
        """The results of a range: `from`, `to` and `step` in ms, and of each result `columns` and
        `rows`. Blocks.

        Raises:
            NoStore
            StoreBusy
            StoreUnavailable
        """

    def close(self) -> None:
        """Close it."""


class Plots:
    """Reads one store, one query at a time, and caches results briefly.

    Attributes:
        _cache: results by range, with the time (monotonic seconds) of their expiry.
        _away: until when a store that did not answer is not read again, and its error; None after
            a result. Each try takes seconds, and callers would wait for each other.
        _turn: held while the store is read.
    """

    def __init__(self, reader: Reader | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`reader`: None without a store."""
        self._reader = reader
        self._clock = clock
        self._cache: dict[Range, tuple[float, dict[str, Any]]] = {}
        self._away: tuple[float, str] | None = None
        self._turn = asyncio.Lock()

    async def results_for(self, time_range: Range) -> dict[str, Any]:
        """The results of a range, at most CACHE_S old.

        Raises:
            NoStore
            StoreBusy
            StoreUnavailable
        """
        if self._reader is None:
            raise NoStore("No store of analytics was named: `serve` was started without --store.")
        async with self._turn:
            now = self._clock()
            self._cache = {each: entry for each, entry in self._cache.items() if entry[0] > now}
            if time_range in self._cache:
                return self._cache[time_range][1]
            if self._away is not None and self._away[0] > now:
                raise StoreUnavailable(self._away[1])
            self._away = None
            try:
                results = await asyncio.to_thread(self._reader.read, time_range)
            except StoreUnavailable as error:
                self._away = self._clock() + CACHE_S, str(error)
                raise
            if len(self._cache) < MAX_CACHED:
                self._cache[time_range] = now + CACHE_S, results
            return results

    def close(self) -> None:
        """Close the store."""
        if self._reader is not None:
            self._reader.close()
