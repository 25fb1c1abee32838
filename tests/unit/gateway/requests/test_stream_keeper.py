"""Streams that a connection lets go of are followed to their end."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.protocol import ids, records, topics
from tests.support import gateway_parts, log_contract
from tests.support.gateway_parts import ALICE, BOB, create


async def test_a_stream_that_is_over_is_closed_when_it_is_released() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid, "x")
            await gateway_parts.all_events(stream)
            assert parts.delivery.watchers(stream.rid) == 1
        assert parts.delivery.watchers(stream.rid) == 0
        assert (len(parts.streams.running), parts.streams.active_streams) == (0, 0)


async def test_releasing_twice_counts_once() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid)
            await gateway_parts.all_events(stream)
            stream.release()
        assert parts.streams.active_streams == 0


async def test_a_stored_response_goes_on_without_its_connection_and_its_turn_is_cached() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            pass
        assert (len(parts.streams.running), parts.streams.active_streams) == (1, 0)
        parts.answer(stream.rid, "kept")
        await log_contract.until(lambda: len(parts.streams.running) == 0, 5)
        await parts.settled()
        turn = await parts.cache.turn(stream.rid)
        assert turn is not None
        assert b"kept" in turn
        assert parts.tokens(records.Cancel) == []


async def test_what_is_not_stored_is_cancelled_after_the_grace_and_never_cached() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(store=False), ALICE) as stream:
            parts.answer(stream.rid, "half", end=False)
        await log_contract.until(lambda: len(parts.streams.running) == 0, 5)
        (cancel,) = parts.tokens(records.Cancel)
        assert cancel.rid == stream.rid
        assert stream.final is not None
        assert stream.final["status"] == "cancelled"
        assert await parts.cache.turn(stream.rid) is None


async def test_what_is_not_stored_and_ends_within_the_grace_is_not_cancelled() -> None:
    async with gateway_parts.running(cancel_grace_s=5.0) as parts:
        with await parts.submission.submit(create(store=False), ALICE) as stream:
            pass
        parts.answer(stream.rid, "whole")
        await log_contract.until(lambda: len(parts.streams.running) == 0, 5)
        assert parts.tokens(records.Cancel) == []


async def test_a_client_that_came_back_keeps_its_response_alive_until_it_leaves_again() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(store=False), ALICE) as stream:
            parts.answer(stream.rid, "half", end=False)
            with await parts.streams.follow(stream.rid, stream.owner):
                stream.release()
                for _ in range(50):  # the grace of 0 s is over after a turn of the event loop
                    await asyncio.sleep(0)
                assert parts.tokens(records.Cancel) == []
        await log_contract.until(lambda: parts.tokens(records.Cancel), 5)


async def test_a_response_that_the_log_lost_is_given_up() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            pass
        parts.broker.skip_to(topics.TOKENS, 0, 100)
        parts.broker.delete_below(topics.TOKENS, 0, 90)
        await log_contract.until(lambda: len(parts.streams.running) == 0, 5)
        assert stream.lost


async def test_a_followed_response_is_measured_and_counted_nowhere() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            with await parts.streams.follow(stream.rid, stream.owner, 0) as other:
                assert (other.submitted_here, other.pool, other.store) == (False, "", True)
                assert (len(parts.streams.running), parts.streams.active_streams) == (1, 2)
                parts.answer(stream.rid, "x")
                events = await gateway_parts.all_events(other)
            assert events[0].sequence_number == 1, "it starts after the cursor"
            assert len(parts.streams.running) == 1, "the response is still the first one's"
            await gateway_parts.all_events(stream)
        assert ids.parse(stream.rid).partition == 0


@pytest.mark.parametrize("left", [True, False])
async def test_a_running_response_that_is_not_stored_is_cancelled_when_its_caller_is_revoked(
    left: bool,
) -> None:
    async with gateway_parts.running(cancel_grace_s=60.0) as parts:
        stream = await parts.submission.submit(create(store=False), ALICE)
        copy = await parts.submission.submit(create(store=True), ALICE)
        others = await parts.submission.submit(create(store=False), BOB)
        if left:
            stream.release()
        gateway_parts.revoke(parts.revocations, ALICE)
        await log_contract.until(lambda: parts.tokens(records.Cancel), 5)
        (cancel,) = parts.tokens(records.Cancel)
        assert cancel.rid == stream.rid
        for each in (copy, others):
            parts.answer(each.rid)
            await gateway_parts.all_events(each)
            each.release()
        if not left:
            await gateway_parts.all_events(stream)
            stream.release()
        await parts.settled()
        assert len(parts.admitted) == 0


async def test_a_response_whose_caller_was_revoked_during_the_append_is_cancelled() -> None:
    async with gateway_parts.running(cancel_grace_s=60.0) as parts:
        parts.broker.hold_acknowledgements()
        submitting = asyncio.create_task(parts.submission.submit(create(store=False), ALICE))
        await log_contract.until(lambda: parts.requests(), 5)
        gateway_parts.revoke(parts.revocations, ALICE)
        parts.broker.release_acknowledgements()
        with await asyncio.wait_for(submitting, 5) as stream:
            await log_contract.until(lambda: parts.tokens(records.Cancel), 5)
            await gateway_parts.all_events(stream)
