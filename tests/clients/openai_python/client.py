"""`openai` for Python: tools, parse, the streaming helpers, Chat Completions, the socket."""

from __future__ import annotations

import json
import threading
from typing import Any, Literal

import openai
import pydantic
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

client = openai.OpenAI(base_url=BASE, api_key=KEY, timeout=90, max_retries=0)


class Weather(pydantic.BaseModel):
    """Tell the weather of a city."""

    city: str


class Address(pydantic.BaseModel):
    street: str
    number: int | None = None


class Person(pydantic.BaseModel):
    name: str
    kind: Literal["friend", "stranger"]
    homes: list[Address]


TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {key: value for key, value in TOOL.items() if key != "type"},
}
LOOSE: Any = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
}
PERSON = '{"name": "Ada", "kind": "friend", "homes": [{"street": "Main", "number": 1}]}'


def calls(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def spelt(tokens: Any) -> str:
    """Text of tokens: a character may be spread over several."""
    return b"".join(bytes(token.bytes or []) for token in tokens).decode()


@scenario
def a_call_its_output_and_an_answer() -> str:
    first = client.responses.create(model=MODEL, input=WEATHER, tools=[TOOL])
    (call,) = calls(first)
    check(call.name == "get_weather" and json.loads(call.arguments) == {"city": "Paris"}, call)
    second = client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        tools=[TOOL],
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}],
    )
    check("21 degrees" in second.output_text, second.output_text)
    return second.output_text


@scenario
def items_sent_back_without_storage() -> str:
    items: list[Any] = [{"role": "user", "content": f"think of it\n{WEATHER}"}]
    asked: dict[str, Any] = {
        "model": MODEL,
        "tools": [TOOL],
        "store": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }
    first = client.responses.create(input=items, **asked)
    kinds = [item.type for item in first.output]
    check(kinds == ["reasoning", "function_call"], kinds)
    items += first.output
    items.append(
        {"type": "function_call_output", "call_id": calls(first)[0].call_id, "output": "rain"}
    )
    second = client.responses.create(input=items, **asked)
    check("rain" in second.output_text, second.output_text)
    return f"{kinds} {second.output_text}"


@scenario
def the_stream_helper_with_a_tool() -> str:
    with client.responses.stream(model=MODEL, input=WEATHER, tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    text = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    (call,) = calls(final)
    check(call.arguments == text and json.loads(text) == {"city": "Paris"}, text, call)
    check([e.sequence_number for e in events] == list(range(len(events))), "numbers")
    return text


@scenario
def parse_an_answer_into_a_model() -> str:
    response = client.responses.parse(model=MODEL, input=f"json {PERSON}", text_format=Person)
    check(response.output_parsed == Person.model_validate_json(PERSON), response.output_text)
    made = client.responses.parse(model=MODEL, input="who?", text_format=Person)
    check(isinstance(made.output_parsed, Person), made.output_text)
    return str(made.output_parsed)


@scenario
def parse_arguments_into_a_model() -> str:
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    response = client.responses.parse(model=MODEL, input=WEATHER, tools=[tool])
    (call,) = calls(response)
    check(call.parsed_arguments == Weather(city="Paris"), call)
    return str(call.parsed_arguments)


@scenario
def stream_an_answer_into_a_model() -> str:
    with client.responses.stream(model=MODEL, input="who?", text_format=Person) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        parsed = stream.get_final_response().output_parsed
    check(parsed == Person.model_validate_json(text), text)
    return text


@scenario
def json_object_and_log_probabilities() -> str:
    response = client.responses.create(
        model=MODEL,
        input="an object",
        text={"format": {"type": "json_object"}},
        top_logprobs=2,
        include=["message.output_text.logprobs"],
    )
    check(isinstance(json.loads(response.output_text), dict), response.output_text)
    part: Any = response.output[-1].content[0]  # type: ignore[union-attr,index]
    check(spelt(part.logprobs) == response.output_text, part.logprobs)
    return response.output_text


@scenario
def two_calls_and_a_forced_one() -> str:
    two = client.responses.create(model=MODEL, input=f"{WEATHER}\n{WEATHER}", tools=[TOOL])
    check(len({call.call_id for call in calls(two)}) == 2, two.output)
    one = client.responses.create(
        model=MODEL, input=f"{WEATHER}\n{WEATHER}", tools=[TOOL], parallel_tool_calls=False
    )
    check(len(calls(one)) == 1, one.output)
    forced = client.responses.create(
        model=MODEL,
        input="say nothing",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "get_weather"},
    )
    check(len(calls(forced)) == 1, forced.output)
    none = client.responses.create(model=MODEL, input=WEATHER, tools=[TOOL], tool_choice="none")
    check(not calls(none), none.output)
    return calls(forced)[0].arguments


