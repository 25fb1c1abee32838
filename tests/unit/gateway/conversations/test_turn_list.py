"""The turns of a conversation as a list: from the log and, once it has them, from the archive."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.conversations import turn_list
from tailrace.archive import reader
from tailrace.protocol import conversations, errors, history, ids, records, topics
from tests.support import archive_rows, gateway_parts
from tests.support.gateway_parts import ALICE, create
from tests.unit.gateway.requests import test_turns
from tests.unit.gateway.requests.test_turns import OWNER, ended, submit_turn, talking

archive = test_turns.archive

Row = dict[str, Any]


async def turn_rows(parts: gateway_parts.Parts, name: str, *nodes: str) -> list[Row]:
    """The rows of these nodes, or of all."""
    conversation = await parts.conversations.find(name, OWNER, contents=True)
    rows = await parts.conversation_turns.rows(conversation, nodes or list(conversation.nodes))
    return [msgspec.json.decode(row) for row in rows]


async def archive_turns(parts: gateway_parts.Parts, folder: Path, *rids: str) -> None:
    """Have the archive hold these responses."""
    actual = []
    for rid in rids:
        request = next(r for r in parts.requests() if r.rid == rid)
        log_records = [
            record
            for each in parts.broker.appended
            if each.topic == topics.TOKENS
            and (record := records.token_of(each.key, each.value)) is not None
            and record.rid == rid
        ]
        actual.append(history.from_records(request, log_records, 1_000))
    await archive_rows.build(f"sqlite:///{folder / 'archive.sqlite3'}", parts.broker, *actual)


@contextlib.asynccontextmanager
async def no_look_ups(parts: gateway_parts.Parts) -> AsyncIterator[None]:
    """Nothing is searched for in the answers of the log."""
    before = len(parts.broker.reads)
    yield
    assert [read for read in parts.broker.reads[before:] if read[0] == topics.TOKENS] == []


async def test_rows_show_what_was_asked_and_the_response_and_are_the_same_from_the_archive(
    archive: reader.Reader, tmp_path: Path
) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "Once ", "upon", reason="length")
        await ended(parts, first)
        note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "n"}]}
        conversation = await parts.conversations.find(name, OWNER)
        await parts.conversations.add_items(conversation, [note])
        failed = await submit_turn(parts, name, "fails")
        request = next(r for r in parts.requests() if r.rid == failed)
        gateway_parts.put_answer(parts.broker, request, error=("server_error", "…"))
        await ended(parts, failed)
        runs = await submit_turn(parts, name, "runs")
        parts.answer(runs, "so far", end=False)

        rows = await turn_rows(parts, name)
        assert [row["id"] for row in rows] == [first, rows[1]["id"], failed, runs]
        assert [row["parent"] for row in rows] == [None, first, rows[1]["id"], failed]
        assert {row["object"] for row in rows} == {"conversation.turn"}
        for row in (rows[0], rows[2], rows[3]):
            response = (await parts.delivery.find(row["id"], OWNER)).response
            assert row["response"] == msgspec.json.decode(msgspec.json.encode(response))
            assert row["input"] == await parts.operations.input_items(row["id"], OWNER)
        statuses = [row["response"] and row["response"]["status"] for row in rows]
        assert statuses == ["incomplete", None, "failed", "in_progress"]
        assert [item["content"] for item in rows[1]["input"]] == [note["content"]]

        await archive_turns(parts, tmp_path, first, failed)
        async with gateway_parts.running(parts.broker, archive=archive) as fresh:
            async with no_look_ups(fresh):
                assert await turn_rows(fresh, name, first, failed) == [rows[0], rows[2]]
            assert await turn_rows(fresh, name) == rows


async def test_what_is_not_there_is_null(archive: reader.Reader, tmp_path: Path) -> None:
    async with talking(archive) as (parts, name):
        first = await submit_turn(parts, name, "one")
        parts.answer(first, "secret")
        await ended(parts, first)
        withdrawn, _ = await parts.builder.build(create("withdrawn"), ALICE)
        never = await parts.delivery.mint(0)
        conversation = await parts.conversations.find(name, OWNER)
        for rid, parent in ((withdrawn.rid, first), (never, withdrawn.rid)):
            assert await parts.conversations.add(
                conversation, conversations.Turn(name, OWNER, rid, parent, until=1)
            )
        topic = topics.requests("default", "interactive")
        parts.broker.put_record(topic, 0, withdrawn, withdrawn.rid)
        cancel = records.Cancel(withdrawn.rid, OWNER, withdrawn.echo, withdrawn=True)
        parts.broker.put_record(topics.TOKENS, 0, cancel, withdrawn.rid)
        # The archive has it still when it is deleted.
        await archive_turns(parts, tmp_path, first)
        await parts.operations.delete(first, OWNER)
        for _ in range(2):
            rows = await turn_rows(parts, name)
            assert [row["id"] for row in rows] == [first, withdrawn.rid, never]
            assert {(len(row["input"]), row["response"]) for row in rows} == {(0, None)}
        async with no_look_ups(parts):  # which go through the log to its end
            await turn_rows(parts, name, first, never)


async def test_a_turn_whose_request_may_come_is_looked_for_again(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        request, _ = await parts.builder.build(create("late", conversation=name), ALICE)
        conversation = await parts.conversations.find(name, OWNER)
        turn = conversations.Turn(name, OWNER, request.rid, None, until=2**52)
        assert await parts.conversations.add(conversation, turn)
        [row] = await turn_rows(parts, name)
        assert row["response"] is None
        parts.broker.put_record(topics.requests("default", "interactive"), 0, request, request.rid)
        [row] = await turn_rows(parts, name)
        assert row["response"]["status"] == "in_progress"


async def test_removed_items_are_left_out(archive: reader.Reader) -> None:
    async with talking(archive) as (parts, name):
        rid = await submit_turn(parts, name, "one")
        parts.answer(rid, "first")
        await ended(parts, rid)
        [row] = await turn_rows(parts, name)
        for item in (row["input"][0]["id"], ids.item_id(rid)):
            await parts.conversations.append(conversations.Removed(name, OWNER, item))
        [row] = await turn_rows(parts, name)
        assert (row["input"], row["response"]["output"]) == ([], [])
        assert (await parts.delivery.find(rid, OWNER)).response["output"] != []


async def test_a_page_ends_where_it_is_long_enough(
    archive: reader.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talking(archive) as (parts, name):
        for text in ("a", "b", "c"):
            rid = await submit_turn(parts, name, text)
            parts.answer(rid, text)
            await ended(parts, rid)
        rows = await turn_rows(parts, name)
        one, two, three = (len(msgspec.json.encode(row)) for row in rows)
        for most, count in ((1, 1), (one + 1, 1), (one + two, 2), (one + two + three, 3)):
            monkeypatch.setattr(turn_list, "MOST_BYTES", most)
            assert await turn_rows(parts, name) == rows[:count]


async def test_without_the_archive_the_log_is_enough(
    archive: reader.Reader, tmp_path: Path
) -> None:
    async with talking(archive) as (parts, name):
        rid = await submit_turn(parts, name, "one")
        parts.answer(rid, "first")
        await ended(parts, rid)
        rows = await turn_rows(parts, name)
        (tmp_path / "archive.sqlite3").rename(tmp_path / "away")
        with pytest.raises(errors.ApiError):
            await parts.delivery.archived.several([rid], OWNER)
        assert await turn_rows(parts, name) == rows
