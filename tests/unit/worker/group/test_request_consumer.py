"""The worker as a member of its group, on the in-memory log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tailrace.protocol import records, topics
from tests.support.memory_log import MemoryLog
from tests.support.memory_members import GROUP, Member, ask, done, member
from tests.support.memory_worker import (
    ENDLESS,
    POOL,
    REQUESTS,
    Foreign,
    Time,
    answer,
    cues,
)
from tests.support.waiting import eventually
from worker.group import membership
from worker.group.request_consumer import read_request
from worker.serving import response_state, response_task

BATCH = topics.requests(POOL, "batch")


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that happens now and then happens often."""
    for name in ("COMMIT_S", "WATCH_S", "RETRY_S"):
        monkeypatch.setattr(membership, name, 0.005)
    monkeypatch.setattr(membership, "POLL_MS", 5)
    monkeypatch.setattr(response_task, "RECHECK_S", 0.005)


async def full(it: Member, others: int) -> tuple[list[records.Request], list[records.Request]]:
    """Fill a worker of two slots with two endless requests; of `others` two wait, and the rest is
    set aside. Returns the two and the others."""
    running = [ask(it.memory, metadata=ENDLESS) for _ in range(2)]
    await eventually(lambda: it.context.engine_slots.running == 2, "the engine is full")
    many = [ask(it.memory, metadata=cues(1)) for _ in range(others)]
    await eventually(lambda: len(it.responses) == 4, "the others are set aside")
    return running, many


async def serve_after(
    memory: MemoryLog, running: Iterable[records.Request], others: Iterable[records.Request]
) -> None:
    """End those that run, and wait for the others."""
    for request in running:
        Foreign(memory, request).cancel()
    for request in others:
        await done(memory, request)


def goes_before(memory: MemoryLog, first: records.Request, second: records.Request) -> bool:
    """Whether the first one has a record before any of the second one."""
    order = [r.key for r in memory.records(topics.TOKENS, 0)]
    return order.index(first.rid.encode()) < order.index(second.rid.encode())


def one_partition() -> tuple[MemoryLog, Time]:
    time = Time()
    return MemoryLog(partitions=1, clock=time), time


async def test_requests_of_both_classes_are_served_and_their_offsets_committed() -> None:
    memory, time = one_partition()
    first, batch = ask(memory, metadata=cues(3)), ask(memory, BATCH, metadata=cues(3))
    async with member(memory, time) as it:
        await done(memory, first)
        await done(memory, batch)
        await eventually(lambda: it.committed[0] == 1, "committed")
        await eventually(
            lambda: memory.committed_offsets[GROUP].get((BATCH, 0), (0,))[0] == 1, "batch too"
        )
        assert it.consumer.partitions == [0]
        assert len(it.responses) == 0


async def test_commits_stop_below_the_first_unfinished_request_and_name_its_claim() -> None:
    memory, time = one_partition()
    async with member(memory, time) as it:
        before = ask(memory, metadata=cues(1))
        await done(memory, before)
        await eventually(lambda: it.committed[0] == 1, "the first is committed")
        endless = ask(memory, metadata=ENDLESS)
        later = [ask(memory, metadata=cues(1)) for _ in range(5)]
        for request in later:
            await done(memory, request)
        await eventually(lambda: len(it.responses) == 1, "all others are finished")
        claim = next(
            r.offset for r in memory.records(topics.TOKENS, 0) if r.key == endless.rid.encode()
        )
        await eventually(lambda: it.committed == (1, str(claim)), "the commit names the claim")

        Foreign(memory, endless).cancel()
        await eventually(lambda: it.committed[0] == 7, "all is committed")


async def test_records_that_are_no_requests_are_skipped_and_stall_nothing() -> None:
    memory, time = one_partition()
    memory.put(REQUESTS, 0, b"k", b"{not json")
    good = ask(memory, metadata=cues(1))
    memory.put(REQUESTS, 0, b"k", None)
    bad_id = records.encode(good).replace(good.rid.encode(), b"resp_short")
    memory.put(REQUESTS, 0, b"k", bad_id)
    async with member(memory, time) as it:
        await done(memory, good)
        await eventually(lambda: it.committed[0] == 4, "everything is committed")


