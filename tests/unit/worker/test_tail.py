"""What the tail keeps, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tailrace import log
from tailrace.protocol import ids, records, topics
from worker import clock, tail

OWNER = records.Owner("i", "s")


def rid(n: int) -> str:
    return ids.mint(ids.Address(b"abcd", 0, n), n.to_bytes(11, "big"))


def claim(name: str, own: str, prev: str | None = None) -> records.Claim:
    return records.Claim(name, own, prev, OWNER, "w", "t", 0, "m", "t")


def test_the_first_record_that_takes_effect_is_remembered_and_lost_claims_are_told_from_won_ones() -> (
    None
):
    entry = tail.Entry(0)
    entry.apply(claim("r", "late", prev="nobody"), 5, 0)
    assert entry.first == -1
    entry.apply(claim("r", "a"), 6, 0)
    entry.apply(claim("r", "b"), 7, 0)
    assert (entry.begun, entry.first) == (5, 6)
    assert entry.seen == {"late": False, "a": True, "b": False}


def test_who_listens_hears_of_ownership_and_ends_but_not_of_every_token() -> None:
    entry, heard = tail.Entry(0), []
    entry.listener = lambda: heard.append(entry.fold.next)
    entry.apply(claim("r", "a"), 0, 0)
    for seq in range(3):
        entry.apply(records.Tok("r", "a", seq, [1], "x", entry.fold.h), 1 + seq, 0)
    assert heard == [0]
    entry.apply(records.Yield("r", "a", 3), 4, 0)
    entry.apply(records.Cancel("r", OWNER), 5, 0)
    assert heard == [0, 3, 3]


def test_records_read_twice_change_nothing() -> None:
    entry = tail.Entry(0)
    for _ in range(2):
        entry.apply(claim("r", "a"), 0, 0)
        entry.apply(records.Tok("r", "a", 0, [7], "x", "0" * 16), 1, 0)
    assert entry.fold.ids == [7]
    assert entry.fold.voids == {}
    assert entry.seen == {"a": True}


def test_forgetting_raises_the_start_so_that_nothing_forgotten_can_look_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "MAX_FOLDS", 2)
    state = tail.Partition(start=0, position=10, target=0)
    for n in range(4):
        state.entry(rid(n)).apply(claim(rid(n), f"own{n}"), n, 0)
    state.entries[rid(0)].holds = 1

    tail._forget(state)

    assert list(state.entries) == [rid(0), rid(3)]
    assert state.start == 3
    again = state.entry(rid(2))
    assert ids.parse(rid(2)).offset < again.complete  # so `known` reads it back
    assert ids.parse(rid(3)).offset >= state.entries[rid(3)].complete


def test_a_response_never_seen_is_known_to_be_new_only_from_the_start_on() -> None:
    state = tail.Partition(start=50, position=60, target=60)
    tail._look(state)
    assert state.caught_up.is_set()
    assert state.entry(rid(49)).complete == 50 > ids.parse(rid(49)).offset
    assert state.entry(rid(50)).complete <= ids.parse(rid(50)).offset


async def test_a_reading_that_fails_half_way_gives_its_connection_back_at_once() -> None:
    given_back = []

    class Replays:
        async def read(self, *_range: object) -> AsyncIterator[list[log.Record]]:
            try:
                for offset in range(2):
                    yield [
                        log.Record(
                            topics.TOKENS,
                            0,
                            offset,
                            0,
                            rid(0).encode(),
                            records.encode(claim(rid(0), f"own{offset}")),
                            (),
                        )
                    ]
            finally:
                await asyncio.sleep(0)  # as closing a consumer takes time
                given_back.append(True)

    class Broken(tail.Entry):
        def apply(self, *_record: object) -> None:
            raise ValueError("ours")

    parts: Any = Replays()
    tailing = tail.Tail("nowhere:1", parts, clock.BrokerClock(), client_id="t")
    tailing._replays = parts
    with pytest.raises(ValueError, match="ours"):
        await tailing._replay(Broken(0), 0, rid(0), 0, 2)
    assert given_back == [True]


async def test_a_worker_whose_log_was_replaced_ends_instead_of_waiting_for_offsets_that_never_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looked again and again for offsets beyond the new log's end, and threw away every request
    of the new log as another log's."""

    class Emptied:
        async def start(self) -> None: ...

        async def stop(self) -> None: ...

        async def poll(self) -> list[log.Record]:
            raise log.HistoryLost("beyond the end")

    async def layout(_bootstrap: str) -> log.Layout:
        return log.Layout("two", ids.incarnation_tag("two"), 1)

    monkeypatch.setattr(log, "layout", layout)
    monkeypatch.setattr(tail, "RETRY_S", 0.0)
    parts: Any = Emptied()
    tailing = tail.Tail("nowhere:1", parts, clock.BrokerClock(), client_id="t")
    tailing._replays = tailing._reader = parts
    with pytest.raises(log.LogChanged):
        await asyncio.wait_for(tailing.run("one"), 5)
