"""What can be done to a response after its request got into the log."""

from __future__ import annotations

import asyncio

import pytest

from gateway.responses import response_operations
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import records, topics
from tests.support import gateway_parts, log_contract
from tests.support.gateway_parts import ALICE, create

BOB = records.Owner("https://tests", "bob")


async def test_cancel_returns_the_final_object_and_is_idempotent() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid, "half", end=False)
            await log_contract.until(lambda: stream.subscription.status == "in_progress", 5)
            final = await parts.operations.cancel(stream.rid, stream.owner)
            assert final["status"] == "cancelled"
            assert final["output"][0]["content"][0]["text"] == "half"
            assert await parts.operations.cancel(stream.rid, stream.owner) == final
        assert len(parts.tokens(records.Cancel)) == 1


async def test_what_has_ended_stays_what_it_is_and_nothing_is_written() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid, "whole")
            await gateway_parts.all_events(stream)
        assert await parts.operations.cancel(stream.rid, stream.owner) == stream.final
        assert parts.tokens(records.Cancel) == []


async def test_of_an_end_and_a_cancel_the_first_in_the_log_decides() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.broker.lag(topics.TOKENS, 0, 0)
            parts.answer(stream.rid, "whole")
            cancelled = asyncio.ensure_future(parts.operations.cancel(stream.rid, stream.owner))
            await log_contract.until(lambda: parts.tokens(records.Cancel), 5)
            parts.broker.catch_up(topics.TOKENS, 0)
            assert (await cancelled)["status"] == "completed"


async def test_a_response_of_another_process_costs_one_look_up() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid, "half", end=False)
            async with gateway_parts.running(parts.broker, parts.redis) as other:
                read = len(parts.broker.reads)
                final = await other.operations.cancel(stream.rid, stream.owner)
                assert final["status"] == "cancelled"
                replays = [r for r in parts.broker.reads[read:] if r[0] == topics.TOKENS]
                assert len(replays) == 1


async def test_another_principal_is_told_that_there_is_no_such_response() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            for operation in (
                parts.operations.cancel(stream.rid, BOB),
                parts.operations.delete(stream.rid, BOB),
                parts.operations.input_items(stream.rid, BOB),
            ):
                with pytest.raises(delivery.NotFound):
                    await operation
            parts.answer(stream.rid)


async def test_without_the_terminal_record_cancel_says_that_the_log_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_operations, "CANCEL_DEADLINE_S", 0.05)
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.broker.lag(topics.TOKENS, 0, 0)
            with pytest.raises(log.LogUnavailable):
                await parts.operations.cancel(stream.rid, stream.owner)
            assert parts.delivery.watchers(stream.rid) == 1, "its subscription is closed"
            parts.broker.catch_up(topics.TOKENS, 0)
            await gateway_parts.all_events(stream)


async def test_delete_cancels_what_runs_and_forgets_it() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid, "half", end=False)
            await parts.operations.delete(stream.rid, stream.owner)
        assert len(parts.tokens(records.Cancel)) == 1
        for operation in (parts.operations.delete, parts.operations.input_items):
            with pytest.raises(delivery.NotFound):
                await operation(stream.rid, stream.owner)


async def test_what_is_not_stored_can_be_cancelled_but_neither_deleted_nor_listed() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(store=False), ALICE) as stream:
            parts.answer(stream.rid)
            await gateway_parts.all_events(stream)
            for operation in (parts.operations.delete, parts.operations.input_items):
                with pytest.raises(delivery.NotFound):
                    await operation(stream.rid, stream.owner)


async def test_input_items_are_listed_as_they_were_given() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create("given"), ALICE) as stream:
            (item,) = await parts.operations.input_items(stream.rid, stream.owner)
            assert item["content"] == [{"type": "input_text", "text": "given"}]
            assert item["id"].startswith("msg_0_")
            parts.answer(stream.rid)
