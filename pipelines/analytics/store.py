"""Folds the topics of results into a database: one in a file (`embedded`), or ClickHouse at a URL.

Both accept a batch any number of times, and store their position after it. So the process may be
killed at any moment, and a store that is away is retried until it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from pipelines import servers
from pipelines.analytics import clickhouse, jobs, results, twins
from tailrace import log
from tailrace.log import Mark, Position, interfaces
from tailrace.retry import retry_until

VARIABLE: Final = "TAILRACE_ANALYTICS_STORE"
RETRY_S: Final = 2.0

T = TypeVar("T")


class ResultStore(Protocol):
    """A database of results. All calls block; those of a server raise `servers.Unavailable`."""

    def release(self) -> None:
        """Let others use it, until it is used again."""

    def close(self) -> None:
        """Close it."""

    def positions(self) -> Mapping[tuple[str, int], Position]:
        """Topic and partition -> where the fold is."""

    def forget(self) -> None:
        """Delete all rows and positions."""

    def fold(
        self,
        result: jobs.Result,
        topic: str,
        partition: int,
        changes: Sequence[results.Change],
        position: Position,
    ) -> None:
        """Apply the changes of one partition, in order, up to `position`. Changes that were folded
        before have no effect."""

    def rows(self, result: jobs.Result) -> twins.Rows:
        """A whole table, in the form of the twins."""


def open_store(target: str) -> ResultStore:
    """The store of a setting: a URL of ClickHouse (`servers.parse`), or the path of a file.

    Raises:
        ValueError: the URL is invalid.
        ImportError: a file needs DuckDB, which is not installed.
    """
    if "://" in target:
        return clickhouse.ClickHouse(servers.parse(target))
    # Only this one needs DuckDB.
    from pipelines.analytics import embedded

    return embedded.Store(target)


async def run(store: ResultStore, bootstrap: str, prefix: str, *, once: bool = False) -> None:
    """Fold the topics of results, until it is cancelled or, with `once`, up to the end committed
    now. Begins anew where topics do not hold what was folded: they were rolled back, or made again.
    Raises TimeoutError: the broker does not answer."""
    while await _fold(store, bootstrap, prefix, once=once):
        pass


async def _fold(store: ResultStore, bootstrap: str, prefix: str, *, once: bool) -> bool:
    """Returns whether it has to begin anew."""
    by_topic = {result.topic(prefix): result for result in jobs.RESULTS}
    at = dict(await _call(store.positions))
    if topics := await find_rolled_back(bootstrap, at):
        _report(f"{', '.join(topics)} do not hold what was folded: all results are folded anew")
        await _call(store.forget)
        at = {}
    store.release()
    following = results.follow(bootstrap, list(by_topic), at, once=once)
    async with contextlib.aclosing(following) as batches:
        async for (topic, partition), batch in batches:
            before = at.get((topic, partition))
            if before is not None and batch[0].offset < before.next:
                return True
            position = Position(batch[-1].offset + 1, Mark.from_record(batch[-1]))
            changes = _changes(by_topic[topic], batch)
            await _call(
                lambda a=(by_topic[topic], topic, partition, changes, position): store.fold(*a)  # type: ignore[misc]
            )
            store.release()
            at[topic, partition] = position
    return False


def _changes(result: jobs.Result, batch: Sequence[log.Record]) -> list[results.Change]:
    """The changes of a batch. Records that are not results are skipped."""
    parsed = [(r, results.parse_change(result, r)) for r in batch]
    if odd := [r for r, change in parsed if change is None]:
        first = odd[0]
        _report(
            f"{len(odd)} records are not results and left out, from "
            f"{first.topic}/{first.partition}/{first.offset} on"
        )
    return [change for _, change in parsed if change is not None]


async def find_rolled_back(
    bootstrap: str, positions: Mapping[tuple[str, int], Position]
) -> list[str]:
    """The topics that do not hold what was folded. Waits for a broker that is away."""
    offsets, replays = log.Offsets(bootstrap), log.Replays(bootstrap, read_committed=True)
    try:
        return await retry_until(
            lambda: rolled_back_topics(offsets, replays, positions),
            on=log.LogUnavailable,
            pause_s=RETRY_S,
        )
    finally:
        await offsets.stop()
        await replays.stop()


async def rolled_back_topics(
    offsets: interfaces.OffsetQueries,
    replays: interfaces.RangeReader,
    positions: Mapping[tuple[str, int], Position],
) -> list[str]:
    """See `rolled_back`. Raises LogUnavailable."""
    by_topic: dict[str, dict[int, Position]] = {}
    for (topic, partition), position in positions.items():
        by_topic.setdefault(topic, {})[partition] = position
    return [
        topic
        for topic, places in by_topic.items()
        if await log.rolled_back(offsets, replays, topic, places)
    ]


async def _call(call: Callable[[], T]) -> T:
    """Call until the store answers."""

    async def attempt() -> T:
        return call()

    return await retry_until(attempt, on=servers.Unavailable, pause_s=RETRY_S, failed=_away)


def _away(error: Exception) -> None:
    _report(str(error))


def _report(text: str) -> None:
    sys.stderr.write(f"store: {text}\n")


def main() -> None:
    """`python -m pipelines.analytics.store STORE --kafka HOST:PORT`."""
    parser = argparse.ArgumentParser(description="Fold the results of analytics into a database.")
    parser.add_argument(
        "store",
        nargs="?",
        default=os.environ.get(VARIABLE),
        help=f"a file for DuckDB, or http(s)://user@host:port/database of ClickHouse ({VARIABLE})",
    )
    kafka = os.environ.get("TAILRACE_KAFKA")
    parser.add_argument(
        "--kafka", default=kafka, required=not kafka, help="its address (TAILRACE_KAFKA)"
    )
    parser.add_argument("--prefix", default="analytics", help="of the topics of results")
    parser.add_argument("--once", action="store_true", help="stop at what is committed now")
    options = parser.parse_args()
    if not options.store:
        parser.error(f"no store is named, and {VARIABLE} is not set")
    try:
        store = open_store(options.store)
    except ValueError as wrong:
        parser.error(f"{VARIABLE}: {wrong}")
    try:
        asyncio.run(run(store, options.kafka, options.prefix, once=options.once))
    except KeyboardInterrupt:
        pass
    finally:
        store.close()


if __name__ == "__main__":
    main()
