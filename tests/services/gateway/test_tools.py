"""Tools and formats on real parts: conversations with calls and their outputs over HTTP, SSE and
WebSocket, streams that are resumed inside arguments, and parts that are lost meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import redis.asyncio as redis
from websockets.asyncio.client import connect
from websockets.frames import Frame, Opcode

from tests.services.gateway.conftest import Socket, events_of, opened
from tests.support import gateway_process as gp

PACE = {"script_pace_ms": "2"}
SLOW = {"script_pace_ms": "25"}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of the next days in a city.",
    "parameters": PARAMETERS,
    "strict": True,
}
SHELL: dict[str, Any] = {"type": "custom", "name": "shell"}
TWO_CALLS = 'call weather {"city":"Rome","days":1}\ncall weather {"city":"Zürich","days":2}'
ARGUMENTS = "response.function_call_arguments.delta"


@dataclass
class Answer:
    """What became of a create. `events`: none over plain HTTP; `headers`: none over WebSocket."""

    response: dict[str, Any] | None
    error: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> dict[str, Any]:
        assert self.response is not None, self.error
        return self.response

    @property
    def refused(self) -> tuple[str, str]:
        """Param and message of a 400."""
        assert self.error is not None, self.response
        return self.error["param"], self.error["message"]


USUAL: dict[str, Any] = {"metadata": PACE, "tools": [WEATHER, SHELL]}

Ask = Callable[..., Awaitable[Answer]]


def dense(events: list[dict[str, Any]], after: int = -1) -> bool:
    return [e["sequence_number"] for e in events] == list(range(after + 1, after + 1 + len(events)))


async def over_http(client: httpx.AsyncClient, **body: Any) -> Answer:
    got = await client.post("/v1/responses", json={**USUAL, **body})
    if got.status_code != 200:
        assert got.status_code == 400, got.text
        return Answer(None, got.json()["error"])
    return Answer(got.json(), headers=dict(got.headers))


async def over_sse(client: httpx.AsyncClient, **body: Any) -> Answer:
    got = await client.post("/v1/responses", json={**USUAL, "stream": True, **body})
    if got.status_code != 200:
        assert got.status_code == 400, got.text
        return Answer(None, got.json()["error"])
    events = events_of(got.text)
    assert dense(events)
    return Answer(events[-1]["response"], events=events, headers=dict(got.headers))


async def over_socket(socket: Socket, **body: Any) -> Answer:
    await socket.send("response.create", **{**USUAL, **body})
    first = await socket.event()
    if first["type"] == "error":
        assert first["status"] == 400, first
        return Answer(None, first["error"])
    events = [first, *await socket.end()]
    assert dense(events)
    return Answer(events[-1]["response"], events=events)


@pytest.fixture(params=["http", "sse", "socket"])
async def ask(
    request: pytest.FixtureRequest, client: httpx.AsyncClient, gateway: gp.Gateway
) -> AsyncIterator[Ask]:
    """Creates a response, on each transport."""
    if request.param == "socket":
        async with opened(gateway) as socket:

            async def create(**body: Any) -> Answer:
                return await over_socket(socket, **body)

            yield create
        return
    way = over_http if request.param == "http" else over_sse

    async def post(**body: Any) -> Answer:
        return await way(client, **body)

    yield post


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"].endswith("_call")]


def output(call: dict[str, Any] | str, said: str) -> dict[str, Any]:
    if isinstance(call, str):
        return {"type": "function_call_output", "call_id": call, "output": said}
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": said}


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


async def forgotten(redis_url: str) -> None:
    async with redis.from_url(redis_url) as store:
        await store.flushdb()


class TestConversation:
    async def test_outputs_of_parallel_calls_continue_in_any_order(self, ask: Ask) -> None:
        asked = await ask(input=f"{TWO_CALLS}\ncall shell ls -l")
        rome, zurich, shell = calls_of(asked.whole)
        assert [json.loads(c["arguments"])["city"] for c in (rome, zurich)] == ["Rome", "Zürich"]
        assert (shell["type"], shell["input"]) == ("custom_tool_call", "ls -l")
        assert len({c["call_id"] for c in (rome, zurich, shell)}) == 3
        told = await ask(
            previous_response_id=asked.whole["id"],
            input=[output(shell, "no files"), output(zurich, "rain"), output(rome, "sun")],
        )
        assert text_of(told.whole) == "The tools said: “no files” and “rain” and “sun”."
        after = await ask(previous_response_id=told.whole["id"], input="say well then")
        assert text_of(after.whole) == "well then"

    async def test_an_unknown_call_is_named(self, ask: Ask) -> None:
        asked = (await ask(input=TWO_CALLS)).whole
        rome, zurich = calls_of(asked)
        wrong = await ask(
            previous_response_id=asked["id"],
            input=[output(rome, "sun"), output("call_other", "x"), output(zurich, "rain")],
        )
        assert wrong.refused == (
            "input[1].call_id",
            "No tool call found for function call output with call_id call_other.",
        )

    async def test_a_call_without_an_output_is_named(self, ask: Ask) -> None:
        asked = (await ask(input=TWO_CALLS)).whole
        rome, zurich = calls_of(asked)
        for given, missing in (
            ([output(rome, "sun")], zurich),
            ([output(zurich, "rain")], rome),
            ([{"role": "user", "content": "never mind"}], rome),
        ):
            refused = await ask(previous_response_id=asked["id"], input=given)
            message = f"No tool output found for function call {missing['call_id']}."
            assert refused.refused == ("input", message)
        both = [output(rome, "sun"), output(zurich, "rain")]
        assert (await ask(previous_response_id=asked["id"], input=both)).whole

    async def test_an_output_is_taken_once(self, ask: Ask) -> None:
        asked = (await ask(input='call weather {"city":"Rome","days":1}')).whole
        [call] = calls_of(asked)
        twice = await ask(
            previous_response_id=asked["id"], input=[output(call, "sun"), output(call, "rain")]
        )
        message = f"Duplicate function call output with call_id {call['call_id']}."
        assert twice.refused == ("input[1].call_id", message)
        told = (await ask(previous_response_id=asked["id"], input=[output(call, "sun")])).whole
        again = await ask(previous_response_id=told["id"], input=[output(call, "sun")])
        assert again.refused == ("input[0].call_id", message)
        # Another continuation of the same response is another conversation.
        fork = (await ask(previous_response_id=asked["id"], input=[output(call, "snow")])).whole
        assert text_of(fork) == "The tools said: “snow”."

    async def test_an_answer_that_was_cut_short_goes_on_without_its_calls(
        self, ask: Ask, redis_url: str
    ) -> None:
        """Also from the log, and its first call may be answered."""
        cut = (await ask(input=f"{TWO_CALLS}\nsay 50", max_output_tokens=60)).whole
        assert cut["status"] == "incomplete"
        first, *_ = calls_of(cut)
        assert first["status"] == "completed"
        for _ in range(2):
            after = await ask(previous_response_id=cut["id"], input="say well then")
            assert text_of(after.whole) == "well then"
            told = await ask(
                previous_response_id=cut["id"],
                input=[output(c, "fog") for c in calls_of(cut) if c["status"] == "completed"],
            )
            assert "“fog”" in text_of(told.whole)
            await forgotten(redis_url)

    async def test_the_log_alone_knows_the_calls(self, ask: Ask, redis_url: str) -> None:
        asked = (await ask(input=TWO_CALLS)).whole
        await forgotten(redis_url)
        outputs = [output(call, "fog") for call in calls_of(asked)]
        wrong = await ask(
            previous_response_id=asked["id"], input=[*outputs, output("call_other", "x")]
        )
        assert wrong.refused[0] == "input[2].call_id"
        await forgotten(redis_url)
        told = (await ask(previous_response_id=asked["id"], input=outputs)).whole
        assert text_of(told) == "The tools said: “fog” and “fog”."
        await forgotten(redis_url)
        after = await ask(previous_response_id=told["id"], input="say well then")
        assert text_of(after.whole) == "well then"


class TestLanes:
    """What a socket remembers of a response that ended in calls."""

    async def begun(self, socket: Socket, **more: Any) -> tuple[str, list[dict[str, Any]]]:
        asked = await over_socket(socket, input=TWO_CALLS, store=False, **more)
        return asked.whole["id"], calls_of(asked.whole)

    async def test_what_is_not_stored_goes_on(self, socket: Socket, redis_url: str) -> None:
        rid, calls = await self.begun(socket)
        await forgotten(redis_url)
        told = await over_socket(
            socket,
            previous_response_id=rid,
            store=False,
            input=[output(call, "fog") for call in calls],
        )
        assert text_of(told.whole) == "The tools said: “fog” and “fog”."

    @pytest.mark.parametrize("wrong", ["unknown", "missing", "twice"])
    async def test_a_refused_continuation_evicts_its_parent(
        self, socket: Socket, wrong: str
    ) -> None:
        rid, calls = await self.begun(socket)
        right = [output(call, "fog") for call in calls]
        sent = {
            "unknown": [*right, output("call_other", "x")],
            "missing": right[:1],
            "twice": [*right, right[0]],
        }[wrong]
        refused = await over_socket(socket, previous_response_id=rid, store=False, input=sent)
        assert refused.error is not None
        assert refused.error["code"] == "invalid_value"
        again = await over_socket(socket, previous_response_id=rid, store=False, input=right)
        assert again.error is not None
        assert again.error["code"] == "previous_response_not_found"

    async def test_a_refused_fork_leaves_the_lane_its_parent(self, socket: Socket) -> None:
        rid, calls = await self.begun(socket)
        await socket.send(
            "response.create",
            previous_response_id=rid,
            store=False,
            stream_id="fork",
            input=[output("call_other", "x")],
        )
        error = await socket.error()
        assert (error["stream_id"], error["error"]["param"]) == ("fork", "input[0].call_id")
        right = [output(call, "fog") for call in calls]
        assert (await over_socket(socket, previous_response_id=rid, store=False, input=right)).whole

    async def test_a_stored_parent_can_be_loaded_again(self, socket: Socket) -> None:
        asked = (await over_socket(socket, input=TWO_CALLS)).whole
        wrong = [output("call_other", "x")]
        assert (await over_socket(socket, previous_response_id=asked["id"], input=wrong)).refused[
            0
        ] == "input[0].call_id"
        right = [output(call, "fog") for call in calls_of(asked)]
        assert (await over_socket(socket, previous_response_id=asked["id"], input=right)).whole

    async def test_outputs_wait_behind_the_call_that_they_answer(self, socket: Socket) -> None:
        """A lane's creates are read one after the other, when their turn has come."""
        rid, calls = await self.begun(socket, stream_id="a")
        right = [output(call, "fog") for call in calls]
        for lane in ("a", "b"):
            await socket.send(
                "response.create",
                previous_response_id=rid,
                store=False,
                stream_id=lane,
                input=right,
                **USUAL,
            )
        seen = [*await socket.end(), *await socket.end()]
        finals = {e["stream_id"]: e["response"] for e in seen if e["type"] == "response.completed"}
        assert {text_of(r) for r in finals.values()} == {"The tools said: “fog” and “fog”."}
        assert set(finals) == {"a", "b"}

    async def test_a_stop_string_ends_what_a_format_asks_for(self, socket: Socket) -> None:
        known = {"type": "json_schema", "name": "w", "schema": PARAMETERS, "strict": True}
        asked = {"input": "What?", "text": {"format": known}}
        whole = text_of((await over_socket(socket, **asked)).whole)
        assert json.loads(whole)
        stop = whole[3:6]
        cut = (await over_socket(socket, **asked, stop=[stop])).whole
        assert cut["status"] == "completed"
        assert text_of(cut) == whole[: whole.index(stop)]

    async def test_a_warm_up_carries_tools_instructions_and_formats(self, socket: Socket) -> None:
        known = {"type": "json_schema", "name": "w", "schema": PARAMETERS, "strict": True}
        warm = await over_socket(
            socket,
            generate=False,
            store=False,
            instructions="be brief",
            input=[{"role": "user", "content": "context"}],
            tools=[WEATHER, {"type": "web_search"}],
            tool_choice={"type": "function", "name": "weather"},
            parallel_tool_calls=False,
            text={"format": known, "verbosity": "low"},
        )
        shown = warm.whole
        assert shown["output"] == []
        assert shown["status"] == "completed"
        assert [tool["type"] for tool in shown["tools"]] == ["function", "web_search"]
        assert shown["tool_choice"] == {"type": "function", "name": "weather"}
        assert shown["parallel_tool_calls"] is False
        assert shown["text"]["format"]["schema"] == PARAMETERS
        assert shown["text"]["verbosity"] == "low"
        assert shown["instructions"] == "be brief"
        asked = await over_socket(
            socket,
            previous_response_id=shown["id"],
            store=False,
            instructions="be brief",
            input=TWO_CALLS,
        )
        assert len(calls_of(asked.whole)) == 2

    async def test_a_warm_up_may_end_in_calls_that_wait(self, socket: Socket) -> None:
        call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
        question = {"role": "user", "content": "What is the weather?"}
        warm = await over_socket(
            socket, generate=False, store=False, input=[question, call], tools=[WEATHER]
        )
        rid = warm.whole["id"]
        told = await over_socket(
            socket,
            previous_response_id=rid,
            store=False,
            input=[output("c1", "sun")],
        )
        assert text_of(told.whole) == "The tools said: “sun”."

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"tools": [{"type": "function"}]}, "tools[0].name"),
            ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
            ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
            ({"instructions": 5}, "instructions"),
        ],
    )
    async def test_a_warm_up_is_checked_like_any_create(
        self, socket: Socket, fields: dict[str, Any], param: str
    ) -> None:
        refused = await over_socket(socket, generate=False, input="hi", **fields)
        assert refused.refused[0] == param

    async def test_a_close_inside_of_a_fragmented_message(self, gateway: gp.Gateway) -> None:
        async with connect(gateway.ws, additional_headers=gateway.headers()) as ws:
            ws.protocol.send_text(b'{"type":', fin=False)
            frame = Frame(Opcode.CLOSE, b"\x03\xe8")  # the library would end the message first
            ws.protocol.send_frame(frame)
            ws.transport.writelines(ws.protocol.data_to_send())
            await asyncio.wait_for(ws.wait_closed(), 15)
            assert ws.protocol.close_rcvd is not None
            assert ws.protocol.close_rcvd.code == 1000


