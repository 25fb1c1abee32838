"""AutoGen: its OpenAI client, streamed and not, and an agent with tools and an output type."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pydantic
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from scenarios import BASE, KEY, LONG_CALL, MODEL, WEATHER, check, kill_worker, main, scenario

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=True,
)


class Person(pydantic.BaseModel):
    name: str
    age: int


async def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"21 degrees in {city}"


def client(**options: Any) -> Any:
    return OpenAIChatCompletionClient(
        model=MODEL, base_url=BASE, api_key=KEY, model_info=INFO, max_retries=0, **options
    )


def asked(text: str) -> list[Any]:
    return [UserMessage(content=text, source="user")]


@scenario
async def plain() -> str:
    said = await client().create(asked("say hello"))
    check("scripted engine" in said.content, said)
    return str(said.usage)


@scenario
async def streamed() -> str:
    pieces = [each async for each in client().create_stream(asked("say hello there"))]
    text = "".join(each for each in pieces if isinstance(each, str))
    check("scripted engine" in text, text)
    check(pieces[-1].content == text, pieces[-1])
    return str(pieces[-1].usage)


@scenario
async def log_probabilities() -> str:
    said = await client(logprobs=True, top_logprobs=2).create(asked("say hello"))
    check(said.logprobs, said)
    return str(said.logprobs)


@scenario
async def json_output() -> str:
    said = await client().create(asked("who?"), json_output=True)
    check(isinstance(json.loads(said.content), dict), said)
    return str(said.content)


@scenario
async def an_output_type() -> str:
    said = await client().create(asked("who?"), json_output=Person)
    return str(Person.model_validate_json(said.content))


@scenario
async def an_agent_in_several_rounds() -> str:
    agent = AssistantAgent(
        "assistant", client(), tools=[get_weather], max_tool_iterations=4, reflect_on_tool_use=True
    )
    rome = 'call get_weather {"city": "Rome"}'
    told = await agent.run(task=f"{WEATHER}\nthen\n{rome}\nthen\nsay both are warm")
    outputs = [each for each in told.messages if each.type == "ToolCallExecutionEvent"]
    check(
        [o.content[0].content for o in outputs[:2]]
        == ["21 degrees in Paris", "21 degrees in Rome"],
        told,
    )
    check("both are warm" in told.messages[-1].content, told.messages[-1])
    return str(told.messages[-1].content)


@scenario
async def a_streaming_agent_with_an_output_type() -> str:
    agent = AssistantAgent(
        "assistant",
        client(),
        tools=[get_weather],
        output_content_type=Person,
        model_client_stream=True,
        reflect_on_tool_use=True,
    )
    told = [each async for each in agent.run_stream(task=WEATHER)][-1]
    check(isinstance(told.messages[-1].content, Person), told.messages[-1])
    return str(told.messages[-1].content)


@scenario
async def a_long_call_streamed() -> str:
    tools = [FunctionTool(get_weather, "Tell the weather.")]
    pieces = [each async for each in client().create_stream(asked(LONG_CALL), tools=tools)]
    (call,) = pieces[-1].content
    check(json.loads(call.arguments)["city"], call)
    return f"{len(call.arguments)} characters"


@scenario
async def a_worker_killed_in_a_tool_call() -> str:
    """By time: this client hands a call out only when it is whole. It takes six seconds."""
    tools = [FunctionTool(get_weather, "Tell the weather.")]
    quiet = await client().create(asked(LONG_CALL), tools=tools)
    slowly = {"metadata": {"script_pace_ms": "40"}}
    asyncio.get_running_loop().call_later(1, kill_worker)
    pieces = [
        each
        async for each in client().create_stream(
            asked(LONG_CALL), tools=tools, extra_create_args=slowly
        )
    ]
    (call,), (same,) = pieces[-1].content, quiet.content
    check((call.name, call.arguments) == (same.name, same.arguments), call, same)
    return f"{len(call.arguments)} characters"


main()
