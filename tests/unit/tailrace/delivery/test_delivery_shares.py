"""What one principal's look-ups may cost the others. A made-up id with the right incarnation and
offset 0 reads all that the log holds of a partition, and the connections for that are few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tailrace.delivery import delivery, kept_bytes, look_up
from tailrace.protocol import errors, events, fold, ids, records, topics
from tests.support import log_contract, memory_delivery, memory_log

TAG = ids.incarnation_tag("one")
ALICE, BOB = records.Owner("https://tests", "alice"), records.Owner("https://tests", "bob")
LENGTH = 120_000


def made_up(n: int) -> str:
    return ids.mint(ids.Address(TAG, 0, 0), n.to_bytes(ids.RANDOM_BYTES, "big"))


def claim(rid: str, owner: records.Owner) -> records.Claim:
    return records.Claim(
        rid, "a" * 32, None, owner, "w/1", "t", 0, "r", "t", 0, events.echo(rid, 1, "m")
    )


def long_log(first: records.Claim | None = None, at: int = 0) -> memory_log.MemoryLog:
    """A partition of `LENGTH` offsets with one record in it."""
    broker = memory_log.MemoryLog("one", 1)
    if first is not None:
        broker.skip_to(topics.TOKENS, 0, at)
        broker.put_record(topics.TOKENS, 0, first, first.rid)
    broker.skip_to(topics.TOKENS, 0, LENGTH)
    return broker


def over(broker: memory_log.MemoryLog) -> delivery.Delivery:
    """A delivery with one connection for replays."""
    return memory_delivery.over(broker, using=memory_delivery.clients(broker, replays=1))


async def test_one_principal_reads_few_at_once_and_the_rest_wait_their_turn() -> None:
    broker = long_log()
    broker.hold_replays()
    made = over(broker)
    asked = [asyncio.create_task(made.find(made_up(n), ALICE)) for n in range(20)]
    await log_contract.until(lambda: broker.replays_wanted == look_up.AT_ONCE, 5)
    broker.release_replays()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {delivery.NotFound}
    assert broker.most_replays_wanted == look_up.AT_ONCE


async def test_above_the_bound_the_answer_is_a_clear_429_for_this_principal_only() -> None:
    broker = long_log()
    broker.hold_replays()
    made = over(broker)
    bound = look_up.IN_ALL
    asked = [asyncio.create_task(made.find(made_up(n), ALICE)) for n in range(bound)]
    await log_contract.until(lambda: broker.reads, 5)
    with pytest.raises(errors.ApiError) as refused:
        await made.find(made_up(bound), ALICE)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert int(refused.value.headers["retry-after"]) >= 1
    asked.append(asyncio.create_task(made.find(made_up(0), ALICE)))  # joins one that is under way
    asked.append(asyncio.create_task(made.find(made_up(bound), BOB)))
    broker.release_replays()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {delivery.NotFound}
    with pytest.raises(delivery.NotFound):  # and afterwards there is room again
        await made.find(made_up(bound), ALICE)


async def test_a_long_replay_lets_others_in_between_its_stretches() -> None:
    theirs = ids.mint(ids.Address(TAG, 0, LENGTH - 10), b"b" * ids.RANDOM_BYTES)
    broker = long_log(claim(theirs, BOB), LENGTH - 5)
    async with memory_delivery.running(over(broker)) as made:
        broker.hold_replays()
        long = asyncio.create_task(made.find(made_up(1), ALICE))
        await log_contract.until(lambda: broker.replays_wanted == 1, 5)
        short = asyncio.create_task(made.find(theirs, BOB))
        await log_contract.until(lambda: broker.replays_wanted == 2, 5)
        broker.release_replays()
        assert (await short).response["status"] == "in_progress"
        with pytest.raises(delivery.NotFound):
            await long
    starts = [start for _, _, start, _ in broker.reads]
    assert starts == [0, LENGTH - 10, look_up.STRETCH, 2 * look_up.STRETCH]
    assert all(end - start <= look_up.STRETCH for _, _, start, end in broker.reads)


async def test_a_response_that_spans_stretches_is_whole() -> None:
    rid = made_up(7)
    broker = long_log(claim(rid, ALICE), look_up.STRETCH)
    async with memory_delivery.running(over(broker)) as made:
        found = await made.find(rid, ALICE)
    assert found.claim is not None
    assert [(start, end) for _, _, start, end in broker.reads] == [
        (0, 50_000),
        (50_000, 100_000),
        (100_000, LENGTH),
    ]


LONG = 40  # tokens of a response
TEXT = "x" * 5_000  # of each


def long_response(rid: str, owner: records.Owner) -> Iterator[records.TokenRecord]:
    yield claim(rid, owner)
    h = fold.H0
    for seq in range(LONG):
        yield records.Tok(rid, "a" * 32, seq, [seq], TEXT, h)
        h = fold.roll(h, [seq])
    yield records.End(rid, "a" * 32, LONG, "stop", h)


async def test_what_one_principal_watches_is_bounded_by_bytes_and_what_it_left_goes_first() -> None:
    """A client that reads slowly kept every response that it asked for, up to 64 on each socket."""
    broker, now, size = memory_log.MemoryLog("one", 1), time.monotonic(), LONG * len(TEXT)
    rids = [made_up(n) for n in range(6)]
    theirs = made_up(100)
    for rid, owner in [*((rid, ALICE) for rid in rids), (theirs, BOB)]:
        for record in long_response(rid, owner):
            broker.put_record(topics.TOKENS, 0, record, rid)
    bound = kept_bytes.KeptBytes(6 * size)  # the end repeats the text, some times: about two
    async with memory_delivery.running(
        memory_delivery.over(broker, kept=bound, clock=lambda: now)
    ) as made:
        watched: list[delivery.Subscription] = []
        with pytest.raises(errors.ApiError) as refused:  # noqa: PT012 (which one is refused is open)
            while True:
                watched.append(await made.watch(rids[len(watched)], ALICE))
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        assert 0 < len(watched) < len(rids)
        assert (await made.watch(theirs, BOB)).pending()  # nobody else is refused
        rest = rids[len(watched) :]

        for each in watched:
            each.close()
        now += 3600.0
        for rid in rest:
            subscription = await made.watch(rid, ALICE)
            assert subscription.pending()
            subscription.close()
            now += 3600.0


async def test_one_response_alone_may_be_longer_than_the_bound() -> None:
    broker, rid = memory_log.MemoryLog("one", 1), made_up(1)
    for record in long_response(rid, ALICE):
        broker.put_record(topics.TOKENS, 0, record, rid)
    bound = kept_bytes.KeptBytes(1000)
    async with memory_delivery.running(memory_delivery.over(broker, kept=bound)) as made:
        assert (await made.watch(rid, ALICE)).pending()