class TestForeignTools:
    """Tools that are no functions, as Codex sends them."""

    TOOLS: tuple[dict[str, Any], ...] = (
        WEATHER,
        {"type": "web_search", "external_web_access": False},
        {
            "type": "namespace",
            "name": "geo",
            "description": "Maps.",
            "tools": [{**WEATHER, "description": "Of a place."}],
        },
        {"type": "image_generation", "output_format": "png"},
        {"type": "mcp", "server_label": "m", "server_url": "u", "authorization": "secret"},
    )

    async def test_they_are_flattened_or_left_out_echoed_and_named(
        self, ask: Ask, client: httpx.AsyncClient
    ) -> None:
        asked = await ask(
            input='call geo__weather {"city":"Rome","days":1}\ncall web_search x\nsay done',
            tools=list(self.TOOLS),
        )
        [call] = calls_of(asked.whole)
        assert (call["name"], call["namespace"]) == ("weather", "geo")
        assert text_of(asked.whole) == "done"
        assert [tool["type"] for tool in asked.whole["tools"]] == [t["type"] for t in self.TOOLS]
        assert "authorization" not in asked.whole["tools"][4]
        stored = (await client.get(f"/v1/responses/{asked.whole['id']}")).json()
        assert stored["tools"] == asked.whole["tools"]
        if asked.headers:
            left_out = "web_search, image_generation, mcp"
            assert asked.headers["x-tailrace-tools-left-out"] == left_out
        told = await ask(
            previous_response_id=asked.whole["id"],
            input=[output(call, "sun")],
            tools=list(self.TOOLS),
        )
        assert text_of(told.whole) == "The tools said: “sun”."

    @pytest.mark.parametrize(
        "choice",
        [
            {"type": "web_search"},
            {"type": "mcp", "server_label": "m"},
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        ],
    )
    async def test_a_choice_that_only_they_can_meet_is_refused(
        self, ask: Ask, choice: dict[str, Any]
    ) -> None:
        refused = await ask(input="hi", tools=list(self.TOOLS), tool_choice=choice)
        assert refused.refused[0].startswith("tool_choice")

    async def test_nothing_but_hosted_tools(self, ask: Ask) -> None:
        plain = await ask(input="hi", tools=[{"type": "web_search"}])
        assert text_of(plain.whole)
        assert plain.whole["tools"] == [{"type": "web_search"}]
        refused = await ask(input="hi", tools=[{"type": "web_search"}], tool_choice="required")
        assert refused.refused[0] == "tool_choice"


