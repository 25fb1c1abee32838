"""Every object and event that the gateway sends is one that a strict client takes."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import httpx
import msgspec
import pydantic
import pytest
from openai import types as sdk
from openai.types import chat, responses
from openai.types.responses.response_item import ResponseItem

from tailrace.protocol import ids, records, topics
from tests.support import (
    cases,
    gateway_process,
    memory_log,
    response_grammar,
    strict_types,
    toy_parser,
)
from tests.unit.gateway import test_app

FUNCTION: Final = {"type": "function", "name": "f", "parameters": {"type": "object"}}
STRICT: Final = {
    **FUNCTION,
    "strict": True,
    "description": "d",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
SCHEMA: Final = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
ALL_ITEMS: Final = '<rI think 天气.<mLet me < see.<cf|{"city":"Zürich"}<e<cf|{}<e<mSo.'

# What is asked beside `input`, and what is answered.
CALLS: Final[dict[str, tuple[dict[str, Any], str, str]]] = {
    "plain": ({}, "Hello.", "stop"),
    "empty": ({}, "", "stop"),
    "cut short": ({"max_output_tokens": 16}, "Hello.", "length"),
    "failed": ({}, "Hel", "failed"),
    "expired": ({}, "", "expired"),
    "echoes": (
        {
            "instructions": "Be kind.",
            "temperature": 0,
            "top_p": 1,
            "metadata": {"a": "b"},
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "truncation": "disabled",
            "service_tier": "flex",
            "max_tool_calls": 3,
            "parallel_tool_calls": False,
            "text": {"verbosity": "low"},
            "reasoning": {"effort": "low", "summary": "auto"},
        },
        "Hello.",
        "stop",
    ),
    "background": ({"background": True}, "Hello.", "stop"),
    "items": ({"tools": [FUNCTION], "parallel_tool_calls": True}, ALL_ITEMS, "stop"),
    "cut in arguments": ({"tools": [STRICT]}, '<cf|{"a', "length"),
    "failed in a call": ({"tools": [FUNCTION]}, '<rHm<cf|{"a', "failed"),
    "a function": (
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}},
        "<cf|{}<e",
        "stop",
    ),
    "required": ({"tools": [FUNCTION], "tool_choice": "required"}, "<cf|{}<e", "stop"),
    "allowed": (
        {
            "tools": [FUNCTION],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}],
            },
        },
        "Hi",
        "stop",
    ),
    "hosted": (
        {"tools": [{"type": "web_search"}, {"type": "code_interpreter", "container": "c"}]},
        "Hi",
        "stop",
    ),
    "a namespace": (
        {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}]},
        "<cn__f|{}<e",
        "stop",
    ),
    "a namespace without description": (
        {"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION]}]},
        "<cn__f|{}<e",
        "stop",
    ),
    "custom": (
        {
            "tools": [
                {"type": "custom", "name": "x"},
                {
                    "type": "custom",
                    "name": "y",
                    "format": {"type": "grammar", "syntax": "regex", "definition": "a+"},
                },
            ]
        },
        "<xx|ls -la<e<xy|aaa<e",
        "stop",
    ),
    "schema": (
        {
            "text": {
                "format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}
            }
        },
        '{"a":1}',
        "stop",
    ),
    "object": ({"text": {"format": {"type": "json_object"}}}, "{}", "stop"),
    "likely": (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "Zü < ric",
        "stop",
    ),
}
INPUT: Final = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "message", "role": "assistant", "content": "hm"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "x", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "1"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"role": "user", "content": "go on"},
]


class InputItems(pydantic.BaseModel):
    """`GET /v1/responses/{id}/input_items`, as the API documents it."""

    object: str
    data: list[ResponseItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path_factory.mktemp("keys"))


def write(
    broker: memory_log.MemoryLog, request: records.Request, answer: str, reason: str, lp: bool
) -> None:
    """What a worker with the toy parser would write; `<x` begins a call of a custom tool."""
    rid, partition = request.rid, ids.parse(request.rid).partition
    topic = topics.requests("default", "interactive")
    parser = toy_parser.PARSER if "<" in answer else ""
    log: list[records.TokenRecord] = [
        records.Claim(
            rid, "n", None, request.owner, "w", topic, 0, "rev", "tok", 9, request.echo, parser
        )
    ]
    worker = toy_parser.Worker(rid, "n", logprobs=lp)
    new = toy_parser.ids_of(answer.replace("<x", "<c"))
    log += [worker.frame(new[at : at + 5]) for at in range(0, len(new), 5)]
    log.append(worker.end(reason))
    for record in log:
        if "<x" in answer and isinstance(record, records.Tok | records.End):
            marks = tuple(msgspec.structs.replace(mark, kind="x") for mark in record.marks)
            record = msgspec.structs.replace(record, marks=marks)
        broker.put_record(topics.TOKENS, partition, record, rid)


def sse(body: str) -> list[dict[str, Any]]:
    return [
        json.loads(line[6:])
        for line in body.splitlines()
        if line.startswith("data: ") and line != "data: [DONE]"
    ]


def complaint_kinds(kind: Any, *values: Any) -> set[str]:
    return {line for value in values for line in strict_types.complaints(kind, value)}


async def answer_of(
    service: test_app.Service,
    client: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    answer: str,
    reason: str,
) -> httpx.Response:
    """The answer, after a worker has written every choice of it."""
    before = len(service.requests())
    task = asyncio.ensure_future(client.post(path, json=body))
    likely = "logprobs" in body or "top_logprobs" in body
    for number in range(body.get("n", 1)):
        request = await service.asked(before + number + 1)
        write(service.broker, request, answer, reason, likely)
    return await task


async def test_responses(keys: gateway_process.Keys) -> None:
    async with (
        test_app.serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
        service.client() as client,
    ):
        with cases.collected() as case:
            for way, (fields, answer, reason) in CALLS.items():
                with case(way):
                    body = {"model": "m", "input": "hi", "stream": True, **fields}
                    answered = await answer_of(
                        service, client, "/v1/responses", body, answer, reason
                    )
                    events = sse(answered.text)
                    wrong = complaint_kinds(responses.ResponseStreamEvent, *events)
                    wrong |= complaint_kinds(
                        responses.ResponsesServerEvent, *({**e, "stream_id": "a"} for e in events)
                    )
                    grammar = response_grammar.Grammar()
                    for event in events:
                        grammar.take(event)
                    assert grammar.ended
                    rid = service.requests()[-1].rid
                    whole = (await client.get(f"/v1/responses/{rid}")).json()
                    wrong |= complaint_kinds(responses.Response, whole)
                    assert whole == events[-1]["response"]
                    assert not wrong, "\n".join(sorted(wrong))


async def test_objects_beside_the_stream(keys: gateway_process.Keys) -> None:
    async with (
        test_app.serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
        service.client() as client,
    ):
        body = {"input": INPUT, "background": True, "tools": [FUNCTION]}
        answer_body = (await client.post("/v1/responses", json=body)).json()
        wrong = complaint_kinds(responses.Response, answer_body)
        path = f"/v1/responses/{answer_body['id']}"
        wrong |= complaint_kinds(responses.Response, (await client.get(path)).json())
        for query in ("", "?limit=1", "?order=asc&limit=100"):
            wrong |= complaint_kinds(
                InputItems, (await client.get(f"{path}/input_items{query}")).json()
            )
        cancelled = (await client.post(f"{path}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        wrong |= complaint_kinds(responses.Response, cancelled)
        deletion = (await client.delete(path)).json()
        assert deletion == {"id": answer_body["id"], "object": "response", "deleted": True}
        listing = (await client.get("/v1/models")).json()
        assert (set(listing), listing["object"]) == ({"object", "data"}, "list")
        wrong |= complaint_kinds(
            sdk.Model, *listing["data"], (await client.get("/v1/models/m")).json()
        )
        assert not wrong, "\n".join(sorted(wrong))


CHAT_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHATS: Final[dict[str, tuple[dict[str, Any], str, str]]] = {
    "plain": ({}, "Hello.", "stop"),
    "empty": ({}, "", "stop"),
    "cut short": ({}, "Hello.", "length"),
    "items": ({"tools": [CHAT_TOOL]}, ALL_ITEMS, "stop"),
    "a call": ({"tools": [CHAT_TOOL]}, "<cf|{}<e", "stop"),
    "custom": ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "<xx|ls<e", "stop"),
    "likely": ({"logprobs": True, "top_logprobs": 2}, "Zürich", "stop"),
    "two": ({"n": 2}, "Hello.", "stop"),
}


async def test_chat_completions(keys: gateway_process.Keys) -> None:
    async with (
        test_app.serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
        service.client() as client,
    ):
        with cases.collected() as case:
            for way, (fields, answer, reason) in CHATS.items():
                body = {"messages": [{"role": "user", "content": "hi"}], **fields}
                with case(way):
                    answered = await answer_of(
                        service, client, "/v1/chat/completions", body, answer, reason
                    )
                    whole = answered.json()
                    wrong = complaint_kinds(chat.ChatCompletion, whole)
                    http_answer = await client.get(f"/v1/chat/completions/{whole['id']}")
                    assert http_answer.json() == whole
                    assert not wrong, "\n".join(sorted(wrong))
                with case(f"{way}, streaming"):
                    body |= {"stream": True, "stream_options": {"include_usage": True}}
                    answered = await answer_of(
                        service, client, "/v1/chat/completions", body, answer, reason
                    )
                    wrong = complaint_kinds(chat.ChatCompletionChunk, *sse(answered.text))
                    if way == "custom":  # the declared type of a chunk has no other calls
                        wrong.discard(
                            "$.choices[0].delta.tool_calls[0].type: 'custom' is none of "
                            "('function',)"
                        )
                    assert not wrong, "\n".join(sorted(wrong))


async def test_completions_of_text(keys: gateway_process.Keys) -> None:
    async with (
        test_app.serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
        service.client() as client,
    ):
        with cases.collected() as case:
            for fields in ({}, {"logprobs": 2}, {"echo": True, "n": 2}):
                for streaming in (False, True):
                    with case((fields, streaming)):
                        body = {"prompt": "hi", "stream": streaming, **fields}
                        answer = await answer_of(
                            service, client, "/v1/completions", body, "Zürich", "stop"
                        )
                        events = sse(answer.text) if streaming else [answer.json()]
                        for chunk in events[:-1]:
                            for choice in chunk["choices"]:
                                # OpenAI declares the chunks of a stream with the type of the whole
                                # object, in which it is never null, and sends null in all but a
                                # choice's last.
                                choice["finish_reason"] = choice["finish_reason"] or "stop"
                        wrong = complaint_kinds(sdk.Completion, *events)
                        assert not wrong, "\n".join(sorted(wrong))


async def test_events_of_a_socket(keys: gateway_process.Keys) -> None:
    async with (
        test_app.serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
        service.socket() as socket,
    ):
        wrong: set[str] = set()
        for payload in (
            "{",
            b"\0",
            json.dumps({"type": "no.such"}),
            json.dumps({"type": "response.create", "input": 5, "stream_id": "a"}),
            json.dumps({"type": "response.create", "input": "x", "stream_id": ""}),
            json.dumps({"type": "response.create", "input": "x", "model": "none"}),
            json.dumps(
                {"type": "response.create", "input": "x", "previous_response_id": "resp_no"}
            ),
            json.dumps({"type": "response.steer", "previous_response_id": "resp_no", "input": "x"}),
            json.dumps({"type": "response.steer"}),
        ):
            await socket.send(payload)
            reply = await test_app.event(socket)
            assert reply["type"] in ("error", "response.steer.failed")
            wrong |= complaint_kinds(responses.ResponsesServerEvent, reply)
        for lane in (None, "a"):
            grammar = response_grammar.Grammar()
            create = {"type": "response.create", "input": "x", "tools": [FUNCTION]}
            await socket.send(json.dumps({**create, **({"stream_id": lane} if lane else {})}))
            request = await service.asked(1 if lane is None else 2)
            write(service.broker, request, ALL_ITEMS, "stop", lp=False)
            while not grammar.ended:
                first_reply = await test_app.event(socket)
                assert first_reply.get("stream_id") == lane
                grammar.take(first_reply)
                wrong |= complaint_kinds(responses.ResponsesServerEvent, first_reply)
        assert not wrong, "\n".join(sorted(wrong))


class Refused(pydantic.BaseModel):
    """The body of every refusal."""

    error: sdk.shared.ErrorObject


async def test_refusals(keys: gateway_process.Keys) -> None:
    async with test_app.serving(keys) as service, service.client() as client:
        for method, path, content, headers in (
            ("POST", "/v1/responses", b"{", {}),
            ("POST", "/v1/responses", b"{}", {"authorization": "Bearer x"}),
            ("POST", "/v1/responses", b'{"input": 5}', {}),
            ("POST", "/v1/responses", b'{"input": "x", "model": "none"}', {}),
            ("POST", "/v1/responses", b" " * 600_000, {}),
            ("POST", "/v1/chat/completions", b"{}", {}),
            ("POST", "/v1/completions", b"{}", {}),
            ("PUT", "/v1/responses", b"", {}),
            ("GET", "/v1/responses/resp_no", b"", {}),
            ("GET", "/v1/chat/completions/no", b"", {}),
            ("GET", "/v1/models/none", b"", {}),
            ("GET", "/v1/audio/speech", b"", {}),
            ("GET", "/no", b"", {}),
        ):
            answer: httpx.Response = await client.request(
                method, path, content=content, headers=headers
            )
            assert answer.status_code >= 400
            wrong = complaint_kinds(Refused, answer.json())
            assert not wrong, (path, wrong)
            assert answer.headers["x-request-id"].startswith("req_")


DONE: Final = {
    "type": "response.output_text.done",
    "sequence_number": 4,
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "text": "a",
    "logprobs": [],
}


@cases.each(
    ("changed", "complaint"),
    [
        ({}, None),
        ({"text": None}, "$.text: None is no str"),
        ({"text": 1}, "$.text: 1 is no str"),
        ({"output_index": True}, "$.output_index: True is no int"),
        ({"output_index": 1.0}, "$.output_index: 1.0 is no int"),
        ({"more": 1}, "$.more: ResponseTextDoneEvent has no such member"),
        ({"logprobs": {}}, "$.logprobs: {} is no list"),
        ({"logprobs": [{"token": "a"}]}, "$.logprobs[0].logprob: is missing in Logprob"),
    ],
)
def test_the_checker_sees_what_a_strict_client_would(
    changed: dict[str, Any], complaint: str | None
) -> None:
    found_ = strict_types.complaints(responses.ResponseStreamEvent, {**DONE, **changed})
    assert found_ == ([complaint] if complaint else [])
    for name in DONE.keys() - {"type"}:
        less = {k: v for k, v in DONE.items() if k != name}
        assert any(name in each for each in complaint_kinds(responses.ResponseStreamEvent, less))
