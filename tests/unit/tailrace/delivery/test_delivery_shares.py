"""What one principal's look-ups may cost the others. A made-up id with the right incarnation and
offset 0 reads all that the log holds of a partition, and the connections for that are few."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, events, ids, records, topics

TAG = ids.incarnation_tag("one")
ALICE, BOB = records.Owner("https://tests", "alice"), records.Owner("https://tests", "bob")
LENGTH = 120_000


class Slow:
    """A long partition of somebody's records behind one replay connection; `gate` holds every batch
    back."""

    def __init__(self, first: records.TokenRecord | None = None, at: int = 0) -> None:
        self.first, self.at = first, at
        self.gate = asyncio.Event()
        self.reads: list[tuple[str, int, int]] = []
        self.readers = 0
        self.most = 0
        self._connection = asyncio.Queue[None]()
        self._connection.put_nowait(None)

    def follows(self, _partition: int) -> bool:
        return True

    def next_offset(self, _partition: int) -> int:
        return LENGTH

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, LENGTH if topic == topics.TOKENS else 0)

    async def beginnings(self, _topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)

    async def committed(self, _group: str) -> dict[tuple[str, int], tuple[int, str]]:
        return {}

    async def read(
        self, topic: str, _partition: int, start: int, end: int
    ) -> AsyncIterator[list[log.Record]]:
        if topic != topics.TOKENS:
            return
        self.readers += 1
        self.most = max(self.most, self.readers)
        await self._connection.get()
        try:
            self.reads.append((topic, start, end))
            await self.gate.wait()
            if self.first is not None and start <= self.at < end:
                yield [
                    log.Record(
                        topic,
                        0,
                        self.at,
                        1,
                        self.first.rid.encode(),
                        records.encode(self.first),
                        (),
                    )
                ]
        finally:
            self.readers -= 1
            self._connection.put_nowait(None)


def made_up(n: int) -> str:
    return ids.mint(ids.Address(TAG, 0, 0), n.to_bytes(ids.RANDOM_BYTES, "big"))


def deliver(slow: Slow) -> delivery.Delivery:
    made = delivery.Delivery(
        bootstrap="nowhere:1", layout=log.Layout("one", TAG, 1), pools=["default"], preferred=[]
    )
    parts: Any = slow
    made._reader = made._replays = made._offsets = parts
    return made


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_principal_reads_few_at_once_and_the_rest_wait_their_turn() -> None:
    slow = Slow()
    made = deliver(slow)
    asked = [asyncio.create_task(made.find(made_up(n), ALICE)) for n in range(20)]
    await settle()
    assert slow.most == delivery.LOOK_UPS_AT_ONCE
    slow.gate.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {delivery.NotFound}
    assert slow.most == delivery.LOOK_UPS_AT_ONCE
    assert not made._shares


async def test_above_the_bound_the_answer_is_a_clear_429_for_this_principal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "LOOK_UPS_IN_ALL", 3)
    slow = Slow()
    made = deliver(slow)
    asked = [asyncio.create_task(made.find(made_up(n), ALICE)) for n in range(3)]
    await settle()
    with pytest.raises(errors.ApiError) as refused:
        await made.find(made_up(9), ALICE)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert int(refused.value.headers["retry-after"]) >= 1
    asked.append(asyncio.create_task(made.find(made_up(0), ALICE)))  # joins one that is under way
    asked.append(asyncio.create_task(made.find(made_up(9), BOB)))
    slow.gate.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {delivery.NotFound}
    with pytest.raises(delivery.NotFound):  # and afterwards there is room again
        await made.find(made_up(9), ALICE)


async def test_a_long_replay_lets_others_in_between_its_stretches() -> None:
    theirs = ids.mint(ids.Address(TAG, 0, LENGTH - 10), b"b" * ids.RANDOM_BYTES)
    slow = Slow(
        records.Claim(
            theirs, "a" * 32, None, BOB, "w/1", "t", 0, "r", "t", 0, events.echo(theirs, 1, "m")
        ),
        LENGTH - 5,
    )
    made = deliver(slow)
    long = asyncio.create_task(made.find(made_up(1), ALICE))
    await settle()
    short = asyncio.create_task(made.find(theirs, BOB))
    await settle()
    slow.gate.set()
    assert (await short).response["status"] == "in_progress"
    with pytest.raises(delivery.NotFound):
        await long
    starts = [start for _, start, _ in slow.reads]
    assert starts == [0, LENGTH - 10, delivery.STRETCH, 2 * delivery.STRETCH]
    assert all(end - start <= delivery.STRETCH for _, start, end in slow.reads)


async def test_a_response_that_spans_stretches_is_whole() -> None:
    rid = made_up(7)
    slow = Slow(
        records.Claim(
            rid, "a" * 32, None, ALICE, "w/1", "t", 0, "r", "t", 0, events.echo(rid, 1, "m")
        ),
        delivery.STRETCH,
    )
    slow.gate.set()
    found = await deliver(slow).find(rid, ALICE)
    assert found.claim is not None
    assert [(start, end) for _, start, end in slow.reads] == [
        (0, 50_000),
        (50_000, 100_000),
        (100_000, LENGTH),
    ]
