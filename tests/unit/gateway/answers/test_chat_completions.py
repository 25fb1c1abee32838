"""A response in the words of Chat Completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.lib.streaming import chat as openai_chat
from openai.types import chat

from gateway.answers import chat_completions, text_completions
from tailrace.protocol import errors, events, fold, ids, records
from tests.support import cases

RID = ids.mint(ids.Address(b"abcd", 0, 0), b"0" * 11)
OWNER = records.Owner("iss", "alice")


def series(
    texts: list[str], reason: str = "stop", error: tuple[str, str] | None = None
) -> list[events.Event]:
    event_series = events.Series(events.echo(RID, 7, "m"))
    out = event_series.open()
    out += event_series.apply(
        fold.Claimed(records.Claim(RID, "o", None, OWNER, "w", "t", 0, "r", "d"), 1)
    )
    for i, text in enumerate(texts):
        out += event_series.apply(fold.Accepted(i, [i], text))
    status = {"cancelled": "cancelled", "failed": "failed", "length": "incomplete"}.get(
        reason, "completed"
    )
    out += event_series.apply(
        fold.Ended(reason, status, "", records.Usage(3, len(texts), 2), error, 9000)
    )
    return out


def chunks(texts: list[str], *, usage: bool = False, **more: Any) -> list[dict[str, Any]]:
    encode = chat_completions.Stream([events.echo(RID, 7, "m")], include_usage=usage)
    body = b"".join(encode.encode(e) for e in series(texts, **more))
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


def test_a_stream_opens_with_the_role_and_ends_with_the_reason() -> None:
    chunk_list = chunks(["Hel", "lo"])
    assert [c["choices"][0]["delta"] for c in chunk_list] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunk_list] == [None, None, None, "stop"]
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in chunk_list} == {
        (f"chatcmpl-{RID[5:]}", "chat.completion.chunk", 7, "m")
    }
    assert all("usage" not in c for c in chunk_list)


def test_usage_comes_last_with_empty_choices_and_null_before() -> None:
    chunk_list = chunks(["x"], usage=True)
    assert [c["usage"] for c in chunk_list[:-1]] == [None] * (len(chunk_list) - 1)
    assert chunk_list[-1]["choices"] == []
    assert chunk_list[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@cases.each(("reason", "finish"), [("stop", "stop"), ("length", "length"), ("cancelled", "length")])
def test_reasons(reason: str, finish: str) -> None:
    assert chunks(["x"], reason=reason)[-1]["choices"][0]["finish_reason"] == finish


def test_a_cancelled_answer_is_no_whole_one_in_either_form() -> None:
    """Symptom: a choice that was cancelled in mid-sentence ended with `stop`, like a whole one."""
    event_list = series(["x"], reason="cancelled")
    final = event_list[-1].response
    assert final is not None
    assert chat_completions.completion([final])["choices"][0]["finish_reason"] == "length"
    whole = text_completions.completion([final], ["p"])
    stream = text_completions.Stream([final], ["p"], include_usage=False)
    output = b"".join(stream.encode_choice((0, event)) for event in event_list)
    assert whole["choices"][0]["finish_reason"] == "length"
    assert b'"finish_reason":"length"' in output
    assert b'"finish_reason":"stop"' not in output


def test_an_answer_without_tokens_is_still_a_message() -> None:
    assert [c["choices"][0]["delta"] for c in chunks([])] == [
        {"role": "assistant", "content": "", "refusal": None},
        {},
    ]


def test_a_failure_in_mid_stream_is_an_error_object() -> None:
    chunk_list = chunks(["x"], reason="failed", error=("server_error", "engine died"))
    assert chunk_list[-1] == {
        "error": {
            "message": "engine died",
            "type": "server_error",
            "param": None,
            "code": "server_error",
        }
    }


def test_one_object() -> None:
    final = series(["a", "b"])[-1].response
    assert final is not None
    body = chat_completions.completion([final])
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "ab", "refusal": None}
    assert body["usage"]["total_tokens"] == 5


def test_a_failed_response_is_an_error() -> None:
    final = series([], reason="failed")[-1].response
    assert final is not None
    with pytest.raises(errors.ApiError) as failed:
        chat_completions.completion([final])
    assert failed.value.status == 500


@cases.each("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_choices_are_begun_in_order_whichever_speaks_first(order: tuple[int, ...]) -> None:
    """Symptom: openai-python's streaming helper raised IndexError when the second of several
    choices was faster than the first."""
    stream = chat_completions.Stream([events.echo(RID, 7, "m")] * 3, include_usage=True)
    event_list = {index: series([f"I am {index}", "."]) for index in order}
    body = b"".join(stream.encode(event, index) for index in order for event in event_list[index])
    state = openai_chat.ChatCompletionStreamState()
    for line in body.decode().strip().split("\n\n"):
        chunk = chat.ChatCompletionChunk.model_validate_json(line.removeprefix("data: "))
        for _ in state.handle_chunk(chunk):
            pass
    output = state.get_final_completion()
    assert [(choice.index, choice.message.content) for choice in output.choices] == [
        (index, f"I am {index}.") for index in range(3)
    ]
    assert output.usage is not None
