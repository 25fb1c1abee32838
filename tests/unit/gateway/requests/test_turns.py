"""Turns over a log in memory: what is passed over, what locks, and what a refused one leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.parsing import responses_api
from gateway.requests import busy_turns
from gateway.responses import busy
from tailrace import log
from tailrace.archive import database, migration, reader
from tailrace.protocol import conversations, errors, fold, records, topics
from tailrace.web import access
from tests.support import gateway_parts, memory_log, waiting
from tests.support.gateway_parts import ALICE, BOB, create

OWNER = access.owner_of(ALICE)


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[reader.Reader]:
    """A database with tables and no rows: all that there is comes from the log."""
    url = f"sqlite:///{tmp_path / 'archive.sqlite3'}"
    engine = database.engine(url, create=True)
    await migration.migrate(engine)
    await engine.dispose()
    archive_reader = reader.open_reader(url)
    assert archive_reader is not None
    yield archive_reader
    await archive_reader.stop()


@contextlib.asynccontextmanager
async def talking(
    archive: reader.Reader, **more: Any
) -> AsyncIterator[tuple[gateway_parts.Parts, str]]:
    """A gateway, and an empty conversation."""
    async with gateway_parts.running(archive=archive, **more) as parts:
        output = await parts.conversations.create(OWNER, {}, "", [])
        yield parts, output.id
        ended = {r.rid for kind in (records.End, records.Cancel) for r in parts.tokens(kind)}
        for request in parts.requests():
            if request.rid not in ended:
                parts.answer(request.rid, "at last")


async def submit_turn(parts: gateway_parts.Parts, name: str, text: str, **more: Any) -> str:
    """Submit a turn; its response id."""
    stream = await parts.submission.submit(create(text, conversation=name, **more), ALICE)
    stream.release()
    return stream.rid


async def following(parts: gateway_parts.Parts, name: str) -> list[tuple[str, str]]:
    """Who said what before the next turn."""
    _, before = await parts.turns.after(name, OWNER)
    return [(message["role"], message["content"]) for message in before.messages]


async def ended(parts: gateway_parts.Parts, rid: str) -> None:
    """Wait until the gateway knows the end of a response."""

    async def done() -> bool:
        return (await parts.delivery.find(rid, OWNER)).phase is fold.Phase.DONE

    await waiting.eventually(done, "the end")


async def test_a_turn_without_input_continues_the_text_of_the_last_one(
    archive: reader.Reader,
) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "Once ", "upon", reason="length")
        await ended(parts, first)
        for nothing in ({}, {"input": ""}):
            body = {"conversation": name, **nothing}
            more = responses_api.parse(body, gateway_parts.CATALOG)
            stream = await parts.submission.submit(more, ALICE)
            stream.release()
            request = parts.requests()[-1]
            assert request.continue_final
            parts.answer(stream.rid, " a", reason="length")
            await ended(parts, stream.rid)
        assert request.messages[-1] == {"role": "assistant", "content": "Once upon a"}
        assert await following(parts, name) == [("user", "one"), ("assistant", "Once upon a a")]


async def test_a_turn_follows_those_that_ended(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "first")
        second = await submit_turn(parts, name, "two", if_busy="queue")
        conversation = await parts.conversations.find(name, OWNER)
        assert conversation.path() == [first, second]
        [_, request] = parts.requests()
        assert [m["content"] for m in request.messages] == ["one", "first", "two"]
        assert (request.conversation, request.previous) == (name, None)
        turn = conversation.nodes[second]
        assert (turn.parent, turn.until) == (first, request.append_by)


async def test_one_that_runs_locks_it(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        with pytest.raises(errors.ApiError) as error:
            await submit_turn(parts, name, "two")
        assert (error.value.code, error.value.param) == ("conversation_locked", "conversation")
        assert first in error.value.message
        assert len(parts.requests()) == 1
        assert list((await parts.conversations.find(name, OWNER)).nodes) == [first]


async def test_one_that_failed_and_one_that_was_withdrawn_are_passed_over(
    archive: reader.Reader,
) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "first")
        failed = await submit_turn(parts, name, "fails", if_busy="queue")
        request = next(r for r in parts.requests() if r.rid == failed)
        gateway_parts.put_answer(parts.broker, request, error=("server_error", "…"))
        await ended(parts, failed)
        # Another gateway's, whose append was of unknown outcome.
        request, partition = await parts.builder.build(create("withdrawn"), ALICE)
        act = conversations.Turn(name, OWNER, request.rid, failed)
        assert await parts.conversations.add(await parts.conversations.find(name, OWNER), act)
        topic = topics.requests("default", "interactive")
        parts.broker.put_record(topic, partition, request, request.rid)
        cancel = records.Cancel(request.rid, OWNER, request.echo, withdrawn=True)
        parts.broker.put_record(topics.TOKENS, partition, cancel, request.rid)
        assert await following(parts, name) == [("user", "one"), ("assistant", "first")]


async def test_a_turn_whose_request_never_came_locks_until_its_time_is_over(
    archive: reader.Reader,
) -> None:
    now = 1_000_000.0
    async with talking(archive, clock=lambda: now) as (parts, name):
        rid = await parts.delivery.mint(0)
        turn = conversations.Turn(name, OWNER, rid, None, until=int(now * 1000) + 10_000)
        await parts.conversations.append(turn)
        with pytest.raises(busy.Busy) as locked:
            await following(parts, name)
        assert locked.value.rid == rid
        now += 10.0
        assert await following(parts, name) == []


class Refusing:
    """A writer that does not send requests."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def append(self, topic: str, *arguments: Any) -> Any:
        if topic.startswith("llm.requests"):
            raise log.NotAppended("away")
        return self._writer.append(topic, *arguments)