@scenario
def a_custom_tool() -> str:
    response = client.responses.create(
        model=MODEL, input="call run ls -l", tools=[{"type": "custom", "name": "run"}]
    )
    (call,) = [item for item in response.output if item.type == "custom_tool_call"]
    check(call.input == "ls -l", call)
    return call.input


@scenario
def chat_with_a_tool() -> str:
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
    choice = first.choices[0]
    check(choice.finish_reason == "tool_calls", choice)
    (call,) = choice.message.tool_calls or []
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "snow"}]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
    check("snow" in (second.choices[0].message.content or ""), second)
    return str(second.choices[0].message.content)


@scenario
def chat_streamed_tool_calls() -> str:
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": f"{WEATHER}\n{WEATHER}"}],
        tools=[CHAT_TOOL],
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    found = final.choices[0].message.tool_calls or []
    check([json.loads(c.function.arguments) for c in found] == [{"city": "Paris"}] * 2, found)
    done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    check([e.index for e in done] == [0, 1], done)
    return str(len(events))


@scenario
def chat_parse() -> str:
    completion = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "who?"}], response_format=Person
    )
    check(isinstance(completion.choices[0].message.parsed, Person), completion)
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "who?"}], response_format=Person
    ) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    check(streamed == completion.choices[0].message.parsed, streamed)
    return str(streamed)


@scenario
def chat_choices_and_log_probabilities() -> str:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "say five"}],
        n=2,
        logprobs=True,
        top_logprobs=2,
        seed=7,
    )
    check([c.index for c in completion.choices] == [0, 1], completion)
    for choice in completion.choices:
        assert choice.logprobs
        seen = spelt(choice.logprobs.content or [])
        check(seen == choice.message.content, seen)
    return str(completion.usage)


@scenario
def text_completions() -> str:
    done = client.completions.create(model=MODEL, prompt="say hello", max_tokens=50)
    check(done.choices[0].text, done)
    return done.choices[0].text


@scenario
def a_socket_with_tools() -> str:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input=WEATHER, tools=[TOOL], stream_id="main")
        done = finished(connection)
        (call,) = calls(done)
        connection.response.create(
            model=MODEL,
            stream_id="main",
            tools=[TOOL],
            previous_response_id=done.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "fog"}],
        )
        text = str(finished(connection).output_text)
    check("fog" in text, text)
    return text


def finished(connection: Any) -> Any:
    for event in connection:
        check(event.type != "error", event)
        if event.type in ("response.completed", "response.failed", "response.incomplete"):
            check(event.type == "response.completed", event)
            return event.response
    raise AssertionError("the socket ended")


@scenario
def a_worker_killed_in_a_tool_call() -> str:
    """Nothing is seen of it: the same items as with a worker that lives."""
    quiet = client.responses.create(model=MODEL, input=LONG_CALL, tools=[TOOL])
    stream = client.responses.create(model=MODEL, input=LONG_CALL, tools=[TOOL], stream=True)
    text, numbers, final = "", [], None
    for event in stream:
        check(event.type not in ("error", "response.failed"), event)
        numbers.append(event.sequence_number)
        if event.type == "response.function_call_arguments.delta":
            before = len(text)
            text += event.delta
            if before <= 60 < len(text):
                kill_worker()
        if event.type == "response.completed":
            final = event.response
    check(numbers == list(range(len(numbers))), numbers)
    assert final is not None
    check([c.arguments for c in calls(final)] == [text], text, final)
    check(text == calls(quiet)[0].arguments, text, calls(quiet))
    check(client.responses.retrieve(final.id).output == final.output, "retrieved")
    return f"{len(text)} characters of arguments"


@scenario
def a_worker_killed_in_a_chat_tool_call() -> str:
    asked: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": LONG_CALL}],
        "tools": [CHAT_TOOL],
    }
    quiet = client.chat.completions.create(**asked)
    text, ids = "", []
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                ids += [call.id] if call.id else []
                before = len(text)
                text += (call.function.arguments if call.function else None) or ""
                if before <= 60 < len(text):
                    kill_worker()
    check(len(ids) == 1, ids)
    check(text == quiet.choices[0].message.tool_calls[0].function.arguments, text)  # type: ignore[index,union-attr]
    return f"{len(text)} characters of arguments"


