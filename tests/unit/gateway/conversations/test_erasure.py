"""A conversation is deleted with what was said in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace import log
from tailrace.archive import reader
from tailrace.delivery import delivery
from tailrace.protocol import conversations, errors, records, topics
from tailrace.web import access
from tests.support import gateway_parts
from tests.support.gateway_parts import ALICE, BOB, create
from tests.unit.gateway.conversations.test_turn_list import archive_turns, no_look_ups
from tests.unit.gateway.requests import test_turns
from tests.unit.gateway.requests.test_turns import OWNER, ended, submit_turn, talking

archive = test_turns.archive


def deletions(parts: gateway_parts.Parts) -> list[str]:
    """Ids of the responses that were deleted, in order."""
    actual = [r.key for r in parts.broker.appended if r.topic == topics.DELETIONS]
    return [(key or b"").decode() for key in actual]


async def is_deleted(parts: gateway_parts.Parts, name: str, *rids: str) -> bool:
    """Whether nothing of it can be read."""
    for rid in rids:
        with pytest.raises(delivery.NotFound):
            await parts.delivery.find(rid, OWNER)
    with pytest.raises(errors.ApiError) as error:
        await parts.conversations.find(name, OWNER)
    return error.value.code == "conversation_not_found"


async def test_its_responses_go_and_what_runs_is_cancelled(
    archive: reader.Reader, tmp_path: Path
) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "first")
        await ended(parts, first)
        never = conversations.Turn(name, OWNER, await parts.delivery.mint(0), first, until=1)
        assert await parts.conversations.add(await parts.conversations.find(name, OWNER), never)
        runs = await submit_turn(parts, name, "two")
        parts.answer(runs, "second", end=False)
        await parts.conversation_erasure.erase(name, OWNER)
        assert sorted(deletions(parts)) == sorted([first, runs])
        assert [record.rid for record in parts.tokens(records.Cancel)] == [runs]
        assert await is_deleted(parts, name, first, runs)


async def test_what_the_archive_has_needs_no_look_up(
    archive: reader.Reader, tmp_path: Path
) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "first")
        await ended(parts, first)
        await archive_turns(parts, tmp_path, first)
        async with gateway_parts.running(parts.broker, archive=archive) as fresh:
            async with no_look_ups(fresh):
                await fresh.conversation_erasure.erase(name, OWNER)
            assert await is_deleted(fresh, name, first)


async def test_one_that_broke_off_is_completed_by_the_next_call(
    archive: reader.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talking(archive) as (parts, name):
        rids = []
        for text in ("a", "b", "c"):
            rids.append(await submit_turn(parts, name, text))
            parts.answer(rids[-1], text)
            await ended(parts, rids[-1])
        append = parts.operations.append_deletion

        async def fails(rid: str, owner: records.Owner) -> None:
            if rid == rids[1]:
                raise log.AppendFailed("away")
            await append(rid, owner)

        with monkeypatch.context() as patch:
            patch.setattr(parts.operations, "append_deletion", fails)
            with pytest.raises(log.AppendFailed):
                await parts.conversation_erasure.erase(name, OWNER)
        assert sorted(deletions(parts)) == sorted([rids[0], rids[2]])
        assert (await parts.conversations.find(name, OWNER)).nodes
        await parts.conversation_erasure.erase(name, OWNER)
        assert sorted(deletions(parts)) == sorted(rids)
        assert await is_deleted(parts, name, *rids)


async def test_a_turn_that_comes_meanwhile_goes_too(
    archive: reader.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and the end of the conversation; and one whose request is on its way
    until then."""
    async with talking(archive) as (parts, name):
        request, _ = await parts.builder.build(create("late", conversation=name), ALICE)
        turn = conversations.Turn(name, OWNER, request.rid, None, until=2**52)
        append = parts.conversations.append

        async def with_a_turn(*acts: conversations.Act) -> int:
            if isinstance(acts[0], conversations.Gone):
                await append(turn)
            return await append(*acts)

        monkeypatch.setattr(parts.conversations, "append", with_a_turn)
        erasing = asyncio.ensure_future(parts.conversation_erasure.erase(name, OWNER))
        await asyncio.sleep(0.3)
        assert not erasing.done()
        topic = topics.requests("default", "interactive")
        parts.broker.put_record(topic, 0, request, request.rid)
        await asyncio.wait_for(erasing, 10)
        assert deletions(parts) == [request.rid]
        assert await is_deleted(parts, name, request.rid)


async def test_nobody_elses_is_erased(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        rid = await submit_turn(parts, name, "one")
        bob = access.owner_of(BOB)
        with pytest.raises(errors.ApiError) as error:
            await parts.conversation_erasure.erase(name, bob)
        assert error.value.status == 404
        assert deletions(parts) == []
        assert (await parts.delivery.find(rid, OWNER)).response["id"] == rid
