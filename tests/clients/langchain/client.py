"""LangChain: bind_tools, every method of structured output, an agent; both of OpenAI's APIs."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from scenarios import BASE, KEY, MODEL, WEATHER, check, main, scenario


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str
    age: int | None = None


@tool
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"21 degrees in {city}"


ADA = '{"name": "Ada", "age": 36}'


def model(**options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=BASE, api_key=pydantic.SecretStr(KEY), max_retries=0, **options
    )


def bound(**options: Any) -> str:
    tools = model(**options).bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(WEATHER)]
    first = tools.invoke(messages)
    (call,) = first.tool_calls
    check(call["args"] == {"city": "Paris"}, call)
    messages += [first, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    second = tools.invoke(messages)
    check("21 degrees in Paris" in second.text, second)
    return str(second.text)


def streamed(**options: Any) -> str:
    whole: Any = None
    for chunk in model(**options).bind_tools([get_weather]).stream(WEATHER):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    check(call["name"] == "get_weather" and call["args"] == {"city": "Paris"}, whole)
    return json.dumps(call["args"])


def structured(method: str, asked: str, **options: Any) -> str:
    found = model(**options).with_structured_output(Person, method=method).invoke(asked)
    check(found == Person(name="Ada", age=36), found)
    both = (
        model(**options)
        .with_structured_output(Person, method=method, include_raw=True)
        .invoke(asked)
    )
    check(both["parsed"] == found and both["parsing_error"] is None, both)
    return str(found)


@scenario
def bind_tools() -> str:
    return bound()


@scenario
def bind_tools_over_responses() -> str:
    return bound(use_responses_api=True)


@scenario
def streamed_tool_calls() -> str:
    return streamed()


@scenario
def streamed_tool_calls_over_responses() -> str:
    return streamed(use_responses_api=True)


@scenario
def a_choice_of_tools() -> str:
    for choice in ("any", "get_weather", True):
        forced = model().bind_tools([get_weather], tool_choice=choice).invoke("say nothing")
        check(len(forced.tool_calls) == 1, choice, forced)
    strict = model().bind_tools([get_weather], strict=True, parallel_tool_calls=False)
    check(len(strict.invoke(f"{WEATHER}\n{WEATHER}").tool_calls) == 1)
    return "any, by name, True, strict"


@scenario
def structured_by_json_schema() -> str:
    return structured("json_schema", f"json {ADA}")


@scenario
def structured_by_function_calling() -> str:
    return structured("function_calling", f"call Person {ADA}")


@scenario
def structured_by_json_mode() -> str:
    return structured("json_mode", f"json {ADA}")


@scenario
def structured_by_json_schema_over_responses() -> str:
    return structured("json_schema", f"json {ADA}", use_responses_api=True)


@scenario
def structured_by_function_calling_over_responses() -> str:
    return structured("function_calling", f"call Person {ADA}", use_responses_api=True)


@scenario
def structured_by_json_mode_over_responses() -> str:
    return structured("json_mode", f"json {ADA}", use_responses_api=True)


@scenario
def an_agent() -> str:
    agent: Any = create_agent(model(), tools=[get_weather], system_prompt="Be brief.")
    done = agent.invoke({"messages": [{"role": "user", "content": WEATHER}]})
    check("21 degrees in Paris" in done["messages"][-1].text, done)
    return str(done["messages"][-1].text)


@scenario
def an_agent_with_a_response_format() -> str:
    agent: Any = create_agent(model(), tools=[get_weather], response_format=Person)
    asked = f"{WEATHER}\nthen\ncall Person {ADA}\njson {ADA}"
    done = agent.invoke({"messages": [{"role": "user", "content": asked}]})
    check(done["structured_response"] == Person(name="Ada", age=36), done)
    return str(done["structured_response"])


@scenario
def a_conversation_kept_by_the_server() -> str:
    tools = model(use_responses_api=True, use_previous_response_id=True).bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(WEATHER)]
    first = tools.invoke(messages)
    call = first.tool_calls[0]
    messages += [first, ToolMessage("hail", tool_call_id=call["id"])]
    second = tools.invoke(messages)
    check("hail" in second.text, second)
    return str(second.text)


@scenario
def a_conversation_of_the_conversations_api() -> str:
    """By an argument that is handed through: there is none of the client's own."""
    sdk = openai.OpenAI(base_url=BASE, api_key=KEY)
    made = sdk.conversations.create()
    tools = model(use_responses_api=True).bind_tools([get_weather], conversation=made.id)
    first = tools.invoke(WEATHER)
    second = tools.invoke([ToolMessage("hail", tool_call_id=first.tool_calls[0]["id"])])
    check("hail" in second.text, second)
    text = "".join(chunk.text for chunk in tools.stream("say thanks"))
    check(text == "thanks", text)
    kinds = [item.type for item in sdk.conversations.items.list(made.id, order="asc")]
    called = ["message", "function_call", "function_call_output"]
    check(kinds == [*called, "message", "message", "message"], kinds)
    return str(second.text)


main()
