"""`openai-agents` for Python: function tool, handoff, output_type, socket, Chat Completions."""

from __future__ import annotations

import asyncio
from typing import Any

import agents
import openai
import pydantic
from agents import Agent, RunConfig, Runner
from agents.models.openai_provider import OpenAIProvider
from scenarios import (
    BASE,
    KEY,
    LONG_CALL,
    MODEL,
    WEATHER,
    check,
    empty_redis,
    kill_worker,
    main,
    restart_gateway,
    scenario,
)

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


def openai_client() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=BASE, api_key=KEY, timeout=90, max_retries=0)


async def kinds_in(client: openai.AsyncOpenAI, conversation: str) -> list[str]:
    """What a conversation's items are, oldest first."""
    listed = client.conversations.items.list(conversation, order="asc", limit=2)
    return [f"{i.type} {getattr(i, 'role', '')}".strip() async for i in listed]


TOOL_TURN = ["message user", "function_call", "function_call_output", "message assistant"]
SAID_TURN = ["message user", "message assistant"]


async def conversation(**options: Any) -> str:
    """The tool loop within a conversation that the server keeps, and turns behind it."""
    client = openai_client()
    made = await client.conversations.create(items=[])
    first = await Runner.run(helper, WEATHER, conversation_id=made.id, run_config=config(**options))
    check("21 degrees in Paris" in first.final_output, first.final_output)
    await asyncio.to_thread(restart_gateway)
    second = Runner.run_streamed(
        helper, "say thanks", conversation_id=made.id, run_config=config(**options)
    )
    async for _ in second.stream_events():
        pass
    check(second.final_output == "thanks", second.final_output)
    await asyncio.to_thread(empty_redis)
    third = await Runner.run(triage, HANDOFF, conversation_id=made.id, run_config=config(**options))
    check((third.last_agent.name, third.final_output) == ("Spanish", "Hola."), third)
    kinds = await kinds_in(client, made.id)
    check(kinds == [*TOOL_TURN, *SAID_TURN, *TOOL_TURN], kinds)
    await client.conversations.delete(made.id)
    return f"{len(kinds)} items"


@scenario
async def a_conversation() -> str:
    return await conversation()


@scenario
async def a_conversation_over_the_socket() -> str:
    return await conversation(use_responses_websocket=True)


@scenario
async def a_session_in_a_conversation() -> str:
    """What the session writes, it reads back: more than a page, calls and reasoning among it."""
    client = openai_client()
    session = agents.OpenAIConversationsSession(openai_client=client)
    settings = agents.ModelSettings(
        reasoning=openai.types.Reasoning(effort="low", summary="auto"),
        response_include=["reasoning.encrypted_content"],
    )
    thinking = helper.clone(model_settings=settings)
    kept: list[Any] = []
    for turn in range(6):
        words = f"think of it\n{WEATHER}\nthen\nsay turn {turn}"
        result = await Runner.run(thinking, words, session=session, run_config=config())
        check(result.final_output == f"turn {turn}", result.final_output)
        kept += result.to_input_list()[-len(result.new_items) - 1 :]
        if turn == 1:
            await asyncio.to_thread(restart_gateway)
        if turn == 2:
            await asyncio.to_thread(empty_redis)
    found: list[Any] = await session.get_items()
    kinds = [each["type"] for each in found]
    called = ["message", "reasoning", "function_call", "function_call_output"]
    check(kinds == [*called, "reasoning", "message"] * 6, kinds)
    for was, now in zip(kept, found, strict=True):
        lost = {k: v for k, v in was.items() if k not in ("id", "content") and now.get(k) != v}
        check(not lost, lost, now)
    last: list[Any] = await session.get_items(limit=3)
    check(last == found[-3:], last)
    popped: Any = await session.pop_item()
    check(popped == found[-1], popped)
    check(await session.get_items() == found[:-1], "popped")
    many: list[Any] = [{"role": "user", "content": f"number {n}"} for n in range(45)]
    await session.add_items(many)
    added: list[Any] = (await session.get_items())[len(found) - 1 :]
    check([each["content"][0]["text"] for each in added] == [e["content"] for e in many], added)
    await session.clear_session()
    check(await session.get_items() == [], "cleared")
    return f"{len(found)} items, and {len(many)}"


@scenario
async def a_conversation_that_is_locked() -> str:
    """The runner tries again until the turn that runs has ended."""
    client = openai_client()
    made = await client.conversations.create()
    asked: Any = {"model": MODEL, "conversation": made.id}
    slow = {"metadata": {"script_tokens": "40", "script_pace_ms": "40"}}
    running = await client.responses.create(input="first", stream=True, **asked, **slow)
    created = await anext(aiter(running))
    check(created.type == "response.created", created)
    try:
        await client.responses.create(input="second", **asked)
        raise AssertionError("not locked")
    except openai.BadRequestError as error:
        check(error.code == "conversation_locked", error)

    async def rest() -> Any:
        return [event async for event in running][-1]

    last, result = await asyncio.gather(
        rest(), Runner.run(helper, "say thanks", conversation_id=made.id, run_config=config())
    )
    check(last.type == "response.completed", last)
    check(result.final_output == "thanks", result.final_output)
    kinds = await kinds_in(client, made.id)
    check(kinds == [*SAID_TURN, *SAID_TURN], kinds)
    return " ".join(kinds)


async def killed_in_conversation(**options: Any) -> str:
    client = openai_client()
    seen.clear()
    quiet = await Runner.run(helper, LONG_CALL, run_config=config())
    made = await client.conversations.create()
    result = Runner.run_streamed(
        helper, LONG_CALL, conversation_id=made.id, run_config=config(**options)
    )
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
    kinds = await kinds_in(client, made.id)
    check(kinds == TOOL_TURN, kinds)
    return f"{len(text)} characters of arguments"


@scenario
async def a_worker_killed_in_a_turn_of_a_conversation() -> str:
    return await killed_in_conversation()


@scenario
async def a_worker_killed_in_a_turn_of_a_conversation_over_the_socket() -> str:
    return await killed_in_conversation(use_responses_websocket=True)


main()
