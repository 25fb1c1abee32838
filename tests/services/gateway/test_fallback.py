"""Two pools: the worker of the first one is killed while it prefills one answer and others wait, or
in the middle of answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace import log
from tailrace.verify import command
from tests.services.gateway.conftest import events_of
from tests.services.gateway.test_tools import forgotten
from tests.support import gateway_process as gp
from tests.support import waiting
from worker.engines import scripted

LARGE, SMALL = "fallback-large", "fallback-small"
POOLS = {LARGE: {"models": ["large"], "fallback": [SMALL]}, SMALL: {"models": ["small"]}}


class Room:
    """The processes of the test."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        folder: Path,
        kafka: str,
        redis_url: str,
        keys: gp.Keys,
        slots: int,
    ) -> None:
        more = {"TAILRACE_POOLS": json.dumps(POOLS)}
        self.kafka = kafka

        def worker(pool: str, model: str, name: str) -> gp.Process:
            one = {
                "TAILRACE_MODEL_NAME": model,
                "TAILRACE_MAX_NUM_SEQS": str(slots),
                "TAILRACE_SCRIPT_REVISION": model,
                **more,
            }
            return stack.enter_context(gp.worker(folder, kafka, redis_url, pool, name, **one))

        self._worker = worker
        self.large = self._worker(LARGE, "large", "large-1")
        self._worker(SMALL, "small", "small-1")
        self.gateway = stack.enter_context(
            gp.gateway(folder, kafka, redis_url, LARGE, keys, "fallback-gateway", **more)
        )
        self.push = stack.enter_context(
            gp.push(folder, kafka, redis_url, LARGE, keys, "fallback-push", **more)
        )

    def large_again(self) -> None:
        self._worker(LARGE, "large", "large-2")

    def verified(self, rid: str) -> None:
        said: list[str] = []
        what: dict[str, Any] = {"pattern": "", "settle_s": 0.0, "late_ms": 0.0, "as_json": False}
        code = command.run(self.kafka, [LARGE, SMALL], rid=rid, say=said.append, **what)
        assert code == 0, said


@pytest.fixture
def room(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: str, redis_url: str, keys: gp.Keys
) -> Iterator[Room]:
    """`request.param`: slots of each worker; one, where there is none."""
    asyncio.run(log.apply_topics(kafka, [LARGE, SMALL]))
    with contextlib.ExitStack() as stack:
        yield Room(stack, tmp_path, kafka, redis_url, keys, getattr(request, "param", 1))


async def ask(client: httpx.AsyncClient, tokens: int = 2, pace_ms: int = 1) -> str:
    body = {
        "input": "hi",
        "model": "large",
        "background": True,
        "metadata": gp.cues(tokens, pace_ms),
    }
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def ended(client: httpx.AsyncClient, rid: str) -> dict[str, Any]:
    async def completed() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"/v1/responses/{rid}")).json()
        assert found["status"] in ("queued", "in_progress", "completed"), found
        return found if found["status"] == "completed" else None

    found = await waiting.eventually(completed, f"{rid} is answered", within_s=90)
    assert found is not None
    return dict(found)


async def breaker(client: httpx.AsyncClient) -> str:
    return str((await client.get("/ready")).json()["pools"][LARGE]["state"])


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_the_second_pool_answers_while_the_first_has_no_worker_and_no_longer(
    room: Room, redis_url: str
) -> None:
    async with (
        room.gateway.client() as client,
        httpx.AsyncClient(base_url=room.push.url, timeout=60.0) as device,
    ):

        async def answered_by(model: str) -> bool:
            found = await ended(client, await ask(client))
            return bool(found["model"] == model and await breaker(client) == "closed")

        await waiting.eventually(lambda: answered_by("large"), "all is well", within_s=90)
        first = await ask(client, pace_ms=2_000)

        async def claimed() -> bool:
            return bool((await client.get(f"/v1/responses/{first}")).json()["status"] != "queued")

        await waiting.eventually(claimed, "it is claimed", within_s=30, every_s=0.02)
        rids = [first, *[await ask(client) for _ in range(3)]]
        room.large.kill()
        await forgotten(redis_url)
        found = [await ended(client, rid) for rid in rids]
        assert [(each["model"], each["fallback"]) for each in found] == [
            ("small", {"from": "large"})
        ] * 4
        assert await breaker(client) == "open"
        later = await ended(client, await ask(client))
        assert later["model"] == "small"

        for rid in rids:
            path = f"/v1/responses/{rid}?stream=true"
            headers = room.gateway.headers()
            there = (await client.get(path)).text
            assert (await device.get(path, headers=headers)).text == there
            shown = events_of(there)
            rest = events_of((await device.get(f"{path}&starting_after=2", headers=headers)).text)
            assert rest == shown[3:]
            told = [e["response"]["model"] for e in shown if "response" in e]
            expected = ["large", "large", "large", "small", "small"]
            assert told == (expected if rid == first else [*expected[1:3], "small", "small"])
        await asyncio.to_thread(room.verified, first)

        room.large_again()
        await waiting.eventually(lambda: answered_by("large"), "it is back", within_s=90)


