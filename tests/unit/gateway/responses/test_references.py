"""Items that a request names or carries sealed: resolved before the log, for their owner only."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import conversation, input_items, responses_api
from gateway.responses import references
from tailrace.auth.principal import Principal
from tailrace.protocol import errors, ids, records, seals
from tailrace.web import access
from tests.support import gateway_parts
from tests.support.gateway_parts import ALICE, BOB, CATALOG, Parts

KEYS = seals.Keys([b"k" * 32])
SEALED = {"include": ["reasoning.encrypted_content"]}
QUESTION = {"role": "user", "content": "next"}
REASONING_TEXT = "let me think"  # what is sealed has no blanks
ITEMS: tuple[tuple[records.MarkKind, str], ...] = (
    ("r", REASONING_TEXT),
    ("m", "hello"),
    ("c", '{"a":1}'),
)


async def answer(parts: Parts, **fields: Any) -> dict[str, Any]:
    """A response of reasoning, a message and a call."""
    create = responses_api.parse({"input": "hi", **fields}, CATALOG)
    with await parts.submission.submit(create, ALICE) as stream:
        gateway_parts.put_items(parts.broker, parts.requests()[-1], *ITEMS)
        final = (await gateway_parts.all_events(stream))[-1].response
    assert final is not None
    return final


async def prompt(
    parts: Parts, *items: dict[str, Any], who: Principal = ALICE, **fields: Any
) -> list[dict[str, Any]]:
    """The messages of a request with these items, which is answered."""
    create = responses_api.parse({"input": list(items), **fields}, CATALOG)
    with await parts.submission.submit(create, who) as stream:
        parts.answer(stream.rid)
        await gateway_parts.all_events(stream)
    return parts.requests()[-1].messages


async def refused(parts: Parts, *items: dict[str, Any], **fields: Any) -> errors.ApiError:
    """The error, after which nothing is in the log."""
    before = len(parts.requests())
    with pytest.raises(errors.ApiError) as error:
        await prompt(parts, *items, **fields)
    assert len(parts.requests()) == before
    return error.value


async def test_reasoning_that_is_sent_back_sealed_is_in_the_prompt() -> None:
    async with gateway_parts.running(seal_keys=KEYS) as parts:
        response = await answer(parts, store=False, **SEALED)
        assert seals.MEMBER not in response
        assert parts.requests()[-1].echo.keys() >= {seals.MEMBER}
        reasoning, message, call = response["output"]
        assert REASONING_TEXT not in reasoning["encrypted_content"]
        back = {**reasoning, "content": []}
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}
        messages = await prompt(parts, back, message, call, output)
        assert messages[0]["reasoning_content"] == REASONING_TEXT
        assert [m["role"] for m in messages] == ["assistant", "tool"]
        view = parts.requests()[-1].input[0]
        assert (view["encrypted_content"], view["content"]) == (back["encrypted_content"], [])


async def test_the_bytes_of_the_seal_are_those_of_every_reader() -> None:
    async with gateway_parts.running(seal_keys=KEYS) as parts:
        response = await answer(parts, **SEALED)
        rid = response["id"]
        parts.delivery.discard(rid)
        snapshot = await parts.delivery.find(rid, parts.requests()[0].owner)
        assert snapshot.response == response


async def test_nothing_is_sealed_that_was_not_asked_for_or_without_keys() -> None:
    for keys, fields in ((KEYS, {}), (None, SEALED)):
        async with gateway_parts.running(seal_keys=keys) as parts:
            response = await answer(parts, **fields)
            assert "encrypted_content" not in response["output"][0]
            assert seals.MEMBER not in parts.requests()[0].echo


async def test_anothers_and_changed_reasoning_is_refused_by_its_place() -> None:
    async with gateway_parts.running(seal_keys=KEYS) as parts:
        reasoning = (await answer(parts, store=False, **SEALED))["output"][0]
        sealed = reasoning["encrypted_content"]
        other = "A" if sealed[-9] != "A" else "B"
        change = {**reasoning, "encrypted_content": sealed[:-9] + other + sealed[-8:]}
        for item, who in ((reasoning, BOB), (change, ALICE), ({**reasoning, "content": []}, BOB)):
            error = await refused(parts, QUESTION, item, who=who)
            assert (error.status, error.code, error.param) == (
                400,
                "invalid_encrypted_content",
                "input[1].encrypted_content",
            )


async def test_without_keys_the_text_beside_is_taken_and_nothing_else() -> None:
    reasoning = {"type": "reasoning", "summary": [], "encrypted_content": "sealed elsewhere"}
    beside = {**reasoning, "content": [{"type": "reasoning_text", "text": REASONING_TEXT}]}
    message = {"role": "assistant", "content": "hello"}
    async with gateway_parts.running() as parts:
        assert (await refused(parts, reasoning, message)).code == "invalid_encrypted_content"
        assert (await prompt(parts, beside, message))[0]["reasoning_content"] == REASONING_TEXT


async def test_a_summary_is_told_to_the_model_and_shown_as_it_was_sent() -> None:
    async with gateway_parts.running(seal_keys=KEYS) as parts:
        sealed = KEYS.close("cmp_" + "a" * 32, "they met", access.owner_of(ALICE))
        item = {"type": "compaction", "id": "cmp_" + "a" * 32, "encrypted_content": sealed}
        messages = await prompt(parts, item, QUESTION)
        assert [m["content"] for m in messages] == [
            conversation.SUMMARY.format("they met"),
            "next",
        ]
        assert parts.requests()[-1].input[0] == item
        assert (await refused(parts, item, who=BOB)).code == "invalid_encrypted_content"


async def test_items_of_stored_responses_are_named_by_their_ids() -> None:
    async with gateway_parts.running() as parts:
        response = await answer(parts)
        reasoning, message, call = response["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}
        references_ = [
            {"type": "item_reference", "id": item["id"]} for item in (reasoning, message)
        ]
        messages = await prompt(parts, *references_, {"id": call["id"]}, output)
        assert messages == [
            {
                "role": "assistant",
                "content": "hello",
                "reasoning_content": REASONING_TEXT,
                "tool_calls": [
                    {
                        "id": call["call_id"],
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call["call_id"], "content": "2"},
        ]
        assert parts.requests()[-1].input[1]["content"][0]["text"] == "hello"


async def test_an_item_that_the_owner_has_not_stored_is_not_found() -> None:
    async with gateway_parts.running() as parts:
        response, fleeting = await answer(parts), await answer(parts, store=False)
        wrong_kind = response["output"][1]["id"].replace("msg_", "rs_")
        for name, who in (
            (response["output"][1]["id"], BOB),
            (fleeting["output"][1]["id"], ALICE),
            (wrong_kind, ALICE),
            (ids.item_id(response["id"], "msg_", 9), ALICE),
            ("msg_" + "A" * 32, ALICE),
            ("msg_1", ALICE),
        ):
            error = await refused(parts, {"type": "item_reference", "id": name}, who=who)
            assert (error.status, error.param) == (404, "input"), name


async def test_an_output_answers_a_call_that_is_named_and_no_other() -> None:
    async with gateway_parts.running() as parts:
        call = (await answer(parts))["output"][2]
        output = {"type": "function_call_output", "call_id": "other", "output": "2"}
        error = await refused(parts, {"type": "item_reference", "id": call["id"]}, output)
        assert error.param == "input[1].call_id"


async def test_the_references_of_a_request_name_a_bounded_number_of_responses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(references, "MAX_RESPONSES", 2)
    async with gateway_parts.running() as parts:
        item_ids = [(await answer(parts))["output"][1]["id"] for _ in range(3)]
        references_ = [{"type": "item_reference", "id": item} for item in item_ids]
        assert len(await prompt(parts, *references_[:2], *references_[:2])) == 4
        error = await refused(parts, *references_)
        assert (error.status, error.param) == (400, "input")


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_items_that_fit_into_no_record_are_not_written_out(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One item, named again and again: the body is small, what it stands for is not."""
    async with gateway_parts.running() as parts:
        item = (await answer(parts))["output"][which]
        references_ = {"type": "item_reference", "id": item["id"]}
        text = (REASONING_TEXT, "hello", '{"a":1}')[which]
        monkeypatch.setattr(references, "MAX_CHARACTERS", 3 * len(text))
        error = await refused(parts, *[references_] * 4)
        assert (error.status, error.code) == (400, "context_length_exceeded")


async def test_items_that_are_named_often_may_be_as_long_as_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(references, "MAX_CHARACTERS", 3 * len("hello"))
    async with gateway_parts.running() as parts:
        references_ = {"type": "item_reference", "id": (await answer(parts))["output"][1]["id"]}
        assert len(await prompt(parts, *[references_] * 3)) == 3


def test_the_longest_seal_can_be_sent_back() -> None:
    item = ids.item_id("resp_" + "a" * 32, "rs_", 9)
    sealed = KEYS.for_response("resp_" + "a" * 32, access.owner_of(ALICE)).close(
        item, "x" * seals.MAX_TEXT_BYTES
    )
    assert sealed is not None
    assert len(sealed) <= input_items.MAX_SEALED_CHARS
