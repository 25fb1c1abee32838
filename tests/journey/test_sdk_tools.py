"""The official `openai` Python SDK, unmodified: tools, parsed formats and streaming helpers, on the
scripted engine; and a worker that is killed in the middle of the arguments of a call."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tailrace.protocol import records
from tests.journey.conftest import MODEL, Stack
from tests.journey.test_takeover import Watcher, kill_owner
from tests.support import read_log
from worker.engines import scripted, scripted_markers

PACE = {"script_pace_ms": "2"}


class Weather(pydantic.BaseModel):
    """The weather of the next days in a city."""

    city: str
    days: int


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "parameters": PARAMETERS, "strict": True}
TOOL: Any = {"type": "function", **FUNCTION}
SHELL: Any = {"type": "custom", "name": "shell"}
CALL = 'call weather {"city":"Zürich","days":3}'


@pytest.fixture
def client(scripted_stack: Stack) -> Iterator[openai.OpenAI]:
    stack = scripted_stack
    with openai.OpenAI(
        base_url=stack.api, api_key=stack.credential, timeout=60.0, max_retries=0
    ) as made:
        yield made


# ---- Responses


def test_a_loop_of_calls_and_outputs_ends_with_an_answer(client: Any) -> None:
    asked = client.responses.create(
        model=MODEL, input=f"{CALL}\ncall shell ls -l", tools=[TOOL, SHELL], metadata=PACE
    )
    weather, shell = asked.output
    assert weather.type == "function_call"
    assert json.loads(weather.arguments) == {"city": "Zürich", "days": 3}
    assert shell.type == "custom_tool_call"
    assert shell.input == "ls -l"
    assert weather.call_id != shell.call_id
    answered = client.responses.create(
        model=MODEL,
        previous_response_id=asked.id,
        input=[
            {"type": "function_call_output", "call_id": weather.call_id, "output": "sunny"},
            {"type": "custom_tool_call_output", "call_id": shell.call_id, "output": "no files"},
        ],
        tools=[TOOL, SHELL],
        metadata=PACE,
    )
    assert answered.output_text == "The tools said: “sunny” and “no files”."


def test_the_whole_conversation_sent_back_is_the_same_loop(client: Any) -> None:
    """As clients with `store: false` do it."""
    turn: list[Any] = [{"role": "user", "content": CALL}]
    asked = client.responses.create(
        model=MODEL, input=turn, tools=[TOOL], store=False, metadata=PACE
    )
    turn += [item.model_dump(exclude_none=True) for item in asked.output]
    call_id = asked.output[0].call_id
    turn.append({"type": "function_call_output", "call_id": call_id, "output": "rain"})
    answered = client.responses.create(
        model=MODEL, input=turn, tools=[TOOL], store=False, metadata=PACE
    )
    assert answered.output_text == "The tools said: “rain”."


def test_the_stream_helper_parses_arguments(client: Any) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")["function"]
    with client.responses.stream(
        model=MODEL,
        input=f"think 10\n{CALL}",
        tools=[{"type": "function", **tool}],
        reasoning={"effort": "low"},
        metadata={"script_pace_ms": "50"},  # a busy machine joins what comes faster
    ) as stream:
        seen = list(stream)
        final = stream.get_final_response()
    reasoning, call = final.output
    assert reasoning.type == "reasoning"
    assert call.type == "function_call"
    deltas = [e.delta for e in seen if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == call.arguments
    assert json.loads(call.arguments) == {"city": "Zürich", "days": 3}
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens >= 10


def test_parse_gives_an_object_of_the_schema(client: Any) -> None:
    parsed = client.responses.parse(
        model=MODEL, input="json 40", text_format=Weather, metadata=PACE
    ).output_parsed
    assert isinstance(parsed, Weather)
    assert len(parsed.city) > 40


@pytest.mark.parametrize("choice", ["none", "required", {"type": "function", "name": "weather"}])
def test_tool_choice_is_obeyed(client: Any, choice: Any) -> None:
    asked = client.responses.create(
        model=MODEL, input="say Hello", tools=[TOOL], tool_choice=choice, metadata=PACE
    )
    kinds = [item.type for item in asked.output]
    assert kinds == (["message"] if choice == "none" else ["function_call"])


def test_log_probabilities_are_those_of_the_tokens_of_the_text(client: Any) -> None:
    asked = client.responses.create(
        model=MODEL,
        input="say Grüße 天気",
        tools=[TOOL],
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        metadata=PACE,
    )
    content = asked.output[0].content[0]
    assert content.type == "output_text"
    shown = content.logprobs
    assert shown is not None
    assert bytes(b for each in shown for b in each.bytes).decode() == content.text
    assert {len(each.top_logprobs) for each in shown} == {2}


# ---- Chat Completions


def test_chat_parse(client: Any) -> None:
    done = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "json 40"}], response_format=Weather
    )
    assert isinstance(done.choices[0].message.parsed, Weather)


# ---- takeover


def expected(question: str) -> str:
    """The arguments that no fault would have changed."""
    asked = records.Request(
        rid="",
        owner=records.Owner("", ""),
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        sampling=records.Sampling(max_tokens=10_000),
        echo={},
        tools=[{"type": "function", "function": FUNCTION}],
    )
    parser = scripted_markers.Parser(scripted.Detokenizer())
    pieces = [piece for each in scripted.answer(asked) for piece in parser.push(each)]
    return "".join(piece.text for piece in pieces if piece.kind == "c")


def test_a_worker_dies_in_the_middle_of_the_arguments(client: Any, scripted_stack: Stack) -> None:
    """The reader's stream goes on over the death; who reads again gets the same bytes."""
    workers = {p["name"]: p["pid"] for p in scripted_stack.processes("worker")}
    question = "call weather 800"
    stream = client.responses.create(
        model=MODEL,
        input=question,
        tools=[TOOL],
        stream=True,
        max_output_tokens=5_000,
        metadata={"script_pace_ms": "10"},
    )
    seen: list[Any] = []
    enough = threading.Event()

    def read() -> None:
        deltas = 0
        for event in stream:
            seen.append(event)
            deltas += event.type == "response.function_call_arguments.delta"
            if deltas >= 20:
                enough.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert enough.wait(60), "the arguments stream"
    rid = seen[0].response.id
    before = len(seen)
    kill_owner(scripted_stack, rid, workers)
    reader.join(120)
    assert not reader.is_alive()
    assert len(seen) > before + 20, "it went on after the death"
    (call,) = seen[-1].response.output
    deltas = [e.delta for e in seen if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments == expected(question)
    assert json.loads(call.arguments)["days"] == 7
    claims = read_log.claims(scripted_stack, rid)
    # On a busy machine the second worker may lose its session as well, and rejoin under a new name.
    assert len({c.worker for c in claims}) > 1, "another worker took over"
    again = [
        Watcher(base, scripted_stack.headers, rid)
        for base in (scripted_stack.url, scripted_stack.push_url)
    ]
    for watcher in again:
        watcher.start()
    for watcher in again:
        watcher.join(60)
        assert watcher.error is None, watcher.error
    assert again[0].events == again[1].events
    shown = [event.to_dict(mode="json", exclude_unset=True) for event in seen]
    assert shown == again[0].events, "the stream over the death, and who reads again"