async def test_of_two_requests_with_one_key_the_first_one_in_the_log_is_begun() -> None:
    """Also where the second one was set aside meanwhile."""
    memory, time = one_partition()
    key: dict[str, Any] = {"idempotency_key": "k", "metadata": cues(1)}
    async with member(memory, time, capacity=2) as it:
        running, others = await full(it, others=3)
        first, second = ask(memory, **key), ask(memory, **key)
        await eventually(lambda: len(it.consumer.set_aside(0)) == 1, "both are set aside")
        await serve_after(memory, running, (*others, first))
        await eventually(lambda: it.responses.serves(second.rid), "it was read")
        assert it.context.engine_slots.running == 0
        assert answer(memory, second.rid).kinds == []
        Foreign(memory, second).withdraw()
        await done(memory, second)
        assert answer(memory, second.rid).kinds == ["Cancel"]


def test_a_request_in_another_partition_than_its_id_names_is_none() -> None:
    memory = MemoryLog(partitions=2)
    request = ask(memory, partition=1)
    (record,) = memory.records(REQUESTS, 1)
    assert read_request(record, 2) == (request, "")
    assert read_request(record._replace(partition=0), 2) == (None, "wrong_partition")
    assert read_request(record, 1) == (None, "invalid_id")


def test_a_request_under_the_key_of_another_response_is_none() -> None:
    """Every reader of the request topics passes such a record over; `tailrace verify` names it."""
    memory = MemoryLog(partitions=1)
    request, other = ask(memory), ask(memory)
    (record, _) = memory.records(REQUESTS, 0)
    assert read_request(record, 1) == (request, "")
    for key in (other.rid.encode(), b"", None):
        assert read_request(record._replace(key=key), 1) == (None, "garbage")


def test_a_request_that_the_broker_took_after_its_gateway_gave_it_up_is_none() -> None:
    memory = MemoryLog(partitions=1)
    request = msgspec.structs.replace(ask(memory), append_by=5_000)
    (record,) = memory.records(REQUESTS, 0)
    record = record._replace(value=records.encode(request))
    assert read_request(record._replace(timestamp=5_000), 1) == (request, "")
    assert read_request(record._replace(timestamp=5_001), 1) == (None, "late")


async def test_requests_that_start_soon_are_in_memory_so_that_offers_do_not_race_with_starts() -> (
    None
):
    memory, time = one_partition()
    for _ in range(20):
        ask(memory, metadata=ENDLESS)
    async with member(memory, time, capacity=2) as it:
        await eventually(lambda: len(it.responses) == 4, "two run and two wait")
        it.consumer.starts_per_s = lambda: 2.5
        await eventually(lambda: len(it.responses) == 2 + 8, "those of three seconds wait")
        await eventually(lambda: len(it.responses.waiting) == 8, "all of them can be offered")


async def test_what_does_not_fit_stays_in_kafka_and_is_served_when_there_is_room() -> None:
    memory, time = one_partition()
    many = [ask(memory, metadata=ENDLESS) for _ in range(10)]
    async with member(memory, time, capacity=2) as it:
        # Two run, and two more wait in the worker, so that a free slot is used at once.
        await eventually(lambda: it.responses.slot_demand == 4, "the worker is full")
        await eventually(lambda: answer(memory, many[1].rid).fold.next > 20, "time goes on")
        assert len(it.responses) == 4
        assert answer(memory, many[4].rid).kinds == []

        for request in many:
            Foreign(memory, request).cancel()
        await eventually(lambda: it.committed[0] == 10, "all are finished")
        assert it.context.engine_slots.running == 0


BOB = records.Owner("https://tests", "bob")


async def test_who_comes_behind_a_flood_in_its_partition_has_the_next_free_slot() -> None:
    memory, time = one_partition()
    flood = [ask(memory, metadata=ENDLESS) for _ in range(300)]
    async with member(memory, time, capacity=2) as it:
        await eventually(lambda: it.context.engine_slots.running == 2, "the engine is full")
        newcomer = ask(memory, metadata=cues(3), owner=BOB)
        await eventually(lambda: it.responses.serves(newcomer.rid), "it is read")
        assert len(it.responses) == 5  # of the flood four; the others are set aside
        Foreign(memory, flood[0]).cancel()
        await done(memory, newcomer)
        assert sum(bool(answer(memory, r.rid).claims) for r in flood) <= 3

        for request in flood:
            Foreign(memory, request).cancel()
        await eventually(lambda: it.committed[0] == 301, "all are finished")


async def test_what_was_set_aside_is_served_in_its_order_and_committed() -> None:
    memory, time = one_partition()
    many = [ask(memory, metadata=cues(2)) for _ in range(100)]
    async with member(memory, time, capacity=2) as it:
        for request in many:
            await done(memory, request)
        await eventually(lambda: it.committed[0] == 100, "all are committed")
    claimed = [
        r.key or b"" for r in memory.records(topics.TOKENS, 0) if b'"CLAIM"' in (r.value or b"")
    ]
    assert sorted(claimed) == sorted(request.rid.encode() for request in many)
    place = {request.rid.encode(): i for i, request in enumerate(many)}
    assert all(abs(place[key] - i) < 4 for i, key in enumerate(claimed))


