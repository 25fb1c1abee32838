"""Tails the token topic on two connections: one for preferred partitions, one for on-demand ones.

A broker answers the fetches of one connection one after another. A partition that is added waits
until the fetch under way is over. Preferred partitions are followed for the life of the process,
so their fetch is a long poll. On-demand partitions come and go with their watchers, so their fetch
is short.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.log import interfaces


class TokenTail:
    """Behaves like one tail reader. A task of its own polls each of its `readers`.

    Attributes:
        _preferred: partitions read on the long-polled connection; fixed.
        _long_polled: reads the preferred partitions.
        _on_demand: reads every other partition.
    """

    def __init__(
        self,
        long_polled: interfaces.TailReader,
        on_demand: interfaces.TailReader,
        preferred: Iterable[int],
    ) -> None:
        self._preferred = frozenset(preferred)
        self._long_polled = long_polled
        self._on_demand = on_demand

    @property
    def readers(self) -> tuple[interfaces.TailReader, ...]:
        """The readers that may have something to read."""
        return (self._long_polled, self._on_demand) if self._preferred else (self._on_demand,)

    @property
    def positions(self) -> dict[int, int]:
        """Next offset of each followed partition."""
        return {**self._long_polled.positions, **self._on_demand.positions}

    def follow(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on."""
        self._reader(partition).follow(partition, offset)

    def leave(self, partition: int) -> None:
        """Stop reading `partition`."""
        self._reader(partition).leave(partition)

    def follows(self, partition: int) -> bool:
        """Whether `partition` is, or is about to be, followed."""
        return self._reader(partition).follows(partition)

    def next_offset(self, partition: int) -> int:
        """Next offset of a followed partition: everything below it was returned, or lies before the
        start."""
        return self._reader(partition).next_offset(partition)

    async def stop(self) -> None:
        """Close the connections; positions stay."""
        for reader in self.readers:
            await reader.stop()

    def _reader(self, partition: int) -> interfaces.TailReader:
        return self._long_polled if partition in self._preferred else self._on_demand
