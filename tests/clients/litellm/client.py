"""LiteLLM: completion and responses with tools and formats."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pydantic
from scenarios import BASE, KEY, MODEL, WEATHER, check, main, scenario

litellm.suppress_debug_info = True
litellm.telemetry = False

ASKED: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY}
FUNCTION: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": FUNCTION}]


class Person(pydantic.BaseModel):
    name: str
    age: int


@scenario
def a_tool() -> str:
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    first: Any = litellm.completion(messages=messages, tools=TOOLS, **ASKED)
    message = first.choices[0].message
    (call,) = message.tool_calls
    check(json.loads(call.function.arguments) == {"city": "Paris"}, call)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "wind"}]
    second: Any = litellm.completion(messages=messages, tools=TOOLS, **ASKED)
    check("wind" in second.choices[0].message.content, second)
    return str(second.choices[0].message.content)


@scenario
def a_streamed_tool() -> str:
    chunks = list(
        litellm.completion(
            messages=[{"role": "user", "content": WEATHER}], tools=TOOLS, stream=True, **ASKED
        )
    )
    whole: Any = litellm.stream_chunk_builder(chunks)
    (call,) = whole.choices[0].message.tool_calls
    check(json.loads(call.function.arguments) == {"city": "Paris"}, call)
    return str(call.function.arguments)


@scenario
def a_response_format() -> str:
    done: Any = litellm.completion(
        messages=[{"role": "user", "content": "who?"}], response_format=Person, **ASKED
    )
    Person.model_validate_json(done.choices[0].message.content)
    return str(done.choices[0].message.content)


@scenario
def responses_with_a_tool() -> str:
    done: Any = litellm.responses(input=WEATHER, tools=[{"type": "function", **FUNCTION}], **ASKED)
    (call,) = [item for item in done.output if item.type == "function_call"]
    check(json.loads(call.arguments) == {"city": "Paris"}, call)
    return str(call.arguments)


main()
