"""Reasoning that comes back sealed: two gateways with one key, on real parts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.types import responses
from websockets.asyncio.client import connect

from tailrace.protocol import seals
from tailrace.protocol.events import TERMINAL_TYPES
from tests.services.gateway.conftest import events_of, opened
from tests.support import gateway_process as gp
from tests.support import response_grammar, strict_types

SEALED: Any = {
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "low"},
    "store": False,
}
ASKED = "think 12\nsay 8\ncall weather 20"
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]


@pytest.fixture(scope="module")
def both(
    folder: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys, engine: gp.Process
) -> Iterator[tuple[gp.Gateway, gp.Gateway]]:
    file = folder / "session-key"
    file.write_text(secrets.token_urlsafe(32))
    with contextlib.ExitStack() as stack:
        one, other = (
            stack.enter_context(
                gp.gateway(
                    folder,
                    kafka,
                    redis_url,
                    pool,
                    keys,
                    name,
                    TAILRACE_SESSION_KEY=str(file),
                )
            )
            for name in ("sealing-1", "sealing-2")
        )
        yield one, other


async def test_what_one_gateway_sealed_another_opens_for_its_owner_alone(
    both: tuple[gp.Gateway, gp.Gateway],
) -> None:
    one, other = both
    async with one.client() as alice, other.client() as elsewhere, other.client("bob") as bob:
        body = {"input": ASKED, "tools": TOOLS, **SEALED}
        output = (await alice.post("/v1/responses", json=body)).json()["output"]
        assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
        result = {
            "type": "function_call_output",
            "call_id": output[2]["call_id"],
            "output": "sunny",
        }
        back = [{**output[0], "content": []}, *output[1:], result]
        answer = await elsewhere.post("/v1/responses", json={**body, "input": back})
        assert (answer.status_code, answer.json()["status"]) == (200, "completed")
        refused = await bob.post("/v1/responses", json={**body, "input": back})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "invalid_encrypted_content"
        assert refused.json()["error"]["param"] == "input[0].encrypted_content"


async def test_every_reader_sees_the_same_bytes(both: tuple[gp.Gateway, gp.Gateway]) -> None:
    one, other = both
    async with one.client() as alice, other.client() as elsewhere:
        body = {"input": ASKED, "tools": TOOLS, **SEALED, "store": True, "stream": True}
        live = await alice.post("/v1/responses", json=body)
        rid = live.headers["x-tailrace-response-id"]
        path = f"/v1/responses/{rid}?stream=true"
        assert (await elsewhere.get(path)).text == live.text
        assert seals.MEMBER not in live.text
        final = events_of(live.text)[-1]["response"]
        assert final["output"][0]["encrypted_content"]
        named = [{"id": item["id"]} for item in final["output"]]
        result = {
            "type": "function_call_output",
            "call_id": final["output"][2]["call_id"],
            "output": "sunny",
        }
        answer = await elsewhere.post("/v1/responses", json={"input": [*named, result]})
        assert (answer.status_code, answer.json()["status"]) == (200, "completed")


async def watched(push: gp.Listening, gateway: gp.Gateway, rid: str) -> list[str]:
    """The events of a response over the watch socket, each as it was sent."""
    found: list[str] = []
    url = push.url.replace("http", "ws", 1) + "/v1/watch"
    async with connect(url, additional_headers=gateway.headers(), compression=None) as ws:
        await ws.send(json.dumps({"type": "watch", "response_id": rid}))
        while True:
            message = _message(await asyncio.wait_for(ws.recv(), 20))
            assert message.type in ("watch.events", "watch.done"), message
            if message.type == "watch.done":
                return found
            found += [bytes(event).decode() for event in message.events]


class _Message(msgspec.Struct):
    type: str
    events: list[msgspec.Raw] = []


_message = msgspec.json.Decoder(_Message).decode


def sent(body: str) -> list[str]:
    """The events of an SSE body, each as it was sent."""
    lines = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return lines


def complaints_about(shown: list[str]) -> set[str]:
    """What a strict client would say of the events of one response."""
    grammar, wrong = response_grammar.Grammar(), set[str]()
    for each in shown:
        event = json.loads(each)
        grammar.take(event)
        wrong |= set(strict_types.complaints(responses.ResponseStreamEvent, event))
    assert grammar.ended
    return wrong


async def test_every_way_shows_the_same_bytes_which_a_strict_client_takes(
    both: tuple[gp.Gateway, gp.Gateway],
    folder: Path,
    kafka: str,
    redis_url: str,
    pool: str,
    keys: gp.Keys,
) -> None:
    """Calls, sealed reasoning and log probabilities, live over WebSocket mode; then over SSE and a
    resumed socket of each gateway, and over both ways of push, which has no key."""
    one, other = both
    body = {
        **SEALED,
        "store": True,
        "input": ASKED,
        "tools": TOOLS,
        "top_logprobs": 2,
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    }
    with gp.push(folder, kafka, redis_url, pool, keys, "push-sealed") as push:
        live: list[str] = []
        async with opened(one) as socket:
            await socket.send("response.create", **body)
            while not live or json.loads(live[-1])["type"] not in TERMINAL_TYPES:
                live.append(str(await asyncio.wait_for(socket.ws.recv(), 20)))
        final = json.loads(live[-1])["response"]
        rid = final["id"]
        assert [i["type"] for i in final["output"]] == ["reasoning", "message", "function_call"]
        assert final["output"][0]["encrypted_content"]
        assert final["output"][1]["content"][0]["logprobs"]
        shown = {"the live socket": live, "the watch socket": await watched(push, one, rid)}
        path = f"/v1/responses/{rid}?stream=true"
        for service in (one, other, push):
            async with httpx.AsyncClient(base_url=service.url, headers=one.headers()) as client:
                shown[service.name] = sent((await client.get(path)).text)
        async with opened(other, f"?resume={rid}&starting_after=0") as socket:
            resumed = live[:1]
            while json.loads(resumed[-1])["type"] not in TERMINAL_TYPES:
                resumed.append(str(await asyncio.wait_for(socket.ws.recv(), 20)))
            shown["a resumed socket"] = resumed
    for way, each in shown.items():
        assert each == live, way
    assert not complaints_about(live)
    async with other.client() as client:
        assert (await client.get(f"/v1/responses/{rid}")).json() == final


async def test_the_sdk_sends_back_what_it_got(both: tuple[gp.Gateway, gp.Gateway]) -> None:
    one, other = (
        openai.AsyncOpenAI(base_url=f"{each.url}/v1", api_key=each.keys.token("alice"))
        for each in both
    )
    async with one as first, other as second:
        answer = await first.responses.create(model=gp.MODEL, input=ASKED, tools=TOOLS, **SEALED)
        thought: Any = answer.output[0]
        assert thought.encrypted_content
        call: Any = answer.output[2]
        sent: Any = [
            *answer.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ]
        again = await second.responses.create(model=gp.MODEL, input=sent, tools=TOOLS, **SEALED)
        assert again.status == "completed"
