"""The results of analytics for a time range, out of their store, as rows that can be drawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipelines.view import queries

STEPS_MIN: Final = (1, 2, 5, 10, 30, 60, 180, 360, 720, 1_440)
MAX_POINTS: Final = 180
MAX_MINUTES: Final = 60 * 24 * 31
LATEST_MS: Final = 1 << 42  # in the year 2109
KEPT_S: Final = 5.0
MAX_KEPT: Final = 16
LOCKED_S: Final = 3.0
_PAUSE_S: Final = 0.05
_MINUTE_MS: Final = 60_000


class NoStore(Exception):
    """There is nothing to be read, for the reason that its text says to a person."""


class StoreBusy(Exception):
    """Another process has the file open."""


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


def read(path: Path, asked: Range) -> dict[str, Any]:
    """The results of a range: `from`, `to` and `step` in ms, and of each result `columns` and
    `rows`. Opens the file for as long as the queries take, and only to read.

    Raises:
        NoStore
        StoreBusy
    """
    try:
        import duckdb  # an extra: only analytics need it
    except ImportError:
        raise NoStore("DuckDB is not installed (pip install 'tailrace[analytics]').") from None
    if not path.is_file():
        raise NoStore(f"There is no store at {path.name}: analytics have not run yet.")
    db = _opened(duckdb, path)
    try:
        parameters = {
            "since": _time(asked.since),
            "until": _time(asked.until),
            "step": asked.step,
        }
        results = {}
        for name, (columns, query) in queries.RESULTS.items():
            rows = db.execute(query, parameters).fetchall()
            results[name] = {"columns": columns, "rows": [list(map(_plain, row)) for row in rows]}
    except duckdb.CatalogException:
        raise NoStore(f"{path.name} has no results of analytics.") from None
    finally:
        db.close()
    return {"from": asked.since, "to": asked.until, "step": asked.step, "results": results}


def _opened(duckdb: Any, path: Path) -> Any:
    """The file, once no other process writes it. Raises StoreBusy, NoStore."""
    end = time.monotonic() + LOCKED_S
    while True:
        try:
            return duckdb.connect(str(path), read_only=True, config={"threads": 1})
        except duckdb.IOException as error:
            if "lock" not in str(error):
                raise NoStore(f"{path.name} is not a store of analytics.") from error
            if time.monotonic() > end:
                raise StoreBusy from error
        time.sleep(_PAUSE_S)


def _time(ms: int) -> datetime:
    """As the store has it: in UTC, without a zone."""
    return datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)


def _plain(value: Any) -> Any:
    """Sums are decimals or 128-bit integers in the database."""
    return value if value is None or isinstance(value, str | int | float) else float(value)


class Plots:
    """Reads one store, once at a time, and keeps answers for a moment.

    Attributes:
        _kept: answers by range, with the time (monotonic seconds) until which they are given again.
        _turn: held while the file is read.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`path`: None where there is no store."""
        self._path = path
        self._clock = clock
        self._kept: dict[Range, tuple[float, dict[str, Any]]] = {}
        self._turn = asyncio.Lock()

    async def of(self, asked: Range) -> dict[str, Any]:
        """The results of a range, at most KEPT_S old.

        Raises:
            NoStore
            StoreBusy
        """
        if self._path is None:
            raise NoStore("No store of analytics was named: `serve` was started without --store.")
        async with self._turn:
            now = self._clock()
            self._kept = {each: kept for each, kept in self._kept.items() if kept[0] > now}
            if asked in self._kept:
                return self._kept[asked][1]
            found = await asyncio.to_thread(read, self._path, asked)
            if len(self._kept) < MAX_KEPT:
                self._kept[asked] = now + KEPT_S, found
            return found
