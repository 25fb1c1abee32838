"""Which connection a partition is read on."""

from __future__ import annotations

from tailrace.delivery import log_clients, token_tail
from tailrace.log import interfaces
from tailrace.protocol import topics
from tests.support import memory_log


def made(
    preferred: list[int],
) -> tuple[token_tail.TokenTail, interfaces.TailReader, interfaces.TailReader]:
    broker = memory_log.MemoryLog()
    long_polled, on_demand = broker.reader(topics.TOKENS), broker.reader(topics.TOKENS)
    return token_tail.TokenTail(long_polled, on_demand, preferred), long_polled, on_demand


def test_preferred_and_on_demand_partitions_are_read_on_connections_of_their_own() -> None:
    """An on-demand one would wait for the long fetch of the others."""
    tail, long_polled, on_demand = made([2, 5])
    tail.follow(2, 10)
    tail.follow(3, 7)
    assert tail.readers == (long_polled, on_demand)
    assert (long_polled.follows(2), long_polled.follows(3)) == (True, False)
    assert (on_demand.follows(2), on_demand.follows(3)) == (False, True)
    assert log_clients.ON_DEMAND_WAIT_MS < log_clients.LONG_POLL_WAIT_MS


def test_it_answers_for_either_of_them() -> None:
    tail, _, _ = made([2])
    tail.follow(2, 10)
    tail.follow(3, 7)
    assert [tail.follows(p) for p in (2, 3, 4)] == [True, True, False]
    assert [tail.next_offset(p) for p in (2, 3)] == [10, 7]
    assert tail.positions == {2: 10, 3: 7}
    tail.leave(2)
    tail.leave(3)
    assert [tail.follows(p) for p in (2, 3)] == [False, False]


def test_without_preferred_partitions_only_the_on_demand_reader_is_polled() -> None:
    tail, _, on_demand = made([])
    assert tail.readers == (on_demand,)
    tail.follow(0, 1)
    assert on_demand.follows(0)