@scenario
def a_worker_killed_in_a_json_object() -> str:
    words = "json 150"
    quiet = client.responses.parse(model=MODEL, input=words, text_format=Person)
    with client.responses.stream(model=MODEL, input=words, text_format=Person) as stream:
        text = ""
        for event in stream:
            if event.type == "response.output_text.delta":
                before = len(text)
                text += event.delta
                if before <= 60 < len(text):
                    kill_worker()
        parsed = stream.get_final_response().output_parsed
    check(parsed == quiet.output_parsed, text)
    return f"{len(text)} characters"


@scenario
def embeddings_of_texts_and_tokens() -> str:
    inputs = [f"text {i}" for i in range(70)]
    found = client.embeddings.create(model=MODEL, input=inputs)
    floats = client.embeddings.create(model=MODEL, input=inputs, encoding_format="float")
    check([each.index for each in found.data] == list(range(70)), found.data[-1].index)
    check([e.embedding for e in found.data] == [e.embedding for e in floats.data], "base64, float")
    check(len({tuple(each.embedding) for each in found.data}) == 70, "they differ")
    check(found.usage.prompt_tokens == found.usage.total_tokens > 0, found.usage)
    tokens = client.embeddings.create(model=MODEL, input=[[1, 2], [3]], dimensions=8)
    check([len(each.embedding) for each in tokens.data] == [8, 8], tokens)
    return f"{len(found.data)} vectors of {len(found.data[0].embedding)} dimensions"


@scenario
def upload_a_file_and_ask_about_it() -> str:
    text = b"The river is long.\n"
    made = client.files.create(file=("river.txt", text), purpose="user_data")
    client.files.wait_for_processing(made.id)
    check(made.id in [each.id for each in client.files.list()], "listed")
    check(client.files.content(made.id).content == text, "content")
    parts: Any = [
        {"type": "input_text", "text": "How long?"},
        {"type": "input_file", "file_id": made.id},
    ]
    asked: Any = [{"role": "user", "content": parts}]
    answer = client.responses.create(model=MODEL, input=asked)
    shown: Any = client.responses.input_items.list(answer.id).data[0]
    told = "File river.txt:\nThe river is long."
    check(told in shown.content[0].text, shown)
    check(client.files.delete(made.id).deleted, "deleted")
    try:
        client.responses.create(model=MODEL, input=asked)
    except openai.BadRequestError as error:
        return str(error.param)
    raise AssertionError("a deleted file was shown")


@scenario
def a_worker_killed_in_embeddings() -> str:
    inputs = [f"text {i}" for i in range(64)]
    quiet = client.embeddings.create(model=MODEL, input=inputs)
    killing = threading.Timer(1.0, kill_worker)
    killing.start()
    slowly = {"metadata": {"script_pace_ms": "100"}}  # three seconds each part
    found = client.embeddings.create(model=MODEL, input=inputs, extra_body=slowly)
    killing.join()
    check([e.embedding for e in found.data] == [e.embedding for e in quiet.data], "other vectors")
    return f"{len(found.data)} vectors"


def said_in(conversation: str) -> list[str]:
    """The texts of a conversation's items, oldest first."""
    listed: Any = client.conversations.items.list(conversation, order="asc")
    return [part.text for item in listed if item.type == "message" for part in item.content]


@scenario
def a_conversation_in_several_turns() -> str:
    """Over HTTP, as a stream and over the socket, with a tool; a gateway is restarted and Redis
    emptied in between."""
    made = client.conversations.create(
        metadata={"topic": "rain"},
        items=[{"type": "message", "role": "developer", "content": "Be brief."}],
    )
    asked: dict[str, Any] = {"model": MODEL, "conversation": made.id, "tools": [TOOL]}
    first = client.responses.create(input=WEATHER, **asked)
    check(first.conversation and first.conversation.id == made.id, first.conversation)
    (call,) = calls(first)
    restart_gateway()
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    with client.responses.stream(input=[output], **asked) as stream:
        second = stream.get_final_response()
    check("21 degrees" in second.output_text, second.output_text)
    empty_redis()
    with client.responses.connect() as connection:
        connection.response.create(input="say thanks", **asked)
        third = finished(connection)
    check(third.output_text == "thanks", third.output_text)
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    kinds = [item.type for item in items]
    wanted = ["message", "message", "function_call", "function_call_output"]
    check(kinds == [*wanted, "message", "message", "message"], kinds)
    check([getattr(i, "role", "") for i in items][:2] == ["developer", "user"], items[:2])
    newest = list(client.conversations.items.list(made.id, limit=3))
    check([i.id for i in newest] == [i.id for i in items][::-1], newest)
    for item in items:
        one = client.conversations.items.retrieve(str(item.id), conversation_id=made.id)
        check(one == item, one, item)
    gone = client.conversations.delete(made.id)
    check(gone.deleted and gone.object == "conversation.deleted", gone)
    try:
        client.responses.create(input="say more", **asked)
    except openai.NotFoundError as error:
        return f"{len(items)} items; then {error.code}"
    raise AssertionError("a deleted conversation went on")


