"""Reasoning that comes back sealed: two gateways with one key, on real parts."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tailrace.protocol import seals
from tests.services.gateway.conftest import events_of
from tests.support import gateway_process as gp

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