async def chat(
    client: httpx.AsyncClient, tokens: int, pace_ms: int, begun: asyncio.Event
) -> list[dict[str, Any]]:
    """All chunks of a Chat Completion. `begun` is set with the first text."""
    body = {
        "model": "large",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "metadata": gp.cues(tokens, pace_ms),
    }
    found: list[dict[str, Any]] = []
    async with client.stream("POST", "/v1/chat/completions", json=body, timeout=90.0) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: ")))
                if any(each["delta"].get("content") for each in found[-1]["choices"]):
                    begun.set()
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("room", [4], indirect=True)
async def test_answers_that_lose_their_pool_go_on_at_the_second_in_an_item_that_names_it(
    room: Room, redis_url: str
) -> None:
    tokens, pace_ms = 50, 100
    async with (
        room.gateway.client() as client,
        httpx.AsyncClient(base_url=room.push.url, timeout=60.0) as device,
    ):

        async def ready() -> bool:
            return bool((await ended(client, await ask(client)))["model"] == "large")

        await waiting.eventually(ready, "all is well", within_s=90)
        rids = [await ask(client, tokens, pace_ms) for _ in range(2)]
        begun = asyncio.Event()
        chunks = asyncio.create_task(chat(client, tokens, pace_ms, begun))
        await asyncio.wait_for(begun.wait(), 30)

        async def text() -> bool:
            found = [(await client.get(f"/v1/responses/{rid}")).json() for rid in rids]
            return all(r["output"] and r["output"][0]["content"][0]["text"] for r in found)

        await waiting.eventually(text, "they have text", within_s=30, every_s=0.02)
        room.large.kill()
        await forgotten(redis_url)
        whole = scripted.expected_text([{"role": "user", "content": "hi"}], tokens)
        told = [{"output_index": 0, "model": "large"}, {"output_index": 1, "model": "small"}]
        for rid in rids:
            found = await ended(client, rid)
            assert (found["model"], found["fallback"]) == (
                "small",
                {"from": "large", "items": told},
            )
            assert [item["status"] for item in found["output"]] == ["incomplete", "completed"]
            said = [item["content"][0]["text"] for item in found["output"]]
            assert all(said)
            assert "".join(said) == whole

            path = f"/v1/responses/{rid}?stream=true"
            headers = room.gateway.headers()
            there = (await client.get(path)).text
            assert (await device.get(path, headers=headers)).text == there
            shown = events_of(there)
            at = next(n for n, e in enumerate(shown) if "items" in str(e.get("response", "")))
            assert [e["type"] for e in shown[at : at + 2]] == [
                *("response.in_progress", "response.output_item.added")
            ]
            for after in (at - 1, at, len(shown) - 3):
                resumed = await device.get(f"{path}&starting_after={after}", headers=headers)
                assert events_of(resumed.text) == shown[after + 1 :]
            await asyncio.to_thread(room.verified, rid)

        spoken = await chunks
        deltas = [chunk["choices"][0] for chunk in spoken if chunk["choices"]]
        assert "".join(each["delta"].get("content") or "" for each in deltas) == whole
        assert {each["index"] for each in deltas} == {0}
        assert [spoken[0]["model"], spoken[-1]["model"]] == ["large", "small"]
