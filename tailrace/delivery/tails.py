"""The live end of the token log, on two connections: home partitions and visited ones.

The broker answers one connection's fetches one after another, so a partition that is added waits
until the fetch under way is over. Home partitions stay for good and may be waited for as long as
nothing comes; visited ones come and go with their watchers, and there a fetch must be short.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace import log
from tailrace.protocol import topics

SETTLED_WAIT_MS: Final = 500
VISITED_WAIT_MS: Final = 50


class Tails:
    """As one `log.Reader`, but that each of its `readers` is polled by a task of its own."""

    def __init__(self, bootstrap: str, home: Iterable[int], *, client_id: str) -> None:
        self._home = frozenset(home)
        self._settled = log.Reader(
            bootstrap, topics.TOKENS, wait_ms=SETTLED_WAIT_MS, client_id=f"{client_id}-tail"
        )
        self._visited = log.Reader(
            bootstrap, topics.TOKENS, wait_ms=VISITED_WAIT_MS, client_id=f"{client_id}-visits"
        )

    @property
    def readers(self) -> tuple[log.Reader, ...]:
        """Those that may have something to read."""
        return (self._settled, self._visited) if self._home else (self._visited,)

    @property
    def positions(self) -> dict[int, int]:
        """Next offset of each followed partition."""
        return {**self._settled.positions, **self._visited.positions}

    def follow(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on."""
        self._of(partition).follow(partition, offset)

    def leave(self, partition: int) -> None:
        """Stop reading `partition`."""
        self._of(partition).leave(partition)

    def follows(self, partition: int) -> bool:
        """Whether `partition` is, or is about to be, followed."""
        return self._of(partition).follows(partition)

    def next_offset(self, partition: int) -> int:
        """Next offset of a followed partition: everything below it was returned, or lies before the
        start."""
        return self._of(partition).next_offset(partition)

    async def stop(self) -> None:
        """Close the connections; positions stay."""
        for reader in self.readers:
            await reader.stop()

    def _of(self, partition: int) -> log.Reader:
        return self._settled if partition in self._home else self._visited
