"""Which messages of a prompt may be left out (log rule §21)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import records, truncation
from tailrace.verify import truncation_checks
from tests.support import cases

Message = dict[str, Any]


def said(role: str, text: str = "x") -> Message:
    return {"role": role, "content": text}


def called(*ids: str) -> Message:
    calls = [{"id": i, "type": "function", "function": {"name": "f"}} for i in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def returned(call: str) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": call}


S, U, A = said("system"), said("user"), said("assistant")


@cases.each(
    ("messages", "counts"),
    [
        ([], [0]),
        ([S], [0]),
        ([U], [0]),
        ([S, U, A, U], [0, 2]),
        ([U, A, U, A, S, U], [0, 2, 4]),
        ([A, U, A, U], [0, 1, 3]),
        ([U, U, A, A, U], [0, 4]),
        # Within the last turn: answers with what tools returned, but for the last of them.
        ([U, called("a"), returned("a"), called("b"), returned("b")], [0, 2]),
        ([U, A, U, called("a"), returned("a"), A, called("c"), returned("c")], [0, 2, 4, 5]),
        ([S, U, called("a", "b"), returned("a"), returned("b"), A], [0, 3]),
        # A question between a call and its output begins no turn.
        ([U, called("a"), U, returned("a"), A, U], [0, 5]),
        # An id that is used again belongs to the call right before.
        ([U, called("a"), returned("a"), A, U, called("a"), returned("a"), U], [0, 4, 7]),
        # Nothing but answers: there is no question that could stay.
        ([A, A, A], [0]),
    ],
)
def test_how_many_may_be_left_out(messages: list[Message], counts: list[int]) -> None:
    assert truncation.counts(messages) == counts


def test_the_oldest_turns_are_left_out_and_instructions_stay() -> None:
    dialogue = [S, said("user", "1"), A, said("developer"), said("user", "2"), A, said("user", "3")]
    assert truncation.without_dropped(dialogue, 2) == [S, *dialogue[3:]]
    assert truncation.without_dropped(dialogue, 4) == [S, dialogue[3], dialogue[6]]
    for number in (1, 3, 5, 7):
        with pytest.raises(ValueError, match=f"{number} messages cannot"):
            truncation.without_dropped(dialogue, number)


def test_of_the_last_turn_the_question_and_the_last_answer_stay() -> None:
    rounds = [[called(c), returned(c)] for c in "abc"]
    dialogue = [S, U, *itertools.chain(*rounds)]
    assert truncation.without_dropped(dialogue, 2) == [S, U, *rounds[1], *rounds[2]]
    assert truncation.without_dropped(dialogue, 4) == [S, U, *rounds[2]]


@st.composite
def dialogues(draw: st.DrawFn) -> list[Message]:
    """Any order of roles; outputs come behind their calls, some of them much later."""
    found: list[Message] = []
    waiting: list[str] = []
    for _ in range(draw(st.integers(0, 16))):
        kind = draw(st.sampled_from(["system", "user", "user", "assistant", "call", "output"]))
        if kind == "call":
            ids = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=2, unique=True))
            ids = [i for i in ids if i not in waiting]
            waiting += ids
            found.append(called(*ids) if ids else said("assistant"))
        elif kind == "output":
            if waiting:
                found.append(returned(waiting.pop(draw(st.integers(0, len(waiting) - 1)))))
        else:
            found.append(said(kind))
    return found + [returned(i) for i in waiting]


@given(dialogues())
def test_what_stays_is_a_dialogue(dialogue: list[Message]) -> None:
    numbered = [{**message, "number": n} for n, message in enumerate(dialogue)]
    counts = truncation.counts(numbered)
    assert counts[0] == 0
    assert counts == sorted(set(counts))
    before: set[int] = set()
    for count in counts:
        kept = truncation.without_dropped(numbered, count)
        numbers = [m["number"] for m in kept]
        gone = set(range(len(dialogue))) - set(numbers)
        assert len(gone) == count
        assert numbers == sorted(numbers)
        assert before <= gone
        before = gone
        assert all(m["role"] != "system" for m in numbered if m["number"] in gone)
        # What stands between a call and its output goes with them.
        inside = {n for call, output in pairs(numbered) for n in range(call, output + 1)}
        users = [m["number"] for m in numbered if m["role"] == "user"]
        assert not users or users[-1] in numbers or users[-1] in inside
        others = [m["number"] for m in numbered if m["role"] != "system"]
        assert not others or others[-1] in numbers
        for call, output in pairs(numbered):
            assert (call in gone) == (output in gone)


def pairs(dialogue: list[Message]) -> list[tuple[int, int]]:
    """Numbers of calls and of their outputs."""
    found, made = [], {}
    for n, message in enumerate(dialogue):
        for call in message.get("tool_calls", ()):
            made[call["id"]] = n
        if "tool_call_id" in message:
            found.append((made[message["tool_call_id"]], n))
    return found


@given(dialogues())
def test_the_judge_works_out_the_same(dialogue: list[Message]) -> None:
    assert sorted({0, *truncation_checks.possible(dialogue)}) == truncation.counts(dialogue)


def test_a_number_that_does_not_fit_changes_nothing() -> None:
    owner, sampling = records.Owner("i", "s"), records.Sampling(1)
    request = records.Request("r", owner, "m", [U, A, U], sampling, {}, truncate=True)
    assert truncation.prompt(request, 2) == [U]
    assert truncation.prompt(request, 1) == request.messages
    assert truncation.prompt(records.Request("r", owner, "m", [U, A, U], sampling, {}), 2) == [
        U,
        A,
        U,
    ]
