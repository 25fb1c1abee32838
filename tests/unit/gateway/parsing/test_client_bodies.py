"""The bodies that real clients send: OpenAI's SDK as it sends them, Codex's by hand, and a sample
of what `make clients` saw of every client (`client_bodies.jsonl`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx2 as httpx
import openai
import pydantic
import pytest
from openai.types import responses as sdk

from gateway.parsing import command, completions_api, conversation, conversations_api
from tailrace.protocol import records
from tests.support import cases
from tests.unit.gateway.parsing.parsers import POOLS, chat, responses


class Address(pydantic.BaseModel):
    street: str
    number: int | None = None


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str = pydantic.Field(description="in full", min_length=1)
    kind: Literal["friend", "stranger"]
    homes: list[Address]
    parent: Person | None = None


def body_of(call: Callable[[openai.OpenAI], object]) -> dict[str, Any]:
    """The body of the one request that `call` makes."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "enough"}})

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with (
        openai.OpenAI(api_key="k", base_url="http://x", http_client=http, max_retries=0) as client,
        pytest.raises(openai.BadRequestError),
    ):
        call(client)
    (body,) = bodies
    return body


class TestResponses:
    def test_a_structured_answer(self) -> None:
        body = body_of(
            lambda client: client.responses.parse(model="small", input="who?", text_format=Person)
        )
        fields = responses(body).format
        assert fields is not None
        assert fields.engine["schema"]["$defs"].keys() == {"Address", "Person"}

    def test_a_turn_with_tools_and_what_was_said_before(self) -> None:
        history = [
            sdk.ResponseReasoningItem(
                id="rs_1", summary=[], type="reasoning", encrypted_content="sealed"
            ),
            sdk.ResponseOutputMessage(
                id="msg_1",
                role="assistant",
                status="completed",
                type="message",
                content=[
                    sdk.ResponseOutputText(annotations=[], text="I look.", type="output_text"),
                    sdk.ResponseOutputRefusal(refusal=" Or not.", type="refusal"),
                ],
            ),
            sdk.ResponseFunctionToolCall(
                arguments="{}", call_id="c1", name="get_time", type="function_call", id="fc_1"
            ),
            sdk.ResponseCustomToolCall(
                input="x", call_id="c2", name="apply", type="custom_tool_call"
            ),
        ]
        items: list[Any] = [
            {"role": "user", "content": [{"type": "input_text", "text": "when?"}]},
            *(item.model_dump() for item in history),
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        ]
        body = body_of(
            lambda client: client.responses.create(
                model="small",
                input=items,
                tools=[
                    {"type": "function", "name": "get_time", "parameters": None, "strict": True},
                    {"type": "custom", "name": "apply"},
                    {"type": "file_search", "vector_store_ids": ["vs_1"]},
                    {"type": "code_interpreter", "container": {"type": "auto"}},
                ],
                tool_choice={
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "get_time"}],
                },
                include=["reasoning.encrypted_content", "message.output_text.logprobs"],
                max_tool_calls=4,
                reasoning={"effort": "low", "summary": "auto"},
                text={"verbosity": "low"},
                top_logprobs=2,
                store=False,
            )
        )
        create = responses(body)
        assert [m["role"] for m in create.input] == ["user", "assistant", "tool", "tool"]
        assert create.input[1]["content"] == "I look. Or not."
        assert [c["type"] for c in create.input[1]["tool_calls"]] == ["function", "custom"]
        assert create.tools.hosted == ("file_search", "code_interpreter")
        assert create.tools.choice == records.ToolChoice("required", ("get_time",))
        assert (create.sampling.logprobs, create.tools.max_calls) == (2, 4)
        assert [type(item) for item in conversation.to_resolve(create.turn)] == [
            conversation.Reasoning
        ]

    def test_a_function_from_a_model(self) -> None:
        body = body_of(
            lambda client: client.responses.parse(
                model="small", input="x", tools=[openai.pydantic_function_tool(Person)]
            )
        )
        (tool,) = responses(body).tools.prompt
        assert tool["function"]["name"] == "Person"
        assert tool["function"]["strict"] is True


