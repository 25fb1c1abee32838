"""A worker that is killed in the middle of answers of every kind: what each client sees is as if it
had not been. The pool is the test's own; second devices are on push."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.protocol import records
from tailrace.protocol.events import TERMINAL_TYPES
from tests.services.gateway.conftest import Socket, events_of, opened
from tests.services.gateway.test_embeddings import embeds_of
from tests.services.gateway.test_embeddings import expected as vectors_of
from tests.services.gateway.test_tools import (
    ARGUMENTS,
    SHELL,
    WEATHER,
    calls_of,
    dense,
    forgotten,
    output,
    over_socket,
    text_of,
)
from tests.services.gateway.test_truncation import dialogue
from tests.support import gateway_process as gp
from tests.support import local, read_log, waiting
from tests.support import sdk as sdk_client
from worker.engines import scripted

PACE_MS = 150  # of a token: all are in mid-answer at once, also where that takes ten seconds
MOST_S = 120
CHOICES, TOKENS = 3, 100


@dataclass
class Room:
    """The processes. `midway`: where all wait for each other, and the test for them. `killed`: the
    worker is."""

    kafka: str
    pool: str
    gateway: gp.Gateway
    push: gp.Listening
    midway: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(1))
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def begun(self) -> None:
        """Wait until everybody is in mid-answer and the worker was killed there."""
        await asyncio.wait_for(self.midway.wait(), MOST_S)
        await asyncio.wait_for(self.killed.wait(), MOST_S)

    def device(self) -> httpx.AsyncClient:
        headers = self.gateway.headers()
        return httpx.AsyncClient(base_url=self.push.url, headers=headers, timeout=MOST_S)

    async def written(self, rid: str) -> list[records.TokenRecord]:
        return await asyncio.to_thread(read_log.records_of, self.kafka, rid)

    async def claims(self, rid: str) -> int:
        found = await self.written(rid)
        assert sum(isinstance(each, records.End) for each in found) == 1
        return len({each.worker for each in found if isinstance(each, records.Claim)})


async def answered(
    room: Room, socket: Socket, kind: str, least: int, **body: Any
) -> list[dict[str, Any]]:
    """All events of a response whose worker is killed after so many of this kind. A second device
    on push sees the same."""

    async def more() -> None:
        seen.append(json.loads(await asyncio.wait_for(socket.ws.recv(), MOST_S)))

    seen: list[dict[str, Any]] = []
    await socket.send("response.create", **body)
    await more()
    rid = seen[0]["response"]["id"]
    async with room.device() as device:
        watched = asyncio.create_task(device.get(f"/v1/responses/{rid}?stream=true"))
        while sum(e["type"] == kind for e in seen) < least:
            await more()
        await room.begun()
        while seen[-1]["type"] not in TERMINAL_TYPES:
            await more()
        assert seen[-1]["type"] != "response.failed", seen[-1]
        assert dense(seen)
        assert events_of((await watched).text) == seen, "the second device"
    assert await room.claims(rid) == 2, "it was killed in the middle"
    return seen


async def arguments(room: Room) -> None:
    asked = {"input": "call weather 80\ncall shell 10", "tools": [WEATHER, SHELL]}
    async with opened(room.gateway) as socket, room.gateway.client() as client:
        pace = {"script_pace_ms": str(PACE_MS)}
        seen = await answered(room, socket, ARGUMENTS, 5, metadata=pace, **asked)
        call, shell = calls_of(seen[-1]["response"])
        assert set(json.loads(call["arguments"])) == {"city", "days"}
        assert "".join(e["delta"] for e in seen if e["type"] == ARGUMENTS) == call["arguments"]
        rid = seen[0]["response"]["id"]
        outputs = [output(call, "sun"), output(shell, "ok")]
        told = await over_socket(socket, previous_response_id=rid, input=outputs)
        assert text_of(told.whole) == "The tools said: “sun” and “ok”."
        stored = (await client.get(f"/v1/responses/{rid}")).json()
        assert stored["output"] == seen[-1]["response"]["output"]


async def fork(room: Room) -> None:
    """Its source is deleted meanwhile: gone for clients, not for the fork."""
    asked = {"input": "call weather 80\ncall shell 10", "tools": [WEATHER, SHELL]}
    async with opened(room.gateway) as socket, room.gateway.client() as client:
        quick = {**asked, "metadata": {"script_pace_ms": "1"}}
        source = (await client.post("/v1/responses", json=quick, timeout=MOST_S)).json()
        assert source["status"] == "completed", source  # the first worker may have started just now
        of = {"response_id": source["id"], "at": 40}
        pace = {"script_pace_ms": str(PACE_MS)}
        answering = answered(room, socket, ARGUMENTS, 6, fork=of, metadata=pace)

        async def deleting() -> None:
            await room.killed.wait()
            assert (await client.delete(f"/v1/responses/{source['id']}")).status_code == 200

        seen, _ = await asyncio.gather(answering, deleting())
    ours, theirs = (calls_of(each) for each in (seen[-1]["response"], source))
    assert [(c["name"], c.get("arguments"), c.get("input")) for c in ours] == [
        (c["name"], c.get("arguments"), c.get("input")) for c in theirs
    ]
    whole, usage = source["usage"], seen[-1]["response"]["usage"]
    assert usage["output_tokens"] == whole["output_tokens"] - 40
    assert usage["input_tokens"] == whole["input_tokens"] + 40


async def truncation(room: Room) -> None:
    """The first worker's model has a shorter context. Its successor would leave out nothing, and
    continues the same prompt."""
    said = dialogue(6)
    body = {"input": said, "truncation": "auto", "max_output_tokens": TOKENS}
    delta = "response.output_text.delta"
    async with opened(room.gateway) as socket:
        cues = gp.cues(TOKENS, PACE_MS)
        shown = (await answered(room, socket, delta, 6, metadata=cues, **body))[-1]["response"]
    assert shown["dropped_messages"] == 6
    assert text_of(shown) == scripted.expected_text(said[6:], TOKENS)


async def choices(room: Room) -> None:
    """Several of one chat completion, as a stream."""
    texts, reasons = defaultdict[int, str](str), defaultdict[int, list[str]](list)
    deltas, last, begun = Counter[int](), dict[str, Any](), False
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "n": CHOICES,
        "metadata": gp.cues(TOKENS, PACE_MS),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with room.gateway.client() as client:
        client.timeout = httpx.Timeout(MOST_S)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                last = json.loads(line.removeprefix("data: "))
                assert "error" not in last, last
                for choice in last["choices"]:
                    index, text = choice["index"], choice["delta"].get("content") or ""
                    assert not reasons[index], "nothing follows the end of a choice"
                    texts[index] += text
                    deltas[index] += bool(text)
                    reasons[index] += filter(None, [choice["finish_reason"]])
                if not begun and all(deltas[i] >= 5 for i in range(CHOICES)):
                    begun = True
                    await room.begun()
        kept = (await client.get(f"/v1/chat/completions/{last['id']}")).json()
        assert [c["message"]["content"] for c in kept["choices"]] == list(
            map(texts.get, range(CHOICES))
        )
        assert kept["usage"] == last["usage"]
        assert kept["usage"]["completion_tokens"] == TOKENS * CHOICES
        # A worker that was never killed says the same.
        calm = {**body, "stream": False, "stream_options": None, "metadata": gp.cues(TOKENS, 0)}
        again = (await client.post("/v1/chat/completions", json=calm)).json()
        assert again["choices"] == kept["choices"]
    assert dict(reasons) == {i: ["stop"] for i in range(CHOICES)}
    for rid in answer.headers["x-tailrace-response-id"].split(", "):
        assert await room.claims(rid) == 2, "it was killed in the middle of each"


async def embeddings(room: Room) -> None:
    inputs = [f"text {i}" for i in range(40)]
    async with sdk_client.of(room.gateway, timeout=MOST_S) as client:
        create = client.embeddings.with_raw_response.create
        cues = {"metadata": gp.cues(0, 3 * PACE_MS)}
        asked = asyncio.ensure_future(create(model=gp.MODEL, input=inputs, extra_body=cues))

        async def claimed() -> bool:
            parts = await embeds_of(room.kafka, room.pool)
            written = [await room.written(rid) for rid in parts]
            return [any(isinstance(r, records.Claim) for r in each) for each in written] == [
                True
            ] * 2

        await waiting.eventually(claimed, "both parts run", within_s=MOST_S)
        await room.begun()
        raw = await asked
    found = raw.parse()
    assert [each.embedding for each in found.data] == vectors_of(*inputs)
    for rid in raw.headers["x-tailrace-response-id"].split(", "):
        assert await room.claims(rid) == 2, "it was killed in the middle of each part"
        assert not [each for each in await room.written(rid) if isinstance(each, records.Tok)]


SCENARIOS: list[Callable[[Room], Coroutine[Any, Any, None]]] = [
    arguments,
    fork,
    truncation,
    choices,
    embeddings,
]


@pytest.fixture
def pool(process_name: str, kafka: str) -> str:
    name = f"lost-{process_name}"
    local.apply_topics(kafka, [name])
    return name


@pytest.fixture
def room(
    pool: str, tmp_path: Path, kafka: str, redis_url: str, keys: gp.Keys
) -> Iterator[tuple[Room, Callable[..., gp.Process]]]:
    place = (tmp_path, kafka, redis_url, pool)
    with contextlib.ExitStack() as stack:

        def worker(name: str, **more: str) -> gp.Process:
            running = gp.worker(tmp_path, kafka, redis_url, pool, name, **more)
            return stack.enter_context(running)

        gateway = stack.enter_context(gp.gateway(*place, keys))
        yield Room(kafka, pool, gateway, stack.enter_context(gp.push(*place, keys))), worker


@pytest.mark.timeout(300)
@pytest.mark.nightly
async def test_a_worker_killed_in_mid_answer_changes_nothing(
    room: tuple[Room, Callable[..., gp.Process]], redis_url: str, pool: str
) -> None:
    served, worker = room
    served.midway = asyncio.Barrier(len(SCENARIOS) + 1)
    pools = {pool: {"models": [gp.MODEL], "max_model_len": 2000}}
    first = worker("first", TAILRACE_POOLS=json.dumps(pools))
    async with asyncio.TaskGroup() as tasks:
        for scenario in SCENARIOS:
            tasks.create_task(scenario(served), name=scenario.__name__)
        await asyncio.wait_for(served.midway.wait(), MOST_S)
        first.kill()
        await forgotten(redis_url)
        worker("second")
        served.killed.set()
