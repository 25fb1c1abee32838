"""Keys by the log alone. Found after a flush of Redis between two tries: the second one made a
second response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from gateway.requests import idempotency_index
from tailrace import log
from tailrace.protocol import ids, records, topics
from tests.support import cases

ALICE, BOB = records.Owner("https://tests", "alice"), records.Owner("https://tests", "bob")
TOPIC = topics.requests("default", "interactive")
TAG = ids.incarnation_tag("one")


class OneLog:
    """Offsets and replays over a request partition; the others are empty. `reads` are the ranges
    asked for."""

    def __init__(self, begin: int = 0, low: int | None = None) -> None:
        self.begin = begin
        self.low = low
        self.records: list[log.Record] = []
        self.reads: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return self.begin + len(self.records)

    def append(
        self,
        key: str | None,
        owner: records.Owner = ALICE,
        rid: str = "",
        body: bytes | None = None,
        append_by: int = 0,
        at: int = 0,
    ) -> str:
        rid = rid or ids.mint(ids.Address(TAG, 0, 0), self.end.to_bytes(ids.RANDOM_BYTES, "big"))
        output = records.Request(
            rid,
            owner,
            "m",
            [{"role": "user", "content": '"idempotency_key"'}],
            records.Sampling(1),
            {},
            idempotency_key=key,
            append_by=append_by,
        )
        self.records.append(
            log.Record(
                TOPIC,
                0,
                self.end,
                at,
                rid.encode(),
                body if body is not None else records.encode(output),
                (),
            )
        )
        return rid

    async def ends(self, _topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {each: 0 if each else self.end for each in partitions}

    async def beginnings(self, _topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {each: 0 if each else self.begin for each in partitions}

    async def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        assert group == topics.group("default")
        return {} if self.low is None else {(TOPIC, 0): (self.low, "0")}

    async def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncIterator[list[log.Record]]:
        assert topic == TOPIC
        if partition:
            return
        if start < self.begin:
            raise log.HistoryLost("retention")
        self.reads.append((start, end))
        for record in self.records[start - self.begin : end - self.begin]:
            await asyncio.sleep(0)
            yield [record]


def over(one_log: OneLog) -> idempotency_index.IdempotencyIndex:
    parts: Any = one_log
    return idempotency_index.IdempotencyIndex(parts, parts)


async def ask(
    by_key: idempotency_index.IdempotencyIndex,
    key: str = "k",
    owner: records.Owner = ALICE,
    end: int = -1,
    partition: int = 0,
) -> list[str]:
    return await by_key.rids("default", "interactive", partition, (owner, key), end)


async def test_the_log_says_who_came_first_and_whose_key_it_is() -> None:
    one_log = OneLog()
    first, other, second = one_log.append("k"), one_log.append("k", BOB), one_log.append("k")
    one_log.append("another")
    one_log.append(None)
    one_log.append("k", rid=first)  # the ambiguous append, repeated
    by_key = over(one_log)
    assert await ask(by_key) == [first, second]
    assert await ask(by_key, owner=BOB) == [other]
    assert await ask(by_key, "unknown") == []


async def test_records_that_no_worker_would_take_hold_no_key() -> None:
    one_log = OneLog()
    rid = one_log.append("k")
    choice = one_log.records.pop().value
    one_log.append("k", rid="resp_other", body=choice)  # key and body disagree
    one_log.append("k", body=b'{"idempotency_key":"k"')
    one_log.append("k", body=(choice or b"").replace(b'"t":"REQUEST"', b'"t":"UNKNOWN"'))
    one_log.append("k", append_by=5, at=6)  # its gateway had given it up
    assert await ask(over(one_log)) == []
    assert one_log.append("k", rid=rid) in await ask(over(one_log))


async def test_everything_is_read_once_and_later_only_what_is_new() -> None:
    one_log = OneLog()
    one_log.append("k")
    by_key = over(one_log)
    await ask(by_key)
    one_log.append("k")
    assert len(await ask(by_key)) == 2
    assert await ask(by_key, end=1) == await ask(by_key)
    assert [r for r in one_log.reads if r[0] < r[1]] == [(0, 1), (1, 2)]


async def test_two_who_ask_at_once_fold_each_record_once() -> None:
    one_log = OneLog()
    rids = [one_log.append("k") for _ in range(5)]
    by_key = over(one_log)
    assert await asyncio.gather(ask(by_key), ask(by_key)) == [rids, rids]
    assert sum(end - start for start, end in one_log.reads) == 5


@cases.each(
    ("begin", "low", "start"),
    [
        (0, None, 0),  # a group that never committed: nothing is finished
        (0, 7, 7),  # what may still run is always looked at
        (9, 7, 9),  # as far as the log reaches
        (0, 2_500, 3_000 - idempotency_index.RECENT),  # and some finished ones
    ],
)
async def test_the_first_look_begins_where_something_may_still_run_or_a_bounded_stretch_back(
    begin: int, low: int | None, start: int
) -> None:
    one_log = OneLog(begin, low)
    while one_log.end < 3_000:
        one_log.append(None, body=b"{}")
    await ask(over(one_log))
    assert one_log.reads == [(start, 3_000)]


async def test_after_a_long_pause_it_does_not_read_all_that_passed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idempotency_index, "RECENT", 10)
    one_log = OneLog(low=0)
    first = one_log.append("k")
    by_key = over(one_log)
    assert await ask(by_key) == [first]
    for _ in range(99):
        one_log.append(None)
    one_log.low = 100
    assert await ask(by_key) == [first]
    assert one_log.reads[-1] == (90, 100)


async def test_memory_is_bounded_and_the_oldest_keys_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idempotency_index, "MAX_BYTES", 0)
    monkeypatch.setattr(idempotency_index, "RECENT", 3)
    one_log = OneLog()
    for n in range(5):
        one_log.append(f"k{n}")
    by_key = over(one_log)
    assert [bool(await ask(by_key, f"k{n}")) for n in range(5)] == [False, False, True, True, True]


async def test_all_partitions_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_index, "MAX_BYTES", 4 * idempotency_index.RID_BYTES)
    monkeypatch.setattr(idempotency_index, "RECENT", 1)
    one_log = OneLog()
    by_key = over(one_log)
    for _ in range(3):
        one_log.append("k")
    assert len(await ask(by_key)) == 3
    assert await ask(by_key, partition=1) == []
    for n in range(3):
        one_log.append(f"k{n}")
    assert [len(await ask(by_key, key)) for key in ("k", "k0", "k1", "k2")] == [0, 0, 1, 1]


async def test_when_retention_passes_the_place_the_next_look_finds_a_new_one() -> None:
    one_log = OneLog()
    one_log.append("k")
    by_key = over(one_log)
    await ask(by_key)
    one_log.begin, one_log.records = 50, []
    one_log.append("k")
    with pytest.raises(log.LogUnavailable):
        await ask(by_key)
    assert len(await ask(by_key)) == 2