async def test_what_was_not_taken_is_counted_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.group.request_consumer.COUNT_S", 0.005)
    memory, time = one_partition()
    async with member(memory, time, capacity=2) as it:
        running, many = await full(it, 20)
        each, whose = response_state.request_cost(many[0]), many[0].owner.key
        batch = [ask(memory, BATCH, metadata=cues(1)) for _ in range(7)]
        await eventually(lambda: it.consumer.overflow(1) == ({whose: 3 * each}, 0), "batch, too")
        assert it.consumer.overflow(0) == ({whose: 18 * each}, 0)
        monkeypatch.setattr("worker.queue.read_ahead.MAX_BATCH_ASIDE", 21)
        await asyncio.sleep(0.05)
        batch += [ask(memory, BATCH, metadata=cues(1)) for _ in range(5)]
        urgent = ask(memory, metadata=cues(1))
        await eventually(lambda: it.consumer.overflow(1).unread == 5, "no more than so many")
        await eventually(lambda: it.consumer.overflow(0) == ({whose: 19 * each}, 0), "but others")
        await serve_after(memory, running, [*many, *batch, urgent])
        await eventually(lambda: it.consumer.overflow(1) == ({}, 0), "all are read")
        assert it.consumer.overflow(0) == ({}, 0)


async def test_one_principals_batch_requests_hide_no_other_ones() -> None:
    """They stayed in the log, and whose they were was not seen, while any of them waited."""
    memory, time = one_partition()
    async with member(memory, time, capacity=2) as it:
        running = [ask(memory, metadata=ENDLESS) for _ in range(2)]
        await eventually(lambda: it.context.engine_slots.running == 2, "the engine is full")
        flood = [ask(memory, BATCH, metadata=cues(1)) for _ in range(30)]
        other = ask(memory, BATCH, owner=records.Owner("test", "t1", "bob"), metadata=cues(1))
        await eventually(lambda: it.responses.serves(other.rid), "it is seen")
        await serve_after(memory, running, [*flood, other])
    assert goes_before(memory, other, flood[5])


async def test_what_is_set_aside_goes_to_the_next_owner_of_the_partition() -> None:
    memory, time = one_partition()
    async with member(memory, time, capacity=2) as it:
        running, many = await full(it, 20)
    async with member(memory, time, capacity=2) as second:
        await serve_after(memory, running, many)
        await eventually(lambda: second.committed[0] == 22, "all are committed")
    assert all(len(answer(memory, request.rid).claims) == 1 for request in many)


async def test_set_aside_requests_wait_for_a_log_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.group.request_consumer.AGAIN_RETRY_S", 0.005)
    memory, time = one_partition()
    async with member(memory, time, capacity=2) as it:
        running, many = await full(it, 20)
        for request in running:
            Foreign(memory, request).cancel()
        memory.go_away()
        await asyncio.sleep(0.05)
        memory.come_back()
        for request in many:
            await done(memory, request)
        await eventually(lambda: it.committed[0] == 22, "all are committed")


async def test_a_set_aside_request_that_the_log_no_longer_holds_is_finished() -> None:
    memory, time = one_partition()
    async with member(memory, time, capacity=2) as it:
        running, many = await full(it, 10)
        memory.delete_below(REQUESTS, 0, 8)
        await serve_after(memory, running, (*many[:2], *many[6:]))
        await eventually(lambda: it.committed[0] == 12, "all are committed")


async def test_batch_gets_its_share_while_interactive_requests_wait_all_the_time() -> None:
    """It was read only while nothing waited, so under an interactive load above the capacity it
    stayed in the log for as long as that lasted."""
    memory, time = one_partition()
    async with member(memory, time, capacity=2) as it:
        it.context.engine_slots.batch_share = 0.5
        running, many = await full(it, 100)
        batch = ask(memory, BATCH, metadata=cues(1))
        await eventually(lambda: it.responses.serves(batch.rid), "it waits for a slot")
        await serve_after(memory, running, [*many, batch])
    assert goes_before(memory, batch, many[50])


