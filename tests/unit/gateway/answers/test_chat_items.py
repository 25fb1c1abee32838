"""Calls, reasoning and log probabilities in Chat Completions, as the official client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import chat as sdk

from gateway.answers import chat_completions
from tailrace.protocol import events, fold, ids, records
from tests.support import cases, toy_parser

RIDS = [ids.mint(ids.Address(b"abcd", 0, 0), bytes([i]) * 11) for i in range(8)]
OWNER = records.Owner("iss", "alice")
# Pieces that answers are made of (`toy_parser`).
PIECES = ["<r", "<m", '<cf|{"a":1}<e', "<cg|<e", "<ch|{", "Hello", "天気", "<", "é", " "]
answers = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join)
divisions = st.lists(st.integers(1, 9), max_size=40)


def series(
    answer: str,
    sizes: Iterable[int] = (),
    reason: str = "stop",
    *,
    logprobs: bool = False,
    rid: str = RIDS[0],
) -> list[events.Event]:
    """The events of a response whose worker cuts the answer into frames of these sizes."""
    event_series, state = events.Series(events.echo(rid, 7, "m")), fold.Fold()
    worker = toy_parser.Worker(rid, "o", logprobs=logprobs)
    frames: list[records.TokenRecord] = [
        records.Claim(rid, "o", None, OWNER, "w", "t", 0, "r", "d", 9, {}, toy_parser.PARSER)
    ]
    rest, lengths = toy_parser.ids_of(answer), iter(sizes)
    while rest:
        size = next(lengths, len(rest))
        frames.append(worker.frame(rest[:size]))
        rest = rest[size:]
    out = event_series.open()
    for offset, record in enumerate([*frames, worker.end(reason)]):
        effect = state.apply(record, offset, 9000)
        assert not isinstance(effect, fold.Ignored)
        out += event_series.apply(effect)
    return out


def body_of(*choices: Sequence[events.Event], logprobs: bool = False) -> bytes:
    """The body of a stream in which the choices take turns."""
    echoes = [events.echo(RIDS[i], 7, "m") for i in range(len(choices))]
    stream = chat_completions.Stream(echoes, include_usage=True, logprobs=logprobs)
    return b"".join(
        stream.encode(choice[turn], index)
        for turn in range(max(map(len, choices)))
        for index, choice in enumerate(choices)
        if turn < len(choice)
    )


def chunks(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


def accumulate(body: bytes) -> sdk.ParsedChatCompletion[object]:
    """What the client's own helper makes of a stream; every chunk is of its type."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks(body):
        parsed_body = sdk.ChatCompletionChunk.model_validate_json(json.dumps(chunk), strict=True)
        state.handle_chunk(parsed_body)
    return state.current_completion_snapshot


def whole(*finals: events.Event) -> sdk.ChatCompletion:
    """The whole answer, of the client's type."""
    responses = [event.response for event in finals if event.response is not None]
    output = msgspec.json.encode(chat_completions.completion(responses))
    return sdk.ChatCompletion.model_validate_json(output, strict=True)


def comparable(completion: sdk.ChatCompletion) -> list[dict[str, Any]]:
    """The choices, without what the helper adds or leaves out."""
    actual = []
    for choice in completion.choices:
        output = choice.model_dump(exclude_none=True)
        message = output["message"]
        message.pop("parsed", None)
        message["content"] = message.get("content") or ""
        for call in message.get("tool_calls", ()):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        actual.append(output)
    return actual


@given(answers, divisions, st.booleans(), st.sampled_from(["stop", "length"]))
def test_the_clients_helper_makes_the_whole_answer_of_the_stream(
    answer: str, sizes: list[int], logprobs: bool, reason: str
) -> None:
    event_list = series(answer, sizes, reason, logprobs=logprobs)
    completion = accumulate(body_of(event_list, logprobs=logprobs))
    assert comparable(completion) == comparable(whole(event_list[-1]))
    assert completion.usage == whole(event_list[-1]).usage


def test_an_answer_with_everything() -> None:
    completion = whole(series(toy_parser.ANSWER, [3] * 99)[-1])
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    message = choice.message
    assert message.content == "Let me < see.So."
    assert message.model_dump()["reasoning_content"] == "I think 天気."
    assert message.tool_calls is not None
    assert [call.model_dump(exclude_none=True) for call in message.tool_calls] == [
        {
            "id": ids.call_id(RIDS[0], number),
            "type": "function",
            "function": {"name": "weather", "arguments": arguments},
        }
        for number, arguments in enumerate(['{"city":"Zürich"}', '{"city":"Łódź"}'])
    ]
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 13


def test_the_deltas_of_calls() -> None:
    """The first one of a call has its id and name; the others have only its index."""
    chunk_list = chunks(body_of(series('<cf|{"a":1}<e<cg|{}<e', [8, 3, 99])))
    choice_list = [chunk["choices"][0] for chunk in chunk_list if chunk["choices"]]
    assert choice_list[0]["delta"] == {"role": "assistant", "content": None, "refusal": None}
    start = {"type": "function"}
    assert [choice["delta"]["tool_calls"] for choice in choice_list[1:-1]] == [
        [
            {
                "index": 0,
                "id": ids.call_id(RIDS[0], 0),
                **start,
                "function": {"name": "f", "arguments": ""},
            }
        ],
        [{"index": 0, "function": {"arguments": '{"a"'}}],
        [{"index": 0, "function": {"arguments": ":1}"}}],
        [
            {
                "index": 1,
                "id": ids.call_id(RIDS[0], 1),
                **start,
                "function": {"name": "g", "arguments": ""},
            }
        ],
        [{"index": 1, "function": {"arguments": "{}"}}],
    ]
    assert choice_list[-1]["finish_reason"] == "tool_calls"


