"""Counting at the gateway on real Kafka and Redis: without a worker, before anything is written.

Workers are heartbeats here; what a real engine tells, and that both count alike, is in
tests/contract/test_vllm_counting.py.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tailrace import log
from tailrace.prompts import counter
from tailrace.protocol import records, topics
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers
from tests.services.gateway.conftest import opened
from tests.support import gateway_process as gp
from tests.support import small_tokenizer, waiting

POOL = "counting"
LENGTH = 2000
AROUND = 17  # tokens of a prompt with one question, without its text
FITS = "x" * (LENGTH - AROUND - 1)


@pytest.fixture(scope="module")
def pool(kafka: str) -> str:
    asyncio.run(log.apply_topics(kafka, [POOL]))
    return POOL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer.build(tmp_path_factory.mktemp("counting") / "model")


@pytest.fixture(scope="module")
def gateway(
    folder: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys
) -> Iterator[gp.Gateway]:
    served = {"models": [gp.MODEL], "max_model_len": LENGTH, "tokenizer": str(folder)}
    more = {"TAILRACE_POOLS": json.dumps({pool: served})}
    with gp.gateway(folder.parent, kafka, redis_url, pool, keys, **more) as running:
        yield running


async def tell(redis_url: str, gateway: gp.Gateway, **told: Any) -> None:
    """A worker of the pool says this, and the gateway has heard it."""
    store = RedisStore(redis_url)
    detail = f"told {secrets.token_hex(4)}"
    try:
        beat = {"state": "ready", "max_model_len": LENGTH, "detail": detail, **told}
        await Workers(store).heartbeat(POOL, "w", beat, ttl_s=3_600)
        async with gateway.client() as client:

            async def heard() -> bool:
                ready = (await client.get("/ready")).json()
                return bool(ready["engine"]["detail"] == detail)

            await waiting.eventually(heard, "the gateway knows the worker")
    finally:
        await store.aclose()


async def requests_of(kafka: str, pool: str) -> list[records.Request]:
    """All requests of a pool."""
    topic = topics.requests(pool, "interactive")
    found = [records.decode_request(value) for value in await values(kafka, topic)]
    return [request for request in found if request is not None]


async def values(kafka: str, topic: str) -> list[bytes]:
    """The values of a topic."""
    offsets, replays, found = log.Offsets(kafka), log.Replays(kafka, size=1), []
    try:
        count = await offsets.partitions(topic)
        ends = await offsets.ends(topic, range(count))
        beginnings = await offsets.beginnings(topic, range(count))
        for p in range(count):
            async for batch in replays.read(topic, p, beginnings[p], ends[p]):
                found += [r.value for r in batch if r.value is not None]
    finally:
        await offsets.stop()
        await replays.stop()
    return found


async def test_too_long_is_refused_before_anything_is_written_and_counting_takes_no_worker(
    gateway: gp.Gateway, folder: Path, kafka: str, redis_url: str, pool: str
) -> None:
    await tell(redis_url, gateway, counting_digest=counter.Counter(folder).digest)
    before = len(await requests_of(kafka, pool))
    key = gateway.headers()["Authorization"].removeprefix("Bearer ")
    long = FITS + "x"
    async with openai.AsyncOpenAI(base_url=gateway.api, api_key=key, max_retries=0) as sdk:
        counted = await sdk.responses.input_tokens.count(input=FITS, model=gp.MODEL)
        assert counted.input_tokens == LENGTH - 1
        chat: Any = [{"role": "user", "content": long}]
        calls: dict[str, Callable[[], Any]] = {
            "input": lambda: sdk.responses.create(model=gp.MODEL, input=long),
            "messages": lambda: sdk.chat.completions.create(model=gp.MODEL, messages=chat),
            "prompt": lambda: sdk.completions.create(model=gp.MODEL, prompt=long + "x" * AROUND),
        }
        calls |= {
            "input of a stream": lambda: sdk.responses.create(
                model=gp.MODEL, input=long, stream=True
            ),
            "input that is counted": lambda: sdk.responses.input_tokens.count(
                model=gp.MODEL, input=long
            ),
        }
        for param, call in calls.items():
            with pytest.raises(openai.BadRequestError) as error:
                await call()
            assert error.value.code == "context_length_exceeded"
            assert error.value.param == param.split()[0]
            assert "tokens" in str(error.value)
    async with opened(gateway) as socket:
        await socket.send("response.create", input=long)
        refused = await socket.error()
        assert refused["error"]["code"] == "context_length_exceeded"
    assert len(await requests_of(kafka, pool)) == before, "nothing was written"


async def test_instructions_tools_and_turns_count(
    gateway: gp.Gateway, folder: Path, redis_url: str
) -> None:
    await tell(redis_url, gateway, counting_digest=counter.Counter(folder).digest)
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}

    async def count(**body: Any) -> int:
        asked = {"model": gp.MODEL, **body}
        answer = await client.post("/v1/responses/input_tokens", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["object"] == "response.input_tokens"
        return int(answer.json()["input_tokens"])

    async with gateway.client() as client:
        assert await count(input="x") == AROUND + 1
        assert await count(input="x", instructions="abc") > AROUND + 1 + 3
        assert await count(input="x", tools=[tool]) > AROUND + 1 + 40
        turns = [{"role": "user", "content": "y" * 200}, {"role": "assistant", "content": "z"}]
        assert await count(input=[*turns, {"role": "user", "content": "x"}]) > AROUND + 200
        other = await client.post(
            "/v1/responses/input_tokens", json={"input": "x", "previous_response_id": "resp_x"}
        )
        assert other.json()["error"]["code"] == "previous_response_not_found"
    async with httpx.AsyncClient(base_url=gateway.url) as stranger:
        answer = await stranger.post("/v1/responses/input_tokens", json={"input": "x"})
        assert answer.status_code == 401


async def test_workers_with_another_tokenizer_decide(
    gateway: gp.Gateway, kafka: str, redis_url: str, pool: str
) -> None:
    await tell(redis_url, gateway, counting_digest="another")
    before = len(await requests_of(kafka, pool))
    async with gateway.client() as client:
        body = {"model": gp.MODEL, "input": FITS + "x", "background": True}
        answer = await client.post("/v1/responses", json=body)
        assert (answer.status_code, answer.json()["status"]) == (200, "queued")
        await client.post(f"/v1/responses/{answer.json()['id']}/cancel")
    assert len(await requests_of(kafka, pool)) == before + 1
    told = [line for line in gateway.log.read_text().splitlines() if "left_to_workers" in line]
    assert len(told) == 1