ECHOED: list[dict[str, Any]] = [
    {"tools": [WEATHER, SHELL], "tool_choice": "none"},
    {"tools": [WEATHER], "tool_choice": "required", "max_tool_calls": 3},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}},
    {"tools": [SHELL], "tool_choice": {"type": "custom", "name": "shell"}},
    {
        "tools": [WEATHER],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "weather"}],
        },
    },
    {"parallel_tool_calls": False, "max_tool_calls": 7},
    {"reasoning": {"effort": "high", "summary": "auto"}},
    {"text": {"verbosity": "high", "format": {"type": "text"}}},
    {"text": {"verbosity": "low", "format": {"type": "json_object"}}},
    {
        "text": {
            "format": {"type": "json_schema", "name": "w", "schema": PARAMETERS, "strict": True}
        }
    },
    {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    {"temperature": 0.5, "top_p": 0.25, "max_output_tokens": 99, "instructions": "i"},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5, "user": "u", "prompt_cache_key": "k"},
    {"safety_identifier": "s", "service_tier": "flex", "truncation": "disabled"},
]


def includes(shown: Any, asked: Any) -> bool:
    """Whether `shown` says what was asked; members that were not asked for may be beside it."""
    if isinstance(asked, dict):
        return isinstance(shown, dict) and all(
            name in shown and includes(shown[name], value) for name, value in asked.items()
        )
    if isinstance(asked, list):
        return (
            isinstance(shown, list)
            and len(shown) == len(asked)
            and all(map(includes, shown, asked))
        )
    return bool(shown == asked)


