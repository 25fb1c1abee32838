"""What is searched of a turn is what its Response object shows as messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.archive import turn_texts, words
from tailrace.delivery import archived
from tailrace.protocol import file_search, history, ids, records
from tests.support import cases
from tests.support.histories import history_of
from tests.unit.tailrace.protocol.test_history import ENDED_MS, responses


@given(responses(), st.booleans())
def test_answers_are_the_messages_of_the_response(
    made: tuple[records.Request, list[records.TokenRecord]], searched: bool
) -> None:
    request, accepted = made
    if searched:
        search = msgspec.to_builtins(file_search.Search(("what",)))
        echo = {**request.echo, file_search.MEMBER: search}
        request = msgspec.structs.replace(request, echo=echo)
    whole = history.from_records(request, accepted, ENDED_MS)
    series = archived.build_stream(whole).series
    assert series is not None
    shown = [
        (item["id"], turn_texts.item_text(item))
        for item in series.snapshot()["output"]
        if item["type"] == "message" and turn_texts.item_text(item)
    ]
    assert [each for each in turn_texts.answer_texts(whole) if each.text] == shown


def with_input(*items: dict[str, Any], **more: Any) -> history.History:
    whole = history_of(1, "the answer", **more)
    return msgspec.structs.replace(
        whole, request=msgspec.structs.replace(whole.request, input=[*items])
    )


def test_what_is_left_out_is_not_there() -> None:
    first = {"type": "message", "role": "user", "content": "one"}
    second = {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "of a file", "filename": "a.txt"},
            {"type": "input_text", "text": "two"},
            {"type": "input_image", "detail": "x"},
        ],
    }
    whole = with_input(first, second)
    assert turn_texts.turn_text(whole, ()) == "one\ntwo\nthe answer "
    left_out = {ids.item_id(whole.rid, "msg_1_"), ids.item_id(whole.rid)}
    assert turn_texts.turn_text(whole, left_out) == "one"


@cases.each(
    "item",
    [
        {"type": "message", "role": "developer", "content": "x"},
        {"type": "message", "role": "system", "content": "x"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "message", "role": "user", "content": 5},
        {"type": "message", "role": "user", "content": [5, {"text": 5}]},
    ],
)
def test_other_items_have_no_text(item: dict[str, Any]) -> None:
    assert turn_texts.item_text(item) == ""
    assert turn_texts.turn_text(with_input(item), ()) == "the answer "


@pytest.mark.parametrize("reason", ["failed", "expired"])
def test_a_turn_that_failed_has_none(reason: str) -> None:
    assert turn_texts.turn_text(with_input(reason=reason), ()) == ""


def test_a_long_question_leaves_room_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_CHARACTERS", 5)
    long = {"role": "user", "content": "q" * 99}
    assert turn_texts.turn_text(with_input(long), ()) == "qqqqq\nthe a"