@scenario
def items_of_a_conversation_added_and_deleted() -> str:
    """What an agent keeps in a conversation comes back as it was, and is a next turn's input."""
    asked: Any = {
        "model": MODEL,
        "tools": [TOOL],
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }
    answer = client.responses.create(input=f"think of it\n{WEATHER}", **asked)
    given: list[Any] = [each.model_dump(exclude_unset=True) for each in answer.output]
    output = {"type": "function_call_output", "call_id": calls(answer)[0].call_id, "output": "fog"}
    given = [{"role": "user", "content": "the weather?"}, *given, output]
    said = [{"type": "output_text", "text": "Fog.", "annotations": [], "logprobs": []}]
    given.append({"type": "message", "role": "assistant", "status": "completed", "content": said})
    made = client.conversations.create(items=[])
    added = client.conversations.items.create(made.id, items=given).data
    back = list(client.conversations.items.list(made.id, order="asc", limit=1))
    check(back == added, back, added)
    for was, now in zip(given, (each.model_dump(exclude_unset=True) for each in back), strict=True):
        lost = {k: v for k, v in was.items() if k not in ("id", "content") and now.get(k) != v}
        check(not lost, lost, now)
        one: Any = client.conversations.items.retrieve(now["id"], conversation_id=made.id)
        check(one.model_dump(exclude_unset=True) == now, one, now)
    check(back[-1].content[0].text == "Fog.", back[-1])  # type: ignore[union-attr,index]
    sent_back: Any = [*(each.model_dump(exclude_unset=True) for each in back)]
    sent_back.append({"role": "user", "content": "say thanks"})
    check(client.responses.create(input=sent_back, **asked).output_text == "thanks", "sent back")
    went_on = client.responses.create(conversation=made.id, input="say and on", **asked)
    check(went_on.output_text == "and on", went_on.output)
    for each in back:
        client.conversations.items.delete(str(each.id), conversation_id=made.id)
    check(said_in(made.id) == ["say and on", "and on"], said_in(made.id))
    return f"{len(back)} items"


@scenario
def a_conversation_that_is_locked() -> str:
    """A turn while another one runs is refused; the one that runs is not disturbed."""
    made = client.conversations.create()
    asked: Any = {"model": MODEL, "conversation": {"id": made.id}, "tools": [TOOL]}
    stream = client.responses.create(input=LONG_CALL, stream=True, **asked)
    refused: list[openai.BadRequestError] = []
    for event in stream:
        if event.type == "response.created":
            try:
                client.responses.create(input="say now", **asked)
            except openai.BadRequestError as error:
                refused.append(error)
    check(event.type == "response.completed", event)
    (error,) = refused
    check((error.code, error.param) == ("conversation_locked", "conversation"), error)
    return str(error)


@scenario
def a_worker_killed_in_a_turn_of_a_conversation() -> str:
    quiet = client.responses.create(model=MODEL, input=LONG_CALL, tools=[TOOL])
    made = client.conversations.create()
    asked: Any = {"model": MODEL, "conversation": made.id, "tools": [TOOL]}
    text = ""
    for event in client.responses.create(input=LONG_CALL, stream=True, **asked):
        if event.type == "response.function_call_arguments.delta":
            before = len(text)
            text += event.delta
            if before <= 60 < len(text):
                kill_worker()
    check(event.type == "response.completed", event)
    check(text == calls(quiet)[0].arguments, text)
    call: Any = client.conversations.items.list(made.id).data[0]
    check(call.type == "function_call" and call.arguments == text, call)
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "hail"}
    said = client.responses.create(input=[output], **asked).output_text
    check("hail" in said, said)
    return f"{len(text)} characters of arguments"


main()
