"""The load test's judge finds every kind of wrong history, at every place; and it is silent about a
right one."""

from __future__ import annotations

from typing import Any

import pytest

from bench.transcript import DELTA, TERMINAL_TYPES, Transcript
from tailrace.protocol import events as protocol_events

WORDS = ["Once", " upon", " a", " time", " there", " was"]
TEXT = "".join(WORDS)


def history(text: str = TEXT, status: str = "completed") -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        {"type": "response.in_progress", "response": {"id": "resp_1"}},
        *({"type": DELTA, "delta": word} for word in WORDS),
        {"type": "response.output_text.done", "text": TEXT},
        {
            "type": "response.completed" if status == "completed" else "response.incomplete",
            "response": {
                "id": "resp_1",
                "status": status,
                "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
                "usage": {"output_tokens": len(WORDS)},
            },
        },
    ]
    return [{**event, "sequence_number": n} for n, event in enumerate(kinds)]


def judged(events: list[dict[str, Any]], expected: str | None = None) -> list[str]:
    transcript = Transcript()
    for event in events:
        transcript.feed(event)
    return transcript.problems(expected)


EVERYWHERE = range(len(history()))


def test_a_right_history_passes() -> None:
    assert judged(history(), TEXT) == []


def test_it_knows_its_response_and_its_tokens() -> None:
    transcript = Transcript()
    for event in history():
        transcript.feed(event)
    assert (transcript.rid, transcript.tokens, transcript.text, transcript.position) == (
        "resp_1",
        6,
        TEXT,
        9,
    )


@pytest.mark.parametrize("at", EVERYWHERE)
def test_a_lost_event_is_found(at: int) -> None:
    events = history()
    del events[at]
    assert judged(events), f"event {at} lost and not noticed"


@pytest.mark.parametrize("at", EVERYWHERE)
def test_a_doubled_event_is_found(at: int) -> None:
    events = history()
    events.insert(at, events[at])
    assert "1 doubled" in judged(events)


@pytest.mark.parametrize("at", EVERYWHERE[:-1])
def test_swapped_events_are_found(at: int) -> None:
    events = history()
    events[at], events[at + 1] = events[at + 1], events[at]
    assert "1 out of order" in judged(events)


def test_a_place_in_the_queue_is_no_event_of_the_series() -> None:
    events = history()
    place = {"type": "response.queued", "queue": {"position": 3}, "sequence_number": 0}
    assert judged([events[0], place, place, *events[1:]]) == []
    assert judged([*events[:4], place, *events[4:]]) == ["1 doubled"]


def test_a_resume_that_repeats_an_event_is_found() -> None:
    events = history()
    assert "1 doubled" in judged(events[:5] + events[4:])


def test_a_resume_that_leaves_a_gap_is_found() -> None:
    events = history()
    assert "2 lost" in judged(events[:4] + events[6:])


def test_numbers_without_holes_do_not_hide_a_lost_delta() -> None:
    """A server that renumbers after losing a token: only the text tells."""
    events = [e for e in history() if e.get("delta") != " a"]
    renumbered = [{**e, "sequence_number": n} for n, e in enumerate(events)]
    assert "text differs from the final response" in judged(renumbered)


def test_text_spliced_from_two_generations_is_found() -> None:
    """Numbers and final text agree with each other, and both are wrong."""
    other = [*WORDS[:3], " day", *WORDS[4:]]
    events = history("".join(other))
    for event, word in zip([e for e in events if e["type"] == DELTA], other, strict=True):
        event["delta"] = word
    events[-2]["text"] = "".join(other)
    assert judged(events) == []
    assert judged(events, TEXT) == ["text is not what the engine had to write"]


def test_a_cancelled_answer_is_a_beginning_of_the_whole() -> None:
    events = history(status="cancelled")
    assert judged(events, TEXT + " a king") == []
    assert judged(events, "Twice" + TEXT) == ["text is not what the engine had to write"]


def test_a_second_end_is_found() -> None:
    events = history()
    assert "1 after the end" in judged([*events, {**events[-1], "sequence_number": len(events)}])


def test_the_copy_of_the_terminal_types_is_the_protocols() -> None:
    assert TERMINAL_TYPES == protocol_events.TERMINAL_TYPES


def with_a_call(arguments: str = '{"city":"Rome"}') -> list[dict[str, Any]]:
    """A response that thinks and calls."""
    thought = [{"type": "reasoning_text", "text": "Hm."}]
    output = [
        {"type": "reasoning", "content": thought},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": arguments},
    ]
    kinds: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "Hm."},
        *(
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": delta}
            for delta in ('{"city":', '"Rome"}')
        ),
        {"type": "response.completed", "response": {"status": "completed", "output": output}},
    ]
    return [{**event, "sequence_number": n} for n, event in enumerate(kinds)]


def test_arguments_and_reasoning_are_compared_item_by_item() -> None:
    assert judged(with_a_call()) == []
    assert judged(with_a_call('{"city":"Roma"}')) == ["item 1 differs from the final response"]
    transcript = Transcript()
    for event in with_a_call():
        transcript.feed(event)
    assert [call["name"] for call in transcript.calls] == ["f"]
