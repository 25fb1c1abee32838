"""Look-ups beside a tail that is behind. Each was found in a fault run.

On an instance whose tail was behind, a response that another instance had just acknowledged was
answered 404. On one that had just started, a stream looked up before the tail had its preferred
partitions stood still: the tail began again further on, and what lay between was missing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from tailrace import log
from tailrace.delivery import catch_up, delivery, whole_topic
from tailrace.protocol import events, fold, ids, records, topics
from tests.support import cases, gateway_parts, log_contract, memory_delivery, memory_log

TAG = ids.incarnation_tag("one")
OWNER = records.Owner("https://tests", "alice")
REQUESTS = topics.requests("default", "interactive")


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    return memory_log.MemoryLog("one", 1)


def request(rid: str) -> records.Request:
    return records.Request(
        rid, OWNER, "m", [], records.Sampling(1), events.echo(rid, 1, "m", background=True)
    )


def minted_at(offset: int) -> str:
    return ids.mint(ids.Address(TAG, 0, offset), b"x" * 11)


def claim(asked: records.Request) -> records.Claim:
    return records.Claim(
        asked.rid, "a" * 32, None, OWNER, "w/1", REQUESTS, 0, "r", "t", 0, asked.echo
    )


def put_others(broker: memory_log.MemoryLog, count: int) -> None:
    """Records of another response."""
    other = records.Cancel(ids.mint(ids.Address(TAG, 0, 0), b"y" * 11), OWNER)
    for _ in range(count):
        broker.put_record(topics.TOKENS, 0, other, other.rid)


async def test_a_response_minted_beyond_our_tail_is_found_by_its_request(
    broker: memory_log.MemoryLog,
) -> None:
    broker.lag(topics.TOKENS, 0, 2)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        put_others(broker, 5)
        asked = request(minted_at(5))
        broker.put_record(REQUESTS, 0, asked, asked.rid)
        assert (await made.watch(asked.rid, OWNER)).status == "queued"


async def test_an_id_beyond_the_end_of_the_log_is_lost_although_the_tail_is_behind(
    broker: memory_log.MemoryLog,
) -> None:
    """A log that was rolled back ends below it."""
    broker.lag(topics.TOKENS, 0, 2)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        put_others(broker, 5)
        with pytest.raises(log.HistoryLost):
            await asyncio.wait_for(made.find(minted_at(6), OWNER), 5)


async def test_a_response_finished_and_committed_while_our_tail_was_behind_is_found_by_the_tail(
    broker: memory_log.MemoryLog,
) -> None:
    broker.lag(topics.TOKENS, 0, 0)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        asked = request(minted_at(0))
        broker.put_record(REQUESTS, 0, asked, asked.rid)
        broker.put_record(topics.TOKENS, 0, claim(asked), asked.rid)
        broker.committed_offsets[topics.group("default")] = {(REQUESTS, 0): (1, "0")}
        looking = asyncio.create_task(made.find(asked.rid, OWNER))
        done, _ = await asyncio.wait({looking}, timeout=0.05)
        assert not done
        broker.catch_up(topics.TOKENS, 0)
        assert (await looking).response["status"] == "in_progress"


async def test_an_unknown_id_is_not_found_as_soon_as_the_tail_has_read_everything(
    broker: memory_log.MemoryLog,
) -> None:
    broker.lag(topics.TOKENS, 0, 0)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        put_others(broker, 1)
        looking = asyncio.create_task(made.find(minted_at(0), OWNER))
        done, _ = await asyncio.wait({looking}, timeout=0.05)
        assert not done
        broker.catch_up(topics.TOKENS, 0)
        with pytest.raises(delivery.NotFound):
            await looking


async def test_a_stream_opened_during_the_start_keeps_the_place_where_the_tail_began_for_it(
    broker: memory_log.MemoryLog,
) -> None:
    put_others(broker, 5)
    broker.hold_replays()  # the start is not over before its replays are connected
    made = memory_delivery.over(broker, preferred=[0])
    starting = asyncio.create_task(made.run())
    try:
        asked = request(await made.mint(0))  # the tail begins at 5 for this one
        made.open(asked, records.encode(asked))
        made.confirm(asked.rid)
        broker.put_record(topics.TOKENS, 0, claim(asked), asked.rid)
        put_others(broker, 3)
        broker.release_replays()
        subscription = await made.watch(asked.rid, OWNER)
        await log_contract.until(lambda: subscription.status == "in_progress", 5)
    finally:
        starting.cancel()
        await asyncio.wait({starting})


# ---- what another instance has told already ------------------------------------------------------


class Ends:
    """Offset queries that note which ends they are asked for, and hold their answers."""

    def __init__(self, broker: memory_log.MemoryLog) -> None:
        self._real = broker.offsets()
        self.asked: list[tuple[str, list[int]]] = []
        self.answering = asyncio.Event()
        self.answering.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        wanted = list(partitions)
        self.asked.append((topic, wanted))
        found = await self._real.ends(topic, wanted)
        await self.answering.wait()
        return found

    def of(self, topic: str) -> list[list[int]]:
        return [partitions for asked, partitions in self.asked if asked == topic]


def over(broker: memory_log.MemoryLog) -> tuple[delivery.Delivery, Ends]:
    ends = Ends(broker)
    using = dataclasses.replace(memory_delivery.clients(broker), offsets=ends)
    return memory_delivery.over(broker, preferred=[0], using=using), ends


def put_running(broker: memory_log.MemoryLog, asked: records.Request) -> int:
    """A response that runs, whose end is written next. Returns where."""
    broker.put_record(REQUESTS, 0, asked, asked.rid)
    return broker.put_record(topics.TOKENS, 0, claim(asked), asked.rid) + 1


def put_end(broker: memory_log.MemoryLog, asked: records.Request) -> None:
    end = records.End(asked.rid, "a" * 32, 0, "stop", fold.H0)
    broker.put_record(topics.TOKENS, 0, end, asked.rid)


@cases.each("held", [False, True], ids=["looked up", "held here"])
async def test_a_response_that_ended_elsewhere_is_not_said_to_run(held: bool) -> None:
    """A turn that was to follow it was refused: 400, which no client tries again."""
    broker, asked = memory_log.MemoryLog("one", 1), request(minted_at(0))
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        broker.lag(topics.TOKENS, 0, put_running(broker, asked))
        if held:
            await made.watch(asked.rid, OWNER)
        put_end(broker, asked)
        looking = asyncio.create_task(made.find(asked.rid, OWNER))
        done, _ = await asyncio.wait({looking}, timeout=0.05)
        assert not done
        broker.catch_up(topics.TOKENS, 0)
        assert (await looking).phase is fold.Phase.DONE


async def test_one_that_runs_is_said_to_run_once_everything_was_read(
    broker: memory_log.MemoryLog,
) -> None:
    made, ends = over(broker)
    async with memory_delivery.running(made):
        asked = request(minted_at(0))
        put_running(broker, asked)
        await made.watch(asked.rid, OWNER)
        ends.asked.clear()
        assert (await made.find(asked.rid, OWNER)).response["status"] == "in_progress"
        assert ends.asked == [(topics.TOKENS, [0])]
        put_end(broker, asked)
        assert (await made.find(asked.rid, OWNER)).phase is fold.Phase.DONE
        ends.asked.clear()
        for _ in range(3):
            assert (await made.find(asked.rid, OWNER)).phase is fold.Phase.DONE
        assert ends.asked == [], "that it has ended costs no question"


async def test_a_tail_that_stays_behind_is_no_answer(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "WITHIN_S", 0.05)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        asked = request(minted_at(0))
        broker.lag(topics.TOKENS, 0, put_running(broker, asked))
        put_end(broker, asked)
        for rid in (asked.rid, minted_at(1)):  # one that has ended, and an unknown one
            with pytest.raises(log.LogUnavailable):
                await made.find(rid, OWNER)
        broker.catch_up(topics.TOKENS, 0)
        assert (await made.find(asked.rid, OWNER)).phase is fold.Phase.DONE


async def test_however_many_ask_one_question_about_the_end_is_under_way() -> None:
    broker = memory_log.MemoryLog("one", 4)
    made, ends = over(broker)
    rids = [ids.mint(ids.Address(TAG, p, 0), bytes([p]) * 11) for p in range(4)]
    async with memory_delivery.running(made):
        for rid in rids:
            asked, at = request(rid), ids.parse(rid).partition
            broker.put_record(REQUESTS, at, asked, rid)
            broker.put_record(topics.TOKENS, at, claim(asked), rid)
            await made.watch(rid, OWNER)
        ends.asked.clear()
        ends.answering.clear()
        first = [asyncio.create_task(made.find(rid, OWNER)) for rid in rids * 25]
        await log_contract.until(lambda: ends.of(topics.TOKENS))
        # Who comes now may have been told something since: it is no part of that question.
        later = [asyncio.create_task(made.find(rid, OWNER)) for rid in rids * 25]
        await asyncio.sleep(0.02)
        assert ends.of(topics.TOKENS) == [[0, 1, 2, 3]]
        ends.answering.set()
        found = await asyncio.gather(*first, *later)
        assert {each.response["status"] for each in found} == {"in_progress"}
        assert ends.of(topics.TOKENS) == [[0, 1, 2, 3]] * 2


async def test_a_question_that_fails_is_no_answer_and_the_next_is_asked_anew(
    broker: memory_log.MemoryLog,
) -> None:
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        asked = request(minted_at(0))
        put_running(broker, asked)
        await made.watch(asked.rid, OWNER)
        answered = broker.unanswered()
        with pytest.raises(log.LogUnavailable):
            await made.find(asked.rid, OWNER)
        answered()
        assert (await made.find(asked.rid, OWNER)).response["status"] == "in_progress"


async def test_a_response_that_was_deleted_elsewhere_is_not_looked_up(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(minted_at(0))
    where = topics.partition_of(topics.DELETIONS, asked.rid)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        gateway_parts.put_answer(broker, asked, "one")
        broker.lag(topics.DELETIONS, where, 0)
        broker.put_record(topics.DELETIONS, where, records.Deleted(asked.rid, OWNER), asked.rid)
        monkeypatch.setattr(whole_topic, "CAUGHT_UP_S", 0.05)
        with pytest.raises(log.LogUnavailable):
            await made.find(asked.rid, OWNER)
        monkeypatch.undo()
        looking = asyncio.create_task(made.find(asked.rid, OWNER))
        done, _ = await asyncio.wait({looking}, timeout=0.05)
        assert not done
        broker.catch_up(topics.DELETIONS, where)
        with pytest.raises(delivery.NotFound):
            await looking
