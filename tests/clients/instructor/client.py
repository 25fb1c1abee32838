"""Instructor: every mode that OpenAI's API has, and streams of partial objects."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import pydantic
from scenarios import BASE, KEY, MODEL, check, main, scenario


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str
    age: int


ADA = Person(name="Ada", age=36)
TEXT = ADA.model_dump_json()


def ask(mode: instructor.Mode, asked: str) -> str:
    raw = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    client: Any = instructor.from_openai(raw, mode=mode)
    messages = [{"role": "user", "content": asked}]
    found = client.create(model=MODEL, messages=messages, response_model=Person, max_retries=0)
    check(found.model_dump() == ADA.model_dump(), found)
    return str(found)


@scenario
def tools() -> str:
    return ask(instructor.Mode.TOOLS, f"call Person {TEXT}")


@scenario
def tools_strict() -> str:
    return ask(instructor.Mode.TOOLS_STRICT, f"call Person {TEXT}")


@scenario
def json_mode() -> str:
    return ask(instructor.Mode.JSON, f"json {TEXT}")


@scenario
def json_schema() -> str:
    return ask(instructor.Mode.JSON_SCHEMA, f"json {TEXT}")


@scenario
def responses_tools() -> str:
    return ask(instructor.Mode.RESPONSES_TOOLS, f"call Person {TEXT}")


@scenario
def partial_objects() -> str:
    # Instructor names the tool of a partial object so.
    raw = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    client: Any = instructor.from_openai(raw)
    last = None
    for found in client.create_partial(
        model=MODEL,
        messages=[{"role": "user", "content": f"call PartialPerson {TEXT}"}],
        response_model=Person,
        max_retries=0,
    ):
        last = found
    check(last is not None and last.model_dump() == ADA.model_dump(), last)
    return str(last)


main()