class TestChat:
    def test_a_structured_answer_and_a_function_from_a_model(self) -> None:
        body = body_of(
            lambda client: client.chat.completions.parse(
                model="small",
                messages=[{"role": "user", "content": "who?"}],
                response_format=Person,
                tools=[openai.pydantic_function_tool(Address)],
                tool_choice={"type": "function", "function": {"name": "Address"}},
                n=2,
                logprobs=True,
                top_logprobs=1,
            )
        )
        create = chat(body)
        assert create.format is not None
        assert create.tools.choice == records.ToolChoice("required", ("Address",))
        assert (create.choices, create.sampling.logprobs) == (2, 1)

    def test_a_turn_with_calls(self) -> None:
        body = body_of(
            lambda client: client.chat.completions.create(
                model="small",
                messages=[
                    {"role": "developer", "content": "be brief"},
                    {"role": "user", "content": "when?"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": "c1",
                                "type": "function",
                                "function": {"name": "now", "arguments": "{}"},
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "noon"},
                ],
                tools=[{"type": "function", "function": {"name": "now"}}],
                reasoning_effort="minimal",
                extra_body={"top_k": 5, "guided_choice": ["a", "b"]},
            )
        )
        create = chat(body)
        assert [m["role"] for m in create.input] == ["system", "user", "assistant", "tool"]
        assert create.sampling.top_k == 5
        assert create.format is not None


CODEX_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "shell",
        "description": "Runs a shell command and returns its output.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "array", "items": {"type": "string"}},
                "timeout_ms": {"type": "number"},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    },
    {
        "type": "namespace",
        "name": "mcp__files",
        "description": "Files.",
        "tools": [
            {
                "type": "function",
                "name": "read",
                "description": "Reads a file.",
                "strict": False,
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            }
        ],
    },
    {"type": "web_search", "external_web_access": False},
]


def codex(**more: Any) -> command.Create:
    return responses(
        {
            "model": "small",
            "instructions": "You are a coding agent.",
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "ls"}],
                }
            ],
            "tools": CODEX_TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0199",
            "text": {"verbosity": "medium"},
            "client_metadata": {"x": "y"},
            **more,
        }
    )


def test_codex_has_its_tools_without_the_search() -> None:
    create = codex()
    assert [t[t["type"]]["name"] for t in create.tools.prompt] == [
        "shell",
        "apply_patch",
        "mcp__files__read",
    ]
    assert create.tools.hosted == ("web_search",)
    assert [t["type"] for t in create.echo["tools"]] == [t["type"] for t in CODEX_TOOLS]


def test_codex_sends_back_what_it_was_told() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
    create = codex(
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ls"}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "sealed"},
            {**call, "namespace": "mcp__files"},
            {"type": "function_call_output", "call_id": "c1", "output": "x"},
        ]
    )
    (seen,) = create.input[1]["tool_calls"]
    assert seen["function"]["name"] == "mcp__files__read"


SAMPLE = Path(__file__).with_name("client_bodies.jsonl").read_text()
CLIENT_BODIES = [json.loads(line) for line in SAMPLE.split("\n") if line]
CREATES = ("/v1/responses", "/v1/chat/completions")
CREATE_BODIES = [seen for seen in CLIENT_BODIES if seen["path"].endswith(CREATES)]


@cases.each("seen", CREATE_BODIES, ids=lambda seen: f"{seen['client']} {seen['path']}")
def test_what_clients_were_seen_to_send_is_read(seen: dict[str, Any]) -> None:
    body = {**seen["body"], "model": "small"}
    if "/chat/completions" in seen["path"]:
        create = chat(body)
    else:
        if seen["path"].startswith("WS "):
            del body["type"]
        create = responses(body)
    hosted = [t["type"] for t in body.get("tools", []) if t["type"] == "web_search"]
    assert len(create.tools.echo) == len(body.get("tools", []))
    assert list(create.tools.hosted) == hosted
    assert (create.format is not None) == _asks_for_a_format(body)


@pytest.mark.parametrize(
    "seen",
    [seen for seen in CLIENT_BODIES if seen["path"] == "POST /v1/completions"],
    ids=lambda seen: seen["client"],
)
def test_a_text_that_clients_were_seen_to_complete_is_read(seen: dict[str, Any]) -> None:
    request = completions_api.parse({**seen["body"], "model": "small"}, POOLS)
    assert request.prompts == [seen["body"]["prompt"]]


@cases.each(
    "seen",
    [seen for seen in CLIENT_BODIES if seen["path"] == "POST /v1/conversations/{id}/items"],
    ids=lambda seen: seen["client"],
)
def test_items_that_clients_were_seen_to_keep_are_read(seen: dict[str, Any]) -> None:
    items = seen["body"]["items"]
    assert seen["body"].keys() == {"items"}
    for was, item in zip(items, conversations_api.parse_items(seen["body"]), strict=True):
        now = conversation.as_json(item)
        assert now["type"] == was.get("type", "message")
        assert was.keys() - now.keys() <= {"id"}


def _asks_for_a_format(body: dict[str, Any]) -> bool:
    request = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    return bool(request.get("type", "text") != "text")