def test_a_call_that_was_cut_short_ends_by_length() -> None:
    event_list = series('<cf|{"a', (), "length")
    assert chunks(body_of(event_list))[-2]["choices"][0]["finish_reason"] == "length"
    choice = whole(event_list[-1]).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content is None


def test_calls_of_custom_tools() -> None:
    """As they are in whole answers; the client's type of chunks knows only functions."""
    event_series = events.Series(events.echo(RIDS[0], 7, "m"))
    mark = records.Mark(0, 0, "x", "sh", ids.call_id(RIDS[0], 0))
    claim = records.Claim(RIDS[0], "o", None, OWNER, "w", "t", 0, "r", "d", 1, {}, "p")
    output = [
        *event_series.apply(fold.Claimed(claim, 1)),
        *event_series.apply(fold.Accepted(0, [1], "ls", (mark,))),
        *event_series.apply(fold.Accepted(1, [2], " -l")),
        *event_series.apply(fold.Ended("stop", "completed", "", records.Usage(1, 2), None, 0)),
    ]
    call = whole(output[-1]).choices[0].message.tool_calls
    assert call is not None
    assert call[0].model_dump(exclude_none=True) == {
        "id": ids.call_id(RIDS[0], 0),
        "type": "custom",
        "custom": {"name": "sh", "input": "ls -l"},
    }
    deltas = [c["choices"][0]["delta"] for c in chunks(body_of(output)) if c["choices"]]
    assert deltas[1]["tool_calls"] == [
        {
            "index": 0,
            "id": ids.call_id(RIDS[0], 0),
            "type": "custom",
            "custom": {"name": "sh", "input": ""},
        }
    ]
    pieces = [delta["tool_calls"][0] for delta in deltas[2:-1]]
    assert pieces == [{"index": 0, "custom": {"input": text}} for text in ("ls", " -l")]


@pytest.mark.parametrize("asked", [True, False])
def test_log_probabilities_are_shown_to_who_asked(asked: bool) -> None:
    chunk_list = chunks(body_of(series("Hi", [1, 1], logprobs=True), logprobs=asked))
    choice_list = [choice["logprobs"] for chunk in chunk_list for choice in chunk["choices"]]
    entries = [
        {
            "content": [
                {"token": text, "logprob": -0.25, "bytes": [ord(text)], "top_logprobs": []}
            ],
            "refusal": None,
        }
        for text in "Hi"
    ]
    assert choice_list == [None, *entries, None] if asked else [None] * 4


def test_choices_share_one_stream() -> None:
    """Each with its index; usage counts the prompt once and all answers."""
    output = [
        series(answer, [2] * 9, rid=rid)
        for answer, rid in zip(["One", '<cf|{"a":1}<e', "<rhm<mThree"], RIDS, strict=False)
    ]
    body = body_of(*output)
    completion, at_once = accumulate(body), whole(*(each[-1] for each in output))
    assert comparable(completion) == comparable(at_once)
    assert [choice.index for choice in at_once.choices] == [0, 1, 2]
    reasons = [choice.finish_reason for choice in at_once.choices]
    assert reasons == ["stop", "tool_calls", "stop"]
    assert completion.id == at_once.id
    assert chat_completions.response_ids(at_once.id, 8) == RIDS[:3]
    assert chat_completions.response_ids(at_once.id, 2) == []
    assert completion.usage == at_once.usage
    assert at_once.usage is not None
    assert at_once.usage.prompt_tokens == 2
    assert at_once.usage.completion_tokens == 3 + 13 + 11
    assert sum("usage" in chunk and bool(chunk["usage"]) for chunk in chunks(body)) == 1


def test_a_choice_that_fails_ends_the_stream() -> None:
    body = body_of(series("Hel", (), "failed"), series("Hello, all", [1] * 9, rid=RIDS[1]))
    chunk_list = chunks(body)
    assert "error" in chunk_list[-1]
    assert all("error" not in chunk for chunk in chunk_list[:-1])


def test_stored_messages_have_images_as_clients_give_them() -> None:
    image = {"type": "image", "sha256": "0", "media": "image/png", "width": 1, "height": 1}
    text = {"type": "text", "text": "What is it?"}
    output = chat_completions.stored_message(
        {"role": "user", "content": [text, {**image, "data": "AA=="}]}
    )
    url = {"url": "data:image/png;base64,AA==", "detail": "auto"}
    assert output == {
        "role": "user",
        "content": None,
        "content_parts": [text, {"type": "image_url", "image_url": url}],
    }
    plain = chat_completions.stored_message({"role": "user", "content": "hi"})
    assert plain == {"role": "user", "content": "hi", "content_parts": None}


@cases.each(
    ("choice", "finish"),
    [
        ({"type": "function", "name": "f"}, "stop"),
        ({"type": "custom", "name": "f"}, "tool_calls"),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, "tool_calls"),
        ("required", "tool_calls"),
        ("auto", "tool_calls"),
    ],
)
def test_the_call_of_a_named_function_finishes_as_openais_does(choice: Any, finish: str) -> None:
    """Its caller knows that a call comes, so it is no reason to stop."""
    whole = series('<cf|{"a":1}<e')
    last = whole[-1]
    assert last.response is not None
    last.response["tool_choice"] = choice
    body = chat_completions.completion([last.response])
    assert body["choices"][0]["finish_reason"] == finish
    chunks = body_of(whole).decode().split("data: ")
    reasons = [json.loads(each)["choices"][0]["finish_reason"] for each in chunks[1:-1]]
    assert reasons[-1] == finish
