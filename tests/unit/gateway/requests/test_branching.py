"""Turns that say what they follow, over a log in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.archive import reader
from tailrace.protocol import conversations, errors, records, topics
from tests.support import gateway_parts, log_contract, memory_log, memory_redis
from tests.support.gateway_parts import ALICE, create
from tests.unit.gateway.requests import test_turns
from tests.unit.gateway.requests.test_turns import OWNER, ended, submit_turn, talking

archive = test_turns.archive


def behind(name: str, node: str | None) -> dict[str, Any]:
    return {"id": name, "parent": node}


async def branch(
    parts: gateway_parts.Parts, name: str, node: str | None, text: str, **more: Any
) -> str:
    """Submit a turn behind a node; its response id."""
    stream = await parts.submission.submit(
        create(text, conversation=behind(name, node), **more), ALICE
    )
    stream.release()
    return stream.rid


def prompt_of(parts: gateway_parts.Parts, rid: str) -> list[str]:
    """What the model is given."""
    request = next(r for r in parts.requests() if r.rid == rid)
    return [message["content"] for message in request.messages]


async def test_it_follows_its_parent_wherever_the_head_is(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "first")
        await ended(parts, first)
        second = await submit_turn(parts, name, "two")
        # The head runs. Neither these nor each other lock what follows another node.
        sibling = await branch(parts, name, first, "two, in other words")
        root = await branch(parts, name, None, "one, in other words")
        same = await branch(parts, name, first, "two again")
        assert prompt_of(parts, second) == ["one", "first", "two"]
        assert prompt_of(parts, sibling) == ["one", "first", "two, in other words"]
        assert prompt_of(parts, root) == ["one, in other words"]
        conversation = await parts.conversations.find(name, OWNER)
        assert [node.parent for node in conversation.nodes.values()] == [
            None,
            first,
            first,
            None,
            first,
        ]
        assert conversation.head == same
        assert list(conversation.nodes) == [first, second, sibling, root, same]


async def test_behind_a_failed_turn_it_sees_what_came_before_that(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "first")
        await ended(parts, first)
        failed = await branch(parts, name, first, "fails")
        request = next(r for r in parts.requests() if r.rid == failed)
        gateway_parts.put_answer(parts.broker, request, error=("server_error", "…"))
        await ended(parts, failed)
        await branch(parts, name, None, "elsewhere")
        next_ = await branch(parts, name, failed, "two")
        assert prompt_of(parts, next_) == ["one", "first", "two"]


async def test_a_parent_that_runs_locks_only_what_follows_it(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        with pytest.raises(errors.ApiError) as error:
            await branch(parts, name, first, "two")
        assert (error.value.code, error.value.param) == ("conversation_locked", "conversation")
        waits = asyncio.ensure_future(branch(parts, name, first, "two", if_busy="queue"))
        other = asyncio.ensure_future(branch(parts, name, None, "beside", if_busy="queue"))
        await asyncio.wait_for(other, 5)  # it stands in no line
        assert not waits.done()
        parts.answer(first, "first")
        assert prompt_of(parts, await asyncio.wait_for(waits, 5)) == ["one", "first", "two"]


async def test_a_node_that_is_not_there_is_refused_by_name(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        for unknown in ("", "resp_x"):
            with pytest.raises(errors.ApiError) as error:
                await branch(parts, name, unknown, "one")
            assert (error.value.status, error.value.param) == (400, "conversation.parent")
        with pytest.raises(errors.ApiError) as error:
            await branch(parts, name, None, "")
        assert (error.value.status, error.value.param) == (400, "input")
        assert parts.requests() == []


async def test_without_input_the_text_of_the_parent_is_continued(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "Once ", "upon", reason="length")
        await ended(parts, first)
        other = await branch(parts, name, None, "another")
        parts.answer(other, "other")
        await ended(parts, other)
        more = await branch(parts, name, first, "")
        request = parts.requests()[-1]
        assert request.continue_final
        assert prompt_of(parts, more) == ["one", "Once upon"]


async def test_one_key_is_one_turn_and_the_head_is_the_one_that_stands(
    archive: reader.Reader,
) -> None:
    """Both gateways take a place: nothing refuses a branch. The second request is withdrawn, and
    what follows the head would follow that, past the answer."""
    broker, redis = memory_log.MemoryLog("one", 1), memory_redis.MemoryRedis()
    redis.away = True
    async with (
        gateway_parts.running(broker, redis, archive=archive) as one,
        gateway_parts.running(broker, redis, archive=archive) as two,
    ):
        name = (await one.conversations.create(OWNER, {}, "", [])).id
        body = {"conversation": behind(name, None)}
        broker.hold_acknowledgements()
        tries = [
            asyncio.ensure_future(parts.submission.submit(create("once", "k", **body), ALICE))
            for parts in (one, two)
        ]
        partition = conversations.partition(OWNER)
        await log_contract.until(
            lambda: len(broker.records(topics.CONVERSATIONS, partition)) == 3, 5
        )
        broker.release_acknowledgements()
        streams = await asyncio.gather(*tries)
        stands, withdrawn = (request.rid for request in one.requests())
        assert [stream.rid for stream in streams] == [stands, stands]
        await one.settled()
        await two.settled()
        assert [record.rid for record in one.tokens(records.Cancel)] == [withdrawn]
        conversation = await one.conversations.find(name, OWNER)
        assert set(conversation.nodes) == {stands, withdrawn}
        assert conversation.head == stands
        one.answer(stands, "said")
        for stream in streams:
            stream.release()
        place, before = await two.turns.after(name, OWNER)
        assert [m["content"] for m in before.messages] == ["once", "said"]
        with pytest.raises(errors.ApiError) as error:
            await one.submission.submit(create("twice", "k", **body), ALICE)
        assert error.value.code == "idempotency_key_reused"
        assert (await one.conversations.find(name, OWNER)).nodes == place.conversation.nodes