@pytest.mark.parametrize("fields", ECHOED, ids=lambda f: ",".join(f))
async def test_the_response_shows_what_was_asked(
    ask: Ask, client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    asked = {name: value for name, value in fields.items() if name != "include"}
    answer = await ask(input="say some words", **fields)
    objects = [e["response"] for e in answer.events if "response" in e]
    stored = (await client.get(f"/v1/responses/{answer.whole['id']}")).json()
    for shown in (answer.whole, stored, *objects):
        assert includes(shown, asked), {name: shown.get(name) for name in asked}


class TestStreams:
    QUESTION = "think 6\nsay let me see\ncall weather 12\ncall shell 5"

    async def test_items_come_in_order_with_dense_numbers(
        self, client: httpx.AsyncClient, socket: Socket
    ) -> None:
        body = {
            "input": self.QUESTION,
            "reasoning": {"effort": "low"},
        }
        for answer in (await over_sse(client, **body), await over_socket(socket, **body)):
            kinds = [e["type"].removeprefix("response.") for e in answer.events]
            short = [k for i, k in enumerate(kinds) if k != kinds[i - 1]]
            assert short == [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "reasoning_text.delta",
                "reasoning_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "output_item.added",
                "custom_tool_call_input.delta",
                "custom_tool_call_input.done",
                "output_item.done",
                "completed",
            ]
            items = [e["item"] for e in answer.events if e["type"] == "response.output_item.done"]
            assert items == answer.whole["output"]
            said = "".join(e["delta"] for e in answer.events if e["type"] == ARGUMENTS)
            assert said == answer.whole["output"][2]["arguments"]
            assert set(json.loads(said)) == {"city", "days"}
            assert kinds.count("function_call_arguments.delta") > 1  # frames depend on load
            replay = await client.get(f"/v1/responses/{answer.whole['id']}?stream=true")
            assert events_of(replay.text) == answer.events

    async def test_a_format_is_obeyed_in_the_stream(self, ask: Ask) -> None:
        known = {"type": "json_schema", "name": "w", "schema": PARAMETERS, "strict": True}
        answer = await ask(input="json 20", text={"format": known})
        assert set(json.loads(text_of(answer.whole))) == {"city", "days"}

    async def test_every_position_can_be_resumed_on_both_ways(
        self, gateway: gp.Gateway, client: httpx.AsyncClient
    ) -> None:
        whole = await over_sse(
            client,
            input=self.QUESTION,
            tools=[WEATHER, SHELL],
            reasoning={"effort": "low"},
        )
        rid = whole.whole["id"]
        inside = [e["sequence_number"] for e in whole.events if e["type"] == ARGUMENTS]
        for after in (inside[0] - 1, inside[0], inside[len(inside) // 2], inside[-1]):
            rest = whole.events[after + 1 :]
            path = f"/v1/responses/{rid}?stream=true&starting_after={after}"
            assert events_of((await client.get(path)).text) == rest
            async with opened(gateway, f"?resume={rid}&starting_after={after}") as socket:
                assert await socket.end() == rest

    async def test_a_stream_that_is_resumed_while_arguments_are_made(
        self, gateway: gp.Gateway, client: httpx.AsyncClient, redis_url: str
    ) -> None:
        """On a second socket, and without the cache."""
        async with opened(gateway) as first:
            await first.send(
                "response.create", input="call weather 60", tools=[WEATHER], metadata=SLOW
            )
            seen = await first.until(ARGUMENTS)
        rid = seen[0]["response"]["id"]
        await forgotten(redis_url)
        after = seen[-1]["sequence_number"]
        async with opened(gateway, f"?resume={rid}&starting_after={after}") as second:
            first_rest = await second.event()
            assert first_rest["type"] == ARGUMENTS
            seen += [first_rest, *await second.end()]
        assert dense(seen)
        replay = await client.get(f"/v1/responses/{rid}?stream=true")
        assert events_of(replay.text) == seen
        [call] = calls_of(seen[-1]["response"])
        assert set(json.loads(call["arguments"])) == {"city", "days"}