async def test_a_turn_that_was_not_written_gives_its_place_back(archive: reader.Reader) -> None:
    broker = memory_log.MemoryLog("one", 1)
    writer = Refusing(broker.writer())
    async with gateway_parts.running(broker, archive=archive, writer=writer) as parts:
        name = (await parts.conversations.create(OWNER, {}, "", [])).id
        with pytest.raises(errors.ApiError) as failed:
            await submit_turn(parts, name, "one")
        assert failed.value.status == 503
        conversation = await parts.conversations.find(name, OWNER)
        assert (conversation.head, len(conversation.nodes)) == (None, 1)
        assert await following(parts, name) == []


async def test_nobody_elses_conversation_is_there(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        for wrong in (name, "conv_x", "resp_x", name[:-1]):
            with pytest.raises(errors.ApiError) as error:
                await parts.conversations.find(wrong, access.owner_of(BOB))
            assert (error.value.status, error.value.code) == (404, "conversation_not_found")


async def test_few_may_wait(archive: reader.Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_turns, "MAX_WAITING", 1)
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        other = (await parts.conversations.create(OWNER, {}, "", [])).id
        second = await submit_turn(parts, other, "one")
        waits = asyncio.ensure_future(submit_turn(parts, name, "two", if_busy="queue"))
        await asyncio.sleep(0.1)
        with pytest.raises(errors.ApiError) as error:
            await submit_turn(parts, other, "two", if_busy="queue")
        assert error.value.status == 429
        for rid in (first, second):
            parts.answer(rid, "x")
        await asyncio.wait_for(waits, 5)


async def test_one_that_continues_a_response_waits_for_it_or_ends_it() -> None:
    async with gateway_parts.running() as parts:
        first = await parts.submission.submit(create("one"), ALICE)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create("two", previous_response_id=first.rid), ALICE)
        assert error.value.param == "previous_response_id"
        command_ = create("two", previous_response_id=first.rid, if_busy="queue")
        waits = asyncio.ensure_future(parts.submission.submit(command_, ALICE))
        await asyncio.sleep(0.1)
        assert not waits.done()
        parts.answer(first.rid, "first")
        second = await asyncio.wait_for(waits, 5)
        assert [m["content"] for m in parts.requests()[1].messages] == ["one", "first", "two"]

        command_ = create("three", previous_response_id=second.rid, if_busy="interrupt")
        third = await asyncio.wait_for(parts.submission.submit(command_, ALICE), 5)
        [cancel] = parts.tokens(records.Cancel)
        assert cancel.rid == second.rid
        parts.answer(third.rid, "third")
        for stream in (first, second, third):
            stream.release()


async def test_one_key_makes_one_conversation_at_any_gateway(archive: reader.Reader) -> None:
    broker = memory_log.MemoryLog("one", 1)
    async with (
        gateway_parts.running(broker, archive=archive) as one,
        gateway_parts.running(broker, archive=archive) as two,
    ):
        broker.hold_acknowledgements()
        tries = [
            asyncio.ensure_future(parts.conversations.create_once(OWNER, "k", {"by": name}, name))
            for parts, name in ((one, "one"), (two, "two"))
        ]
        partition = conversations.partition(OWNER)
        await waiting.eventually(
            lambda: len(broker.records(topics.CONVERSATIONS, partition)) == 2, "both attempts"
        )
        attempts = broker.records(topics.CONVERSATIONS, partition)
        assert len({record.key for record in attempts}) == 2, "compaction keeps the first"
        broker.release_acknowledgements()
        first, second = await asyncio.gather(*tries)
        assert first == second
        name = first.id
        turn = conversations.Turn(name, OWNER, await one.delivery.mint(0))
        assert await one.conversations.add(first, turn)
        again = await two.conversations.create_once(OWNER, "k", {}, "other")
        assert (again.title, again.head) == (first.title, turn.node)
        assert len(broker.records(topics.CONVERSATIONS, partition)) == 3
        for owner, key in ((OWNER, "l"), (access.owner_of(BOB), "k")):
            other = await one.conversations.create_once(owner, key, {}, "")
            assert other.id != name
        await two.conversations.delete(name, OWNER)
        for parts in (one, two):
            with pytest.raises(errors.ApiError) as error:
                await parts.conversations.create_once(OWNER, "k", {}, "")
            assert error.value.code == "conversation_not_found"
