"""Every reader says the same of a response that no worker can end: its beginning is lost, or its
request was passed over."""

from __future__ import annotations

import pytest

from tailrace import log
from tailrace.delivery import archived, delivery
from tailrace.protocol import events, fold, history, ids, records, topics
from tests.support import log_contract, memory_delivery, memory_log

OWNER = records.Owner("https://tests", "alice")
REQUESTS = topics.requests("default", "interactive")


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    return memory_log.MemoryLog("one", 1)


def ask(broker: memory_log.MemoryLog) -> records.Request:
    """A request that the log has."""
    address = ids.Address(broker.layout.tag, 0, broker.partition(topics.TOKENS, 0).end)
    rid = ids.mint(address, b"x" * ids.RANDOM_BYTES)
    echo = events.echo(rid, 1, "m", background=True)
    request = records.Request(rid, OWNER, "m", [], records.Sampling(1), echo)
    broker.put_record(REQUESTS, 0, request, rid)
    return request


def begin(broker: memory_log.MemoryLog, asked: records.Request) -> None:
    """A worker claims it and writes a frame."""
    own, echo = "a" * 32, asked.echo
    claim = records.Claim(asked.rid, own, None, OWNER, "w", REQUESTS, 0, "r", "t", 0, echo)
    broker.put_record(topics.TOKENS, 0, claim, asked.rid)
    broker.put_record(
        topics.TOKENS, 0, records.Tok(asked.rid, own, 0, [1], "x", fold.H0), asked.rid
    )


def lost(asked: records.Request) -> records.Cancel:
    return records.Cancel(asked.rid, OWNER, asked.echo, failed="history_lost")


async def to_end(subscription: delivery.Subscription) -> None:
    while await subscription.next_events():
        pass


async def test_who_had_the_beginning_in_memory_says_what_all_others_say(
    broker: memory_log.MemoryLog,
) -> None:
    """One gateway said in_progress for ever, others 410."""
    asked = ask(broker)
    begin(broker, asked)
    with_it = memory_delivery.over(broker, preferred=[0])
    without = memory_delivery.over(broker, preferred=[0])
    async with memory_delivery.running(with_it), memory_delivery.running(without):
        subscription = await with_it.watch(asked.rid, OWNER)
        await log_contract.until(lambda: subscription.state.next == 1)
        broker.delete_below(topics.TOKENS, 0, 1)
        broker.put_record(topics.TOKENS, 0, lost(asked), asked.rid)
        with pytest.raises(log.HistoryLost):
            await to_end(subscription)
        for made in (with_it, without):
            with pytest.raises(log.HistoryLost):
                await made.find(asked.rid, OWNER)


async def test_a_request_is_found_although_the_group_s_offset_was_moved_past_it(
    broker: memory_log.MemoryLog,
) -> None:
    """Symptom: 404 after 200, once somebody had reset the offsets of the pool's group."""
    asked = ask(broker)
    broker.committed_offsets[topics.group("default")] = {(REQUESTS, 0): (1, "")}
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        assert (await made.find(asked.rid, OWNER)).response["status"] == "queued"


def test_the_archive_shows_a_lost_response_as_failed(broker: memory_log.MemoryLog) -> None:
    asked = ask(broker)
    series = archived.build_stream(history.from_records(asked, [lost(asked)], 5)).series
    assert series is not None
    response = series.snapshot()
    assert (response["status"], response["error"]["code"]) == ("failed", "history_lost")