async def test_interactive_requests_go_before_batch_ones_that_were_read_before_them() -> None:
    memory, time = one_partition()
    running = [ask(memory, metadata=ENDLESS) for _ in range(2)]
    async with member(memory, time, capacity=2) as it:
        await eventually(lambda: it.context.engine_slots.running == 2, "the engine is full")
        await eventually(lambda: answer(memory, running[1].rid).fold.next > 3, "both run")
        batch = ask(memory, BATCH, metadata=cues(1))
        await eventually(lambda: it.context.engine_slots.queued == 1, "it waits for a slot")
        urgent = ask(memory, metadata=cues(1))
        await eventually(lambda: it.context.engine_slots.queued == 2, "both do")
        Foreign(memory, running[0]).cancel()
        await done(memory, batch)
        order = [r.key for r in memory.records(topics.TOKENS, 0)]
        assert order.index(urgent.rid.encode()) < order.index(batch.rid.encode())
        Foreign(memory, running[1]).cancel()


async def test_a_rebalance_revokes_and_the_redelivered_request_joins_what_runs() -> None:
    time = Time()
    memory = MemoryLog(partitions=2, clock=time)
    async with member(memory, time) as it:
        await eventually(lambda: it.consumer.partitions == [0, 1], "both partitions")
        kept, moved = (ask(memory, metadata=ENDLESS, partition=p) for p in (0, 1))
        for request in (kept, moved):
            await eventually(
                lambda rid=request.rid: answer(memory, rid).fold.next > 2,  # type: ignore[misc, arg-type]
                "both run",
            )
        async with member(memory, time, name="second") as second:
            await eventually(lambda: second.consumer.partitions == [1], "one each")
            await eventually(lambda: it.consumer.partitions == [0], "one each")
            # The first goes on with both (P5) and follows the lost partition as long as it does.
            assert it.context.tail.partitions == [0, 1]
            await eventually(lambda: len(second.responses) == 1, "the second knows of one")
            Foreign(memory, moved).cancel()
            await eventually(lambda: it.context.tail.partitions == [0], "the partition is left")
            await eventually(lambda: len(second.responses) == 0, "finished there, too")
        assert [claim.worker for claim in answer(memory, moved.rid).claims] == ["this/1"]
        Foreign(memory, kept).cancel()
        await eventually(lambda: it.committed[0] == 1, "the redelivery is finished and committed")
        assert [claim.worker for claim in answer(memory, kept.rid).claims] == ["this/1"]


async def test_nothing_is_committed_by_a_tracker_of_a_revoked_assignment() -> None:
    time = Time()
    memory = MemoryLog(partitions=2, clock=time)
    async with member(memory, time) as it:
        await eventually(lambda: it.consumer.partitions == [0, 1], "both partitions")
        moved = ask(memory, metadata=ENDLESS, partition=1)
        await eventually(lambda: answer(memory, moved.rid).fold.next > 2, "it runs")
        other = memory.group_consumer(GROUP, [REQUESTS, BATCH], assigned=ignore, revoked=ignore)
        await other.start()
        Foreign(memory, moved).cancel()
        await eventually(lambda: len(it.responses) == 0, "it is finished")
        later = ask(memory, metadata=cues(1), partition=0)
        await done(memory, later)
        await eventually(lambda: it.committed[0] == 1, "the kept partition is committed")
        assert memory.committed_offsets[GROUP].get((REQUESTS, 1), (0, ""))[0] == 0
        await other.stop()


async def ignore(_partitions: set[tuple[str, int]]) -> None:
    """A member that is told and does nothing."""


async def test_a_successor_folds_from_the_commits_metadata_so_finished_ones_stay_finished() -> None:
    memory, time = one_partition()
    async with member(memory, time) as it:
        endless = ask(memory, metadata=ENDLESS)
        finished = ask(memory, metadata=cues(2))
        await done(memory, finished)
        await eventually(lambda: it.committed[0] == 0, "a commit below the endless one")
    async with member(memory, time, name="second") as second:
        await eventually(lambda: len(second.responses) == 1, "both are known")
        Foreign(memory, endless).cancel()
        await eventually(lambda: it.committed[0] == 2, "all is committed")
    assert len(answer(memory, finished.rid).claims) == 1


@pytest.mark.parametrize("to", ["end", "beginning", "none"])
async def test_a_request_is_run_once_wherever_the_group_s_offset_was_moved(to: str) -> None:
    """Symptom: `kafka-consumer-groups --reset-offsets --to-latest` while no worker ran; accepted
    requests were 404 from then on, and their streams waited for ever."""
    memory, time = one_partition()
    async with member(memory, time) as it:
        finished = ask(memory, metadata=cues(2))
        await done(memory, finished)
        await eventually(lambda: it.committed[0] == 1, "committed")
    asked = [ask(memory, metadata=cues(2)) for _ in range(3)]
    moved = {"end": {(REQUESTS, 0): (4, "")}, "beginning": {(REQUESTS, 0): (0, "")}, "none": {}}
    memory.committed_offsets[GROUP] = moved[to]
    async with member(memory, time, name="second") as second:
        for request in asked:
            await done(memory, request)
        # Where the offset was moved to the end, it is 4 before the worker commits it.
        await eventually(
            lambda: second.committed[0] == 4 and second.committed[1].isdigit(), "committed again"
        )
    for request in (finished, *asked):
        assert len(answer(memory, request.rid).claims) == 1


