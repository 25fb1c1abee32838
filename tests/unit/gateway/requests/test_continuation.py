"""An answer that was cut short, continued by its text: `previous_response_id` and no input."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import responses_api
from gateway.responses import context
from tailrace.protocol import errors, events, features, fold, ids, records, topics
from tests.support import cases, gateway_parts
from tests.support.gateway_parts import ALICE, CATALOG, Parts

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
QUESTION = {"role": "user", "content": "hi"}
EMPTY: tuple[dict[str, Any], ...] = ({}, {"input": None}, {"input": []}, {"input": ""})


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def answer(parts: Parts, *texts: str, reason: str = "length", **body: Any) -> dict[str, Any]:
    """The Response object of an answer with these texts."""
    create = responses_api.parse(body, CATALOG)
    with await parts.submission.submit(create, ALICE) as stream:
        parts.answer(stream.rid, *texts, reason=reason)
        final = (await gateway_parts.all_events(stream))[-1].response
    assert final is not None
    return final


async def answer_with_marks(parts: Parts, *marks: records.Mark, text: str = "") -> dict[str, Any]:
    """The same of an answer with items; the text is a frame's."""
    create = responses_api.parse({"input": "hi", "tools": [TOOL]}, CATALOG)
    with await parts.submission.submit(create, ALICE) as stream:
        request, partition = parts.requests()[-1], ids.parse(stream.rid).partition
        rid, topic = stream.rid, topics.requests("default", "interactive")
        for record in (
            records.Claim(
                *(rid, "own", None, request.owner, "w/1", topic, 0, "rev", "tok"),
                echo=request.echo,
                parser="p",
            ),
            records.Tok(rid, "own", 0, [1], text, fold.H0, marks=marks),
            records.End(rid, "own", 1, "length", fold.roll(fold.H0, [1])),
        ):
            parts.broker.put_record(topics.TOKENS, partition, record, rid)
        final = (await gateway_parts.all_events(stream))[-1].response
    assert final is not None
    return final


async def refused(parts: Parts, **body: Any) -> errors.ApiError:
    before = len(parts.requests())
    with pytest.raises(errors.ApiError) as error:
        await answer(parts, **body)
    assert len(parts.requests()) == before
    assert error.value.status == 400
    return error.value


@cases.each("nothing", EMPTY, ids=str)
@cases.each("cached", [True, False])
async def test_no_input_continues_the_text(nothing: dict[str, Any], cached: bool) -> None:
    async with gateway_parts.running() as parts:
        response = await answer(parts, "Once ", "upon", input="hi")
        assert (response["incomplete_details"], response["continue"]) == (
            {"reason": "max_output_tokens"},
            True,
        )
        if not cached:
            parts.redis.values.clear()
        rest = await answer(
            parts, " a ", "time", reason="stop", previous_response_id=response["id"], **nothing
        )
        request = parts.requests()[-1]
        assert request.messages == [QUESTION, {"role": "assistant", "content": "Once upon"}]
        assert (request.continue_final, request.version, request.input) == (True, 2, [])
        assert (text_of(rest), rest["previous_response_id"]) == (" a time", response["id"])
        assert "continue" not in rest
        # To the next turn the two are one message.
        if not cached:
            parts.redis.values.clear()
        await answer(parts, "x", input="and?", previous_response_id=rest["id"])
        assert parts.requests()[-1].messages == [
            QUESTION,
            {"role": "assistant", "content": "Once upon a time"},
            {"role": "user", "content": "and?"},
        ]
        assert not parts.requests()[-1].continue_final


async def test_it_can_be_continued_again_and_what_is_said_later_is_a_turn() -> None:
    async with gateway_parts.running() as parts:
        response = await answer(parts, "a", input="hi")
        more = await answer(parts, "b", previous_response_id=response["id"])
        nothing = await answer(parts, previous_response_id=more["id"], reason="length")
        await answer(parts, "c", previous_response_id=nothing["id"])
        request = parts.requests()[-1]
        assert request.messages == [QUESTION, {"role": "assistant", "content": "ab"}]
        assert request.continue_final
        await answer(parts, "x", input="and?", previous_response_id=more["id"])
        request = parts.requests()[-1]
        assert request.messages[1:] == [
            {"role": "assistant", "content": "ab"},
            {"role": "user", "content": "and?"},
        ]
        assert not request.continue_final


async def test_half_a_character_is_left_to_what_follows() -> None:
    async with gateway_parts.running() as parts:
        response = await answer(parts, "a \ufffd", input="hi")
        assert text_of(response) == "a \ufffd"
        await answer(parts, "😀", previous_response_id=response["id"])
        assert parts.requests()[-1].messages[-1]["content"] == "a "


