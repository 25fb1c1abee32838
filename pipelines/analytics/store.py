"""Folds the topics of results into a database: one in a file (`embedded`), or ClickHouse at a URL.

Both take every batch any number of times, and remember behind it how far they have come. So the
process may be killed at any moment, and a store that was away is tried until it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from pipelines import servers
from pipelines.analytics import clickhouse, jobs, results, twins
from tailrace.retry import retry_until

VARIABLE: Final = "TAILRACE_ANALYTICS_STORE"
RETRY_S: Final = 2.0

T = TypeVar("T")


class ResultStore(Protocol):
    """A database of results. All calls block; those of a server raise `servers.Unavailable`."""

    def release(self) -> None:
        """Let others use it, until it is used again."""

    def close(self) -> None:
        """Let go of it."""

    def positions(self) -> Mapping[tuple[str, int], int]:
        """Topic and partition -> the next offset to be folded."""

    def fold(
        self,
        result: jobs.Result,
        topic: str,
        partition: int,
        changes: Sequence[results.Change],
        behind: int,
    ) -> None:
        """Apply the changes of one partition, in order, up to the offset `behind`. What was folded
        before has no effect."""

    def rows(self, result: jobs.Result) -> twins.Rows:
        """A whole table, as the twins say it."""


def opened(target: str) -> ResultStore:
    """The store of a setting: a URL of ClickHouse (`servers.parse`), or the path of a file.

    Raises:
        ValueError: the URL is none.
        ImportError: a file needs DuckDB, which is not installed.
    """
    if "://" in target:
        return clickhouse.ClickHouse(servers.parse(target))
    # Only this one needs DuckDB.
    from pipelines.analytics import embedded

    return embedded.Store(target)


async def run(store: ResultStore, bootstrap: str, prefix: str, *, once: bool = False) -> None:
    """Fold the topics of results, until it is cancelled or, with `once`, up to what is committed
    now. Raises TimeoutError: the broker does not answer."""
    by_topic = {result.topic(prefix): result for result in jobs.RESULTS}
    positions = await _answered(store.positions)
    store.release()
    batches = results.follow(bootstrap, list(by_topic), positions, once=once)
    async for (topic, partition), batch in batches:
        result = by_topic[topic]
        changes = [c for r in batch if (c := results.decoded(result, r)) is not None]
        behind = batch[-1].offset + 1
        await _answered(lambda a=(result, topic, partition, changes, behind): store.fold(*a))  # type: ignore[misc]
        store.release()


async def _answered(call: Callable[[], T]) -> T:
    """Call until the store answers."""

    async def attempt() -> T:
        return call()

    return await retry_until(attempt, on=servers.Unavailable, pause_s=RETRY_S, failed=_away)


def _away(error: Exception) -> None:
    sys.stderr.write(f"store: {error}\n")


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
        store = opened(options.store)
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