async def test_an_offset_that_is_moved_while_workers_run_is_put_right_by_the_next_commit() -> None:
    memory, time = one_partition()
    async with member(memory, time) as it:
        first = ask(memory, metadata=cues(2))
        await done(memory, first)
        await eventually(lambda: it.committed[0] == 1, "committed")
        memory.committed_offsets[GROUP] = {(REQUESTS, 0): (7, "")}
        second = ask(memory, metadata=cues(2))
        await done(memory, second)
        await eventually(lambda: it.committed[0] == 2, "committed again")
    for request in (first, second):
        assert len(answer(memory, request.rid).claims) == 1


async def test_a_member_that_returns_nothing_although_there_are_records_joins_anew() -> None:
    memory, time = one_partition()

    class Stuck:
        """A membership that returns nothing until it is given up."""

        def __init__(self, member: Any) -> None:
            self._member = member
            self._stuck = True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

        async def poll(self, max_records: int, timeout_ms: int = 50) -> list[Any]:
            if not self._stuck:
                return list(await self._member.poll(max_records, timeout_ms))
            await asyncio.sleep(0)
            return []

        def rejoin(self) -> None:
            self._stuck = False
            self._member.rejoin()

    make = memory.group_consumer
    memory.group_consumer = lambda *given, **more: Stuck(make(*given, **more))  # type: ignore[method-assign]
    async with member(memory, time) as it:
        await eventually(lambda: it.consumer.partitions == [0], "assigned")
        request = ask(memory, metadata=cues(2))
        time.advance(membership.QUIET_S + 1)
        await done(memory, request)


async def test_a_log_that_is_away_delays_the_start_and_nothing_else() -> None:
    memory, time = one_partition()
    request = ask(memory, metadata=cues(2))
    memory.go_away()
    async with member(memory, time) as it:
        await asyncio.sleep(0)
        assert it.consumer.partitions == []
        memory.come_back()
        await done(memory, request)
        await eventually(lambda: it.committed[0] == 1, "committed")


async def test_a_worker_that_left_goes_on_while_another_takes_its_requests() -> None:
    """Symptom: a draining worker kept its partitions, paused, and what was placed there waited."""
    time = Time()
    memory = MemoryLog(partitions=2, clock=time)
    async with member(memory, time) as it, member(memory, time, name="second") as second:
        await eventually(lambda: it.consumer.partitions == [0], "one each")
        await eventually(lambda: second.consumer.partitions == [1], "one each")
        running = ask(memory, metadata=ENDLESS)
        await eventually(lambda: answer(memory, running.rid).fold.next > 2, "it runs")

        it.context.draining = True
        await it.consumer.leave()
        assert it.consumer.partitions == []
        later = ask(memory, metadata=cues(1))
        await done(memory, later)
        assert [c.worker for c in answer(memory, later.rid).claims] == ["second/1"]
        assert it.context.tail.partitions == [0]  # as long as something runs there (P5)

        await polls_later(memory, running)
        assert [c.worker for c in answer(memory, running.rid).claims] == ["this/1"]
        Foreign(memory, running).cancel()
        await eventually(lambda: second.committed[0] == 2, "the successor commits both")


async def polls_later(memory: MemoryLog, running: records.Request) -> None:
    """Return when an endless answer has grown, and so many polls have gone by."""
    seen = answer(memory, running.rid).fold.next
    await eventually(lambda: answer(memory, running.rid).fold.next > seen + 30, "it goes on")


async def test_when_leaving_what_has_not_ended_is_yielded_and_stays_uncommitted() -> None:
    memory, time = one_partition()
    async with member(memory, time) as it:
        request = ask(memory, metadata=ENDLESS)
        await eventually(lambda: answer(memory, request.rid).fold.next > 2, "it runs")
        it.context.draining = True
        await it.consumer.leave()
        untouched = ask(memory, metadata=cues(1))
        await polls_later(memory, request)
        assert len(it.responses) == 1
        await it.responses.hand_over(0)
        assert answer(memory, request.rid).kinds[-1] == "Yield"
        assert answer(memory, untouched.rid).kinds == []
        assert it.committed[0] <= 0