async def test_a_cancelled_answer_is_continued_too() -> None:
    async with gateway_parts.running() as parts:
        create = responses_api.parse({"input": "hi"}, CATALOG)
        with await parts.submission.submit(create, ALICE) as stream:
            parts.answer(stream.rid, "par", end=False)
            rid = stream.rid
            owner = parts.requests()[-1].owner
            cancel = records.Cancel(rid, owner)
            parts.broker.put_record(topics.TOKENS, ids.parse(rid).partition, cancel, rid)
            final = (await gateway_parts.all_events(stream))[-1].response
        assert final is not None
        assert (final["status"], final["continue"]) == ("cancelled", True)
        await answer(parts, "t", previous_response_id=rid)
        assert parts.requests()[-1].continue_final


async def test_what_cannot_be_continued_is_refused_by_name() -> None:
    async with gateway_parts.running() as parts:
        complete = await answer(parts, "done", reason="stop", input="hi")
        form = {"format": {"type": "json_object"}}
        response = await answer(parts, '{"a"', input="hi", text=form)
        partial = await answer_with_marks(parts, records.Mark(0, 0, "c", "f", "call_1"), text="{")
        thinking = await answer_with_marks(parts, records.Mark(0, 0, "r"), text="Hm")
        between = (records.Mark(0, 0, "c", "f", "call_1"), records.Mark(2, 1, "m"))
        spoken = await answer_with_marks(parts, *between, text="{}Well")
        for each in (complete, response, partial, thinking, spoken):
            assert "continue" not in each
            error = await refused(parts, previous_response_id=each["id"])
            assert (error.code, error.param) == ("invalid_value", "previous_response_id")
            await answer(parts, "x", input="go on", previous_response_id=each["id"])
        text = await answer_with_marks(
            parts, records.Mark(0, 0, "r"), records.Mark(2, 1, "m"), text="HmYes"
        )
        assert text["continue"] is True
        for member, param in (
            ({"text": form}, "text.format"),
            ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ):
            error = await refused(parts, previous_response_id=text["id"], **member)
            assert error.param == param
        await answer(parts, "x", previous_response_id=text["id"], tools=[TOOL])
        last = parts.requests()[-1].messages[-1]
        assert last == {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
    with pytest.raises(errors.ApiError) as missing:
        responses_api.parse({"input": []}, CATALOG)
    assert (missing.value.code, missing.value.param) == ("missing_required_parameter", "input")


async def test_a_warm_up_is_answered_and_not_continued() -> None:
    async with gateway_parts.running() as parts:
        response = await answer(parts, "a", input="hi")
        create = responses_api.parse(
            {"input": "warm", "generate": False, "previous_response_id": response["id"]},
            CATALOG,
            websocket=True,
        )
        with await parts.submission.submit(create, ALICE) as stream:
            parts.answer(stream.rid, reason="warmup")
            await gateway_parts.all_events(stream)
        await answer(parts, "b", previous_response_id=stream.rid)
        request = parts.requests()[-1]
        assert request.messages[-1] == {"role": "user", "content": "warm"}
        assert not request.continue_final


async def test_workers_and_readers_that_do_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_parts.running() as parts:
        response = await answer(parts, "a", input="hi")
        able = [f for f in features.ALL if f != "continuation"]
        beat = {"state": "ready", "partitions": [0]}
        beats = [beat | {"features": sorted(features.ALL)}, beat | {"features": able}]
        with monkeypatch.context() as patch:
            patch.setattr(parts.workers, "workers", lambda _pool: beats)
            error = await refused(parts, previous_response_id=response["id"])
            assert (error.code, error.param) == ("unsupported_parameter", "previous_response_id")
            # What they cut short is not said to be continuable.
            assert "continue" not in await answer(parts, "a", input="hi")
        async with gateway_parts.running(parts.broker, parts.redis, records_version=1) as old:
            error = await refused(old, previous_response_id=response["id"])
            assert (error.code, error.param) == ("unsupported_parameter", "previous_response_id")
            assert "continue" not in await answer(old, "a", input="hi")
            assert events.CONTINUE not in old.requests()[-1].echo


async def test_a_fork_of_a_continuation_has_its_prompt() -> None:
    async with gateway_parts.running() as parts:
        response = await answer(parts, "a", input="hi")
        rest = await answer(parts, "b", "c", reason="stop", previous_response_id=response["id"])
        create = responses_api.parse({"fork": {"response_id": rest["id"], "at": 1}}, CATALOG)
        with await parts.submission.submit(create, ALICE) as stream:
            request = parts.requests()[-1]
            parts.answer(stream.rid)
        assert request.continue_final
        assert request.messages[-1] == {"role": "assistant", "content": "a"}


def test_only_the_last_message_says_what_may_follow() -> None:
    answer = {"role": "assistant", "content": "a"}
    assert context.is_open([]) is None
    assert context.is_open([QUESTION]) is None
    assert context.is_open([QUESTION, answer]) is False
    assert context.is_open([QUESTION, {**answer, "open": True}]) is True
    assert context.is_open([{**QUESTION, "open": False}]) is False
    assert context.is_open([answer, {"role": "tool", "content": "", "tool_call_id": "c"}]) is None
    marked_messages = [{**answer, "open": True}, {**QUESTION, "open": False}]
    assert context.without_open_calls(marked_messages, set()) == [answer, QUESTION]
