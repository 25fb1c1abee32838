"""`openai-agents` for Python: function tool, handoff, output_type, socket, Chat Completions."""

from __future__ import annotations

from typing import Any

import agents
import openai
import pydantic
from agents import Agent, RunConfig, Runner
from agents.models.openai_provider import OpenAIProvider
from scenarios import BASE, KEY, LONG_CALL, MODEL, WEATHER, check, kill_worker, main, scenario

agents.set_tracing_disabled(True)


def config(**options: Any) -> RunConfig:
    """A client of its own for each scenario: each has an event loop of its own."""
    client = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, timeout=90, max_retries=0)
    return RunConfig(model_provider=OpenAIProvider(openai_client=client, **options))


class Report(pydantic.BaseModel):
    city: str
    degrees: int


seen: list[str] = []


@agents.function_tool
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    seen.append(city)
    return f"21 degrees in {city[:20]}"


helper = Agent(name="helper", model=MODEL, instructions="Help.", tools=[get_weather])
# With a tool: without one the scripted engine takes no commands.
spanish = Agent(name="Spanish", model=MODEL, instructions="Spanish.", tools=[get_weather])
triage = Agent(name="triage", model=MODEL, instructions="Hand over.", handoffs=[spanish])
reporter = Agent(
    name="reporter", model=MODEL, instructions="Report.", tools=[get_weather], output_type=Report
)
REPORT = f'{WEATHER}\nthen\njson {{"city": "Paris", "degrees": 21}}'
HANDOFF = "call transfer_to_spanish {}\nthen\nsay Hola."


async def function_tool(**options: Any) -> str:
    result = await Runner.run(helper, WEATHER, run_config=config(**options))
    check("21 degrees in Paris" in result.final_output, result.final_output)
    again = [*result.to_input_list(), {"role": "user", "content": "say thanks"}]
    second = await Runner.run(helper, again, run_config=config(**options))  # type: ignore[arg-type]
    check(second.final_output == "thanks", second.final_output)
    return str(result.final_output)


async def handoff(**options: Any) -> str:
    result = await Runner.run(triage, HANDOFF, run_config=config(**options))
    check(result.last_agent.name == "Spanish", result.last_agent)
    check(result.final_output == "Hola.", result.final_output)
    return str(result.final_output)


async def output_type(**options: Any) -> str:
    result = await Runner.run(reporter, REPORT, run_config=config(**options))
    check(result.final_output == Report(city="Paris", degrees=21), result.final_output)
    return str(result.final_output)


@scenario
async def a_function_tool() -> str:
    return await function_tool()


@scenario
async def a_handoff() -> str:
    return await handoff()


@scenario
async def an_output_type() -> str:
    return await output_type()


@scenario
async def streamed_with_a_reasoning_model() -> str:
    settings = agents.ModelSettings(
        reasoning=openai.types.Reasoning(effort="low", summary="auto"),
        store=False,
        response_include=["reasoning.encrypted_content"],
    )
    agent = helper.clone(model_settings=settings)
    result = Runner.run_streamed(agent, f"think of it\n{WEATHER}", run_config=config())
    kinds = [e.name async for e in result.stream_events() if e.type == "run_item_stream_event"]
    check("21 degrees" in result.final_output, result.final_output)
    check("reasoning_item_created" in kinds, kinds)
    return " ".join(kinds)


@scenario
async def a_tool_over_the_socket() -> str:
    return await function_tool(use_responses_websocket=True)


@scenario
async def a_handoff_over_the_socket() -> str:
    return await handoff(use_responses_websocket=True)


@scenario
async def an_output_type_over_the_socket() -> str:
    return await output_type(use_responses_websocket=True)


@scenario
async def a_tool_over_chat_completions() -> str:
    return await function_tool(use_responses=False)


@scenario
async def a_handoff_over_chat_completions() -> str:
    return await handoff(use_responses=False)


@scenario
async def an_output_type_over_chat_completions() -> str:
    return await output_type(use_responses=False)


@scenario
async def a_session_with_stored_responses() -> str:
    first = await Runner.run(helper, WEATHER, run_config=config())
    second = await Runner.run(
        helper, "say thanks", run_config=config(), previous_response_id=first.last_response_id
    )
    check(second.final_output == "thanks", second.final_output)
    return str(second.final_output)


async def killed(**options: Any) -> str:
    seen.clear()
    quiet = await Runner.run(helper, LONG_CALL, run_config=config(**options))
    result = Runner.run_streamed(helper, LONG_CALL, run_config=config(**options))
    text, done = "", False
    async for event in result.stream_events():
        if event.type == "raw_response_event" and (
            event.data.type == "response.function_call_arguments.delta"
        ):
            text += event.data.delta
            if len(text) > 60 and not done:
                kill_worker()
                done = True
    check(done, text)
    check(seen[0] == seen[1] and len(seen) == 2, seen)
    check(result.final_output == quiet.final_output, result.final_output)
    return f"{len(text)} characters of arguments"


@scenario
async def a_worker_killed_in_a_tool_call() -> str:
    return await killed()


@scenario
async def a_worker_killed_in_a_tool_call_over_the_socket() -> str:
    return await killed(use_responses_websocket=True)


main()
