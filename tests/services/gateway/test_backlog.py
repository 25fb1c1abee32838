"""What waits and what is told of it: how long it would be, and where a request stands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import connect

from tailrace import log
from tests.support import gateway_process as gp
from tests.support import response_grammar, waiting

POOL = "backlog-tests"
PLACES = 4
TOKENS, PACE_MS = 20, 20  # 0.4 s of one place


@pytest.fixture(scope="module")
def busy(folder: Path, kafka: str, redis_url: str, keys: gp.Keys) -> Iterator[gp.Gateway]:
    asyncio.run(log.apply_topics(kafka, [POOL]))
    few = {"TAILRACE_MAX_NUM_SEQS": str(PLACES)}
    with (
        gp.worker(folder, kafka, redis_url, POOL, "backlog-worker", **few),
        gp.gateway(folder, kafka, redis_url, POOL, keys, "backlog-gateway") as running,
    ):
        yield running


async def ask(client: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"input": "hi", "background": True, "metadata": gp.cues(TOKENS, PACE_MS), **fields}
    return await client.post("/v1/responses", json=body)


async def test_who_would_wait_too_long_is_told_how_long_and_others_are_served(
    busy: gp.Gateway,
) -> None:
    async with busy.client() as alice, busy.client("bob") as bob:
        # Nothing has waited yet, so no rate is known: it may wait in the log, where it expires.
        long = {"metadata": gp.cues(10 * TOKENS, PACE_MS)}
        places = await asyncio.gather(*(ask(alice, **long) for _ in range(PLACES)))
        hopeless = (await ask(alice, deadline_ms=300)).json()["id"]
        first = [await ask(alice) for _ in range(100)]
        assert {each.status_code for each in (*places, *first)} == {200}

        async def told_s() -> int:
            found = await ask(alice, deadline_ms=1_000)
            if found.status_code == 200:
                await alice.post(f"/v1/responses/{found.json()['id']}/cancel")
                return 0
            error = found.json()["error"]
            assert (found.status_code, error["code"]) == (429, "rate_limit_exceeded")
            assert "after its deadline of 1s" in error["message"]
            return int(found.headers["retry-after"])

        wait_s = await waiting.eventually(told_s, "the backlog is known")
        assert (await ask(alice, deadline_ms=600_000)).status_code == 200
        # Until an answer has ended, the rate is a guess, and even bob is told some seconds.
        half_ms = 1_000 * wait_s // 2
        taken = await ask(bob, deadline_ms=half_ms)
        assert taken.status_code == 200, "who has nothing waiting overtakes"

        async def status(client: httpx.AsyncClient, rid: str) -> str:
            found = (await client.get(f"/v1/responses/{rid}")).json()
            return (found["error"] or {}).get("code", "") or str(found["status"])

        async def ended() -> bool:
            return await status(alice, hopeless) == "expired"

        await waiting.eventually(ended, "it has expired")

        async def answered() -> bool:
            return await status(bob, taken.json()["id"]) == "completed"

        await waiting.eventually(answered, "bob is answered")


async def over_socket(url: str, headers: dict[str, str], said: dict[str, Any]) -> list[Any]:
    """All events that a socket sends after this message, up to the terminal one."""
    found: list[Any] = []
    async with connect(url, additional_headers=headers) as socket:
        await socket.send(json.dumps(said))
        async for text in socket:
            message = json.loads(text)
            found += message.get("events", [message])
            if found[-1]["type"] in ("response.completed", "watch.done"):
                return [event for event in found if event["type"] != "watch.done"]
    return found


async def over_sse(
    url: str, headers: dict[str, str], body: dict[str, Any] | None = None
) -> list[Any]:
    """All events of a body that ends as it should."""
    async with httpx.AsyncClient(headers=headers, timeout=60.0) as client:
        answer = await (client.post(url, json=body) if body else client.get(url))
    assert answer.text.endswith("data: [DONE]\n\n")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


async def over_sdk(url: str, headers: dict[str, str], rid: str) -> list[Any]:
    """The events that the SDK's accumulator hands on."""
    key = headers["Authorization"].removeprefix("Bearer ")
    async with (
        openai.AsyncOpenAI(base_url=url, api_key=key) as client,
        client.responses.stream(response_id=rid) as stream,
    ):
        found = [event async for event in stream]
        assert (await stream.get_final_response()).output_text
    return [{"sequence_number": e.sequence_number, **(e.model_extra or {})} for e in found]


def places(events: list[Any]) -> list[Any]:
    """What is told of the queue. All other events are numbered without a gap."""
    rest = [event["sequence_number"] for event in events if "queue" not in event]
    assert rest == list(range(rest[0], rest[0] + len(rest)))
    return [event["queue"] for event in events if "queue" in event]


async def test_a_response_that_waits_is_told_its_place_on_every_transport(
    busy: gp.Gateway, folder: Path, kafka: str, redis_url: str, keys: gp.Keys
) -> None:
    headers, metadata = busy.headers("carol"), gp.cues(TOKENS, PACE_MS)
    body = {"input": "hi", "metadata": metadata, "stream": True}
    chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "metadata": metadata}
    with gp.push(folder, kafka, redis_url, POOL, keys) as push:
        async with busy.client("carol") as client:
            # With every place taken, the worker has read all sixty before the first of them begins.
            long = {"metadata": gp.cues(8 * TOKENS, PACE_MS)}
            held = [(await ask(client, **long)).json()["id"] for _ in range(PLACES)]

            async def begun() -> bool:
                found = [(await client.get(f"/v1/responses/{rid}")).json() for rid in held]
                return all(each["status"] != "queued" for each in found)

            await waiting.eventually(begun, "every place is taken")
            await asyncio.gather(*(ask(client) for _ in range(60)))
            rid = (await ask(client)).json()["id"]
            streamed = f"/v1/responses/{rid}?stream=true"
            *whole, by_sdk, rest, chunks = await asyncio.gather(
                over_sse(f"{busy.url}/v1/responses", headers, body),
                over_sse(f"{push.url}{streamed}", headers),
                over_socket(busy.ws, headers, {"type": "response.create", **body}),
                over_socket(
                    push.url.replace("http", "ws") + "/v1/watch",
                    headers,
                    {"type": "watch", "response_id": rid},
                ),
                over_sdk(busy.api, headers, rid),
                over_sse(f"{busy.url}{streamed}&starting_after=1", headers),
                over_sse(f"{busy.url}/v1/chat/completions", headers, chat),
            )
    for events in (*whole, by_sdk):
        told = places(events)
        assert told, "it is told"
        assert told[-1]["position"] < told[0]["position"]
        assert told[0]["eta_s"] > 0
    for events in whole:
        grammar = response_grammar.Grammar()
        for event in events:
            grammar.take(event)
        assert grammar.ended
    assert places(rest)
    assert {event["sequence_number"] for event in rest if "queue" in event} == {1}
    assert all(event["object"] == "chat.completion.chunk" for event in chunks)
