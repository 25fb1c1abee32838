"""Pydantic AI: tools and output types, over Chat Completions and Responses."""

from __future__ import annotations

from typing import Any

import pydantic
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenarios import BASE, KEY, MODEL, WEATHER, check, main, scenario


class Report(pydantic.BaseModel):
    city: str
    degrees: int


PARIS = Report(city="Paris", degrees=21)


def model(kind: Any) -> Any:
    return kind(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))


def agent(kind: Any, **options: Any) -> Any:
    made: Any = Agent(model(kind), **options)

    @made.tool_plain
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"21 degrees in {city}"

    return made


async def everything(kind: Any) -> str:
    told = await agent(kind).run(WEATHER)
    check("21 degrees in Paris" in told.output, told.output)
    again = await agent(kind).run("say thanks", message_history=told.all_messages())
    check(again.output == "thanks", again.output)
    asked = f"{WEATHER}\nthen\ncall final_result {PARIS.model_dump_json()}"
    by_tool = await agent(kind, output_type=ToolOutput(Report)).run(asked)
    check(by_tool.output == PARIS, by_tool.output)
    asked = f"{WEATHER}\nthen\njson {PARIS.model_dump_json()}"
    native = await agent(kind, output_type=NativeOutput(Report)).run(asked)
    check(native.output == PARIS, native.output)
    prompted = await agent(kind, output_type=PromptedOutput(Report)).run(asked)
    check(prompted.output == PARIS, prompted.output)
    async with agent(kind).run_stream(WEATHER) as streamed:
        text = await streamed.get_output()
    check("21 degrees" in text, text)
    return str(native.output)


@scenario
async def over_chat_completions() -> str:
    return await everything(OpenAIChatModel)


@scenario
async def over_responses() -> str:
    return await everything(OpenAIResponsesModel)


main()
