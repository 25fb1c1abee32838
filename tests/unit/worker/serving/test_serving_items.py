"""Serving responses with reasoning and calls, on the in-memory log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.protocol import ids, records, topics
from tests.support import memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import Foreign, answer, new_request
from tests.unit.worker.serving import test_response_task
from tests.unit.worker.serving.test_response_task import dead_letters, metered, tokens
from worker.engines import base, scripted, scripted_markers
from worker.serving import claim_plan, replays
from worker.serving.attempt import Stop
from worker.serving.outcome import Outcome
from worker.text.item_parser import Piece

looks_often = test_response_task.looks_often
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False},
}
QUESTION = 'think 20\nsay 30\ncall f {"a": "Zürich"}\ncall f {"b": 1}'
Item = tuple[str, str, str]


def asking(memory: MemoryLog, pace_ms: int = 0) -> records.Request:
    """A request whose answer reasons, speaks and calls."""
    fields: dict[str, Any] = {"tools": [TOOL], "reasoning": {"effort": "low"}}
    return new_request(memory, QUESTION, metadata={"script_pace_ms": str(pace_ms)}, **fields)


def items(memory: MemoryLog, rid: str) -> list[Item]:
    """The items in the log: kind, name, text."""
    parts: list[Item] = [("m", "", "")]
    for record in answer(memory, rid).records:
        if not isinstance(record, records.Tok | records.End):
            continue
        text = record.text if isinstance(record, records.Tok) else record.text_tail
        at = 0
        for mark in record.marks:
            _say(parts, text[at : mark.at])
            parts.append((mark.kind, mark.name, ""))
            at = mark.at
        _say(parts, text[at:])
    return [item for item in parts if item != ("m", "", "")]


def _say(found: list[Item], text: str) -> None:
    kind, name, said = found[-1]
    found[-1] = (kind, name, said + text)


def call_ids(memory: MemoryLog, rid: str) -> list[str]:
    frames = [r for r in answer(memory, rid).records if isinstance(r, records.Tok)]
    return [m.call_id for f in frames for m in f.marks if m.call_id]


@pytest.mark.parametrize("at_once", [0, 10_000], ids=["in a thread", "at once"])
async def test_takeovers_in_reasoning_and_in_calls_change_nothing(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "AT_ONCE_IDS", at_once)
    async with memory_worker.worker() as worker:
        whole, torn = asking(worker.memory), asking(worker.memory, pace_ms=2)
        assert await worker.serve(whole).outcome() is Outcome.DONE
        expected = answer(worker.memory, whole.rid)
        assert [kind for kind, _, _ in items(worker.memory, whole.rid)] == ["r", "m", "c", "c"]
        job = worker.serve(torn)
        for n in range(1, expected.fold.next, 9):
            await tokens(worker.memory, torn.rid, n)
            job.serving.interrupt(Stop.DRAIN)

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, torn.rid)
        assert response.fold.epoch > 1
        assert response.fold.ids == expected.fold.ids
        assert items(worker.memory, torn.rid) == items(worker.memory, whole.rid)
        assert response.ended.usage == expected.ended.usage
        assert response.ended.usage.reasoning_tokens == response.fold.reasoning > 0
        assert call_ids(worker.memory, torn.rid) == [ids.call_id(torn.rid, n) for n in range(2)]
        assert {claim.parser for claim in response.claims} == {scripted_markers.PARSER}
        assert metered(worker.memory)[-1].usage == response.ended.usage


async def test_a_plain_response_has_records_of_version_1() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=memory_worker.cues(20))
        assert await worker.serve(request).outcome() is Outcome.DONE
        written = worker.memory.records(topics.TOKENS, 0)
        assert all(b'"v":1' in r.value or b'"v"' not in r.value for r in written if r.value)
        assert answer(worker.memory, request.rid).claims[0].parser == ""


async def test_log_probabilities_are_in_the_frames() -> None:
    async with memory_worker.worker() as worker:
        sampling = records.Sampling(50, logprobs=2)
        request = new_request(worker.memory, "hello", sampling=sampling)
        assert await worker.serve(request).outcome() is Outcome.DONE
        frames = [
            r for r in answer(worker.memory, request.rid).records if isinstance(r, records.Tok)
        ]
        assert frames
        assert all(len(f.lp) == len(f.ids) for f in frames)
        assert {len(each.top) for f in frames for each in f.lp} == {2}


def left(memory: MemoryLog, request: records.Request, parser: str, text: str = "") -> None:
    """Another worker has written a frame, with this text, and is gone."""
    other = Foreign(memory, request)
    other.claim("a", parser=parser)
    made = list(scripted.answer(request))[:12]
    h = answer(memory, request.rid).fold.h
    other.write(records.Tok(request.rid, "a", 0, made, text, h))


async def test_another_parser_s_items_are_left_to_who_has_it_and_then_closed() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory)
        left(worker.memory, request, "scripted@0", "ab")
        await worker.caught_up()
        job = worker.serve(request)
        worker.time.advance(59)
        await test_response_task.several_looks(worker)
        assert answer(worker.memory, request.rid).fold.epoch == 1
        worker.time.advance(2)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error == claim_plan.MODEL_CHANGED.error
        assert (response.text, response.ended.text_tail) == ("ab", "")


async def test_text_that_the_parser_does_not_make_is_not_continued() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory)
        left(worker.memory, request, scripted_markers.PARSER, "x" * 100)
        await worker.caught_up()
        job = worker.serve(request)
        worker.time.advance(3)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error is not None
        assert response.ended.error[0] == "not_resumable"
        assert response.text == "x" * 100
        assert response.fold.next == 12


async def test_no_tokens_yet_any_parser_may_start() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory)
        Foreign(worker.memory, request).claim("a", parser="scripted@0")
        await worker.caught_up()
        job = worker.serve(request)
        worker.time.advance(3)
        assert await job.outcome() is Outcome.DONE
        assert [kind for kind, _, _ in items(worker.memory, request.rid)] == ["r", "m", "c", "c"]


class Unreadable(scripted.Scripted):
    """Its parser reads ten ids."""

    async def item_parser(
        self, request: records.Request, prompt_ids: Sequence[int]
    ) -> base.ItemParser:
        class Parser(scripted_markers.Parser):
            read = 0

            def push(self, token: int) -> Sequence[Piece]:
                self.read += 1
                if self.read > 10:
                    raise ValueError("too much")
                return super().push(token)

        return Parser(scripted.Detokenizer())


async def test_what_a_parser_cannot_read_fails_that_response_only() -> None:
    engine = Unreadable(capacity=2, max_model_len=8_192)
    async with memory_worker.worker(engine=engine) as worker:
        request, other = asking(worker.memory), new_request(worker.memory)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error == claim_plan.UNREADABLE.error
        assert response.fold.next == 10
        assert [letter.reason for letter in dead_letters(worker.memory)] == ["engine_failed"]
        assert await worker.serve(other).outcome() is Outcome.DONE
        assert answer(worker.memory, other.rid).ended.status == "completed"


async def test_a_replay_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "AT_ONCE_IDS", 0)
    monkeypatch.setattr(replays, "LONGEST_S", -1.0)
    async with memory_worker.worker() as worker:
        request = asking(worker.memory)
        left(worker.memory, request, scripted_markers.PARSER)
        await worker.caught_up()
        job = worker.serve(request)
        worker.time.advance(3)
        assert await job.outcome() is Outcome.DONE
        ended = answer(worker.memory, request.rid).ended
        assert ended.error is not None
        assert (ended.error[0], ended.text_tail) == ("not_resumable", "")
