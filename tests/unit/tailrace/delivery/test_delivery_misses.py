"""What is refused as not found costs the same look-ups, whatever it is. So the time of the refusal
does not tell whether a response exists. Counted are the look-ups, because times are noise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tailrace.delivery import delivery
from tailrace.log import interfaces
from tailrace.protocol import events, ids, records, topics
from tests.support import cases, gateway_parts, log_contract, memory_delivery, memory_log

TAG = ids.incarnation_tag("one")
ALICE, BOB = records.Owner("https://tests", "alice"), records.Owner("https://tests", "bob")
REQUESTS = topics.requests("default", "interactive")
BEHIND = 60_000  # records after the response: more than one stretch of a replay


class Counted(memory_log.MemoryLog):
    """A log that counts the questions about its offsets."""

    def __init__(self) -> None:
        super().__init__("one", 1)
        self.asked: list[tuple[str, str]] = []

    def offsets(self) -> interfaces.TimedOffsetQueries:
        real, asked = super().offsets(), self.asked

        class Queries:
            async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
                asked.append(("ends", topic))
                return await real.ends(topic, partitions)

            async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
                asked.append(("beginnings", topic))
                return await real.beginnings(topic, partitions)

            async def since(
                self, topic: str, partitions: Iterable[int], timestamp: int
            ) -> dict[int, int]:
                return await real.since(topic, partitions, timestamp)

            async def committed(self, group: str) -> Any:
                asked.append(("committed", group))
                return await real.committed(group)

            async def partitions(self, topic: str) -> int:
                return await real.partitions(topic)

            async def stop(self) -> None:
                await real.stop()

        return Queries()

    def forget_work(self) -> None:
        self.reads.clear()
        self.asked.clear()

    @property
    def work(self) -> tuple[list[Any], list[Any]]:
        """What was read, and what was asked, since `forget_work`. Where `llm.tokens` begins is
        asked by the tail, now and then."""
        tail = ("beginnings", topics.TOKENS)
        return list(self.reads), [each for each in self.asked if each != tail]


def request(rid: str) -> records.Request:
    return records.Request(
        rid, BOB, "m", [], records.Sampling(1), events.echo(rid, 1, "m", background=True)
    )


async def refused(made: delivery.Delivery, rid: str, owner: records.Owner) -> None:
    with pytest.raises(delivery.NotFound):
        await made.find(rid, owner)


@cases.each("kind", ["queued", "running", "ended", "deleted"])
@cases.each("warm", [False, True], ids=["cold", "its owner follows it here"])
async def test_a_response_of_somebody_else_costs_the_look_ups_of_an_unknown_one(
    kind: str, warm: bool
) -> None:
    broker = Counted()
    rid = ids.mint(ids.Address(TAG, 0, 0), b"b" * ids.RANDOM_BYTES)
    unknown = ids.mint(ids.Address(TAG, 0, 0), b"u" * ids.RANDOM_BYTES)
    broker.put_record(REQUESTS, 0, request(rid), rid)
    if kind != "queued":
        gateway_parts.put_answer(broker, request(rid), "one", end=kind != "running")
    if kind == "deleted":
        broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, BOB), rid)
    broker.skip_to(topics.TOKENS, 0, BEHIND)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        if kind == "deleted":
            await log_contract.until(lambda: made.known_deleted(rid, BOB), 5)
        elif warm:
            await made.watch(rid, BOB)
        broker.forget_work()
        await refused(made, unknown, ALICE)
        expected = broker.work
        assert sum(end - start for _, _, start, end in expected[0]) >= BEHIND
        for _ in range(2):  # the second time it is known here
            broker.forget_work()
            await refused(made, rid, ALICE)
            assert broker.work == expected
        if kind != "deleted":
            assert (await made.find(rid, BOB)).owner == BOB, "its owner finds it"


async def test_its_owner_finds_it_while_somebody_else_looks_for_it() -> None:
    broker = Counted()
    rid = ids.mint(ids.Address(TAG, 0, 0), b"b" * ids.RANDOM_BYTES)
    gateway_parts.put_answer(broker, request(rid), "one")
    broker.hold_replays()
    async with memory_delivery.running(
        memory_delivery.over(broker, preferred=[0]), ready=False
    ) as made:
        theirs = asyncio.create_task(refused(made, rid, ALICE))
        await log_contract.until(lambda: made.load(0) == 1, 5)
        mine = asyncio.create_task(made.find(rid, BOB))
        broker.release_replays()
        await theirs
        assert (await mine).response["status"] == "completed"
