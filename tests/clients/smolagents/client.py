"""smolagents: a model with tools, streamed and not, and an agent."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from scenarios import BASE, KEY, LONG_CALL, MODEL, WEATHER, check, kill_worker, main, scenario
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from smolagents.monitoring import LogLevel

PERSON = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        },
    },
}


@tool
def get_weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: its name
    """
    return f"21 degrees in {city}"


def model(**options: Any) -> Any:
    return OpenAIServerModel(MODEL, api_base=BASE, api_key=KEY, **options)


def asked(text: str) -> list[Any]:
    """A message as the agents write it: its content is parts."""
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


@scenario
def plain() -> str:
    said = model().generate(asked("say hello"), stop_sequences=["Observation:"])
    check("scripted engine" in said.content, said.content)
    return str(said.content)


@scenario
def streamed() -> str:
    deltas = list(model().generate_stream(asked("say hello there")))
    text = "".join(delta.content or "" for delta in deltas)
    check("scripted engine" in text, text)
    return text


@scenario
def a_structured_answer() -> str:
    said = model().generate(asked("who?"), response_format=PERSON)
    check(set(json.loads(said.content)) == {"name", "age"}, said.content)
    return str(said.content)


@scenario
def a_tool_calling_agent() -> str:
    agent = ToolCallingAgent([get_weather], model(), max_steps=2, verbosity_level=LogLevel.OFF)
    told = agent.run(WEATHER)
    steps = [step for step in agent.memory.steps if getattr(step, "observations", None)]
    check("21 degrees in Paris" in steps[0].observations, steps)
    check(told, told)
    return str(told)


@scenario
def a_streaming_agent() -> str:
    agent = ToolCallingAgent(
        [get_weather], model(), max_steps=2, verbosity_level=LogLevel.OFF, stream_outputs=True
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it draws there what it streams
        agent.run(WEATHER)
    steps = [step for step in agent.memory.steps if getattr(step, "observations", None)]
    check("21 degrees in Paris" in steps[0].observations, steps)
    return str(steps[0].observations)


@scenario
def a_worker_killed_in_a_tool_call() -> str:
    arguments = ""
    killed = False
    for delta in model().generate_stream(asked(LONG_CALL), tools_to_call_from=[get_weather]):
        for call in delta.tool_calls or []:
            arguments += (call.function and call.function.arguments) or ""
        if len(arguments) > 100 and not killed:
            killed = True
            kill_worker()
    whole = json.loads(arguments)
    said = model().generate(asked(LONG_CALL), tools_to_call_from=[get_weather])
    check(killed, arguments)
    check(json.loads(said.tool_calls[0].function.arguments) == whole, said, whole)
    return f"{len(arguments)} characters"


main()
