"""LlamaIndex: an agent with a tool and structured answers, over Chat Completions and Responses."""

from __future__ import annotations

from typing import Any

import pydantic
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from scenarios import BASE, KEY, MODEL, WEATHER, check, main, scenario


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str
    age: int


ADA = Person(name="Ada", age=36)


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"21 degrees in {city}"


def chat() -> Any:
    return OpenAILike(
        model=MODEL,
        api_base=BASE,
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
        max_retries=0,
    )


def responses() -> Any:
    return OpenAIResponses(
        model=MODEL, api_base=BASE, api_key=KEY, context_window=8192, max_retries=0
    )


async def agent(llm: Any) -> str:
    made = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=llm)
    done = str(await made.run(WEATHER))
    check("21 degrees in Paris" in done, done)
    return done


def structured(llm: Any) -> str:
    asked = f"call Person {ADA.model_dump_json()}\njson {ADA.model_dump_json()}"
    done = llm.as_structured_llm(Person).chat([ChatMessage(role="user", content=asked)])
    check(done.raw.model_dump() == ADA.model_dump(), done)
    return str(done.raw)


@scenario
async def an_agent() -> str:
    return await agent(chat())


@scenario
def a_structured_answer() -> str:
    return structured(chat())


@scenario
async def an_agent_over_responses() -> str:
    return await agent(responses())


@scenario
def a_structured_answer_over_responses() -> str:
    return structured(responses())


main()
