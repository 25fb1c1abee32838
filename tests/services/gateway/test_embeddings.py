"""Embeddings on real parts: Kafka, Redis, a gateway, workers on the scripted engine, and the
official client as it is."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tailrace.protocol import records
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers
from tests.services.gateway.test_counting import requests_of
from tests.support import gateway_process as gp
from tests.support import local, waiting
from tests.support import sdk as sdk_client
from worker.engines import scripted_embeddings

TEXTS = ["hello, world", "Grüezi", "🦊 and more"]


def values(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def expected(*inputs: str | list[int], dimensions: int | None = None) -> list[list[float]]:
    ids = scripted_embeddings.encode(records.Embed(list(inputs), dimensions), 4096)
    return [values(scripted_embeddings.vector(each, dimensions)) for each in ids]


@pytest.fixture
async def client(gateway: gp.Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_client.of(gateway, timeout=120) as made:
        yield made


class TestCreate:
    @pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}], ids=["absent", "float"])
    async def test_texts(self, client: openai.AsyncOpenAI, form: dict[str, Any]) -> None:
        """Without a form the client asks for base64 and decodes it."""
        found = await client.embeddings.create(model=gp.MODEL, input=TEXTS, **form)
        assert [each.embedding for each in found.data] == expected(*TEXTS)
        assert [each.index for each in found.data] == [0, 1, 2]
        assert found.model == gp.MODEL
        assert found.usage.prompt_tokens == found.usage.total_tokens == 3 + 2 + 4

    async def test_base64(self, client: openai.AsyncOpenAI) -> None:
        found = await client.embeddings.create(
            model=gp.MODEL, input=TEXTS[0], encoding_format="base64"
        )
        text: Any = found.data[0].embedding
        assert [values(base64.b64decode(text))] == expected(TEXTS[0])

    async def test_tokens(self, client: openai.AsyncOpenAI) -> None:
        one = await client.embeddings.create(model=gp.MODEL, input=[1, 2, 3])
        assert [each.embedding for each in one.data] == expected([1, 2, 3])
        assert one.usage.prompt_tokens == 3
        several = await client.embeddings.create(model=gp.MODEL, input=[[1, 2], [3]])
        assert [each.embedding for each in several.data] == expected([1, 2], [3])

    async def test_fewer_dimensions(self, client: openai.AsyncOpenAI) -> None:
        found = await client.embeddings.create(model=gp.MODEL, input=TEXTS, dimensions=7)
        assert [each.embedding for each in found.data] == expected(*TEXTS, dimensions=7)

    async def test_as_many_as_the_api_allows(self, client: openai.AsyncOpenAI) -> None:
        inputs = [f"text {i}" for i in range(2048)]
        found = await client.embeddings.create(
            model=gp.MODEL, input=inputs, extra_body={"metadata": gp.cues(0, 0)}
        )
        assert [each.embedding for each in found.data] == expected(*inputs)
        assert [each.index for each in found.data] == list(range(2048))

    @pytest.mark.parametrize(
        ("more", "param", "says"),
        [
            ({"input": ["a", ""]}, "input[1]", "not empty"),
            ({"input": ["a", [1] * 4097]}, "input[1]", "context window"),
            ({"input": ["a", "b" * 20_000]}, "input[1]", "'input[1]' has 5000 tokens"),
            ({"input": "a", "dimensions": 33}, "dimensions", "'dimensions'"),
        ],
    )
    async def test_what_cannot_be_embedded(
        self, client: openai.AsyncOpenAI, more: dict[str, Any], param: str, says: str
    ) -> None:
        with pytest.raises(openai.BadRequestError, match="400") as refused:
            await client.embeddings.create(model=gp.MODEL, **more)
        assert refused.value.param == param
        assert says in refused.value.message

    async def test_of_what_is_too_long_the_beginning_if_the_client_wants_it(
        self, client: openai.AsyncOpenAI
    ) -> None:
        found = await client.embeddings.create(
            model=gp.MODEL, input=["b" * 20_000, "a"], extra_body={"truncate_prompt_tokens": -1}
        )
        assert [each.embedding for each in found.data] == expected("b" * 4 * 4096, "a")
        assert found.usage.prompt_tokens == 4096 + 1

    async def test_nobody_reads_them_as_a_response(
        self, client: openai.AsyncOpenAI, gateway: gp.Gateway
    ) -> None:
        raw = await client.embeddings.with_raw_response.create(model=gp.MODEL, input="a")
        rid = raw.headers["x-tailrace-response-id"]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(rid)
        with pytest.raises(openai.BadRequestError, match=r"Previous response .* not found"):
            await client.responses.create(model=gp.MODEL, input="b", previous_response_id=rid)


async def embeds_of(kafka: str, pool: str) -> set[str]:
    """Ids of a pool's requests for embeddings."""
    return {r.rid for r in await requests_of(kafka, pool) if r.embed is not None}


async def test_a_client_that_leaves_cancels(
    client: openai.AsyncOpenAI, kafka: str, pool: str
) -> None:
    before = await embeds_of(kafka, pool)
    leaving = asyncio.create_task(
        client.embeddings.create(
            model=gp.MODEL,
            input=[f"text {i}" for i in range(40)],
            extra_body={"metadata": gp.cues(0, 5_000)},
        )
    )

    async def parts() -> set[str]:
        found = await embeds_of(kafka, pool) - before
        return found if len(found) == 2 else set()

    asked = await waiting.eventually(parts, "both parts are asked for", within_s=60)
    leaving.cancel()
    for rid in asked:
        await gp.cancelled(kafka, rid)


BEATS = {
    "text": (["tools"], {"embeddings"}),
    "embeddings": (["embeddings"], {"responses", "chat", "completions", "dimensions"}),
    "matryoshka": (["dimensions", "embeddings"], {"responses", "chat", "completions"}),
}


@pytest.fixture
def unserved(kafka: str, process_name: str) -> str:
    name = f"unserved-{process_name}"
    local.apply_topics(kafka, [name])
    return name


async def test_what_the_model_is_not_for_is_refused_before_the_log(
    unserved: str, tmp_path: Path, kafka: str, redis_url: str, keys: gp.Keys
) -> None:
    """Its workers are heartbeats."""
    with gp.gateway(tmp_path, kafka, redis_url, unserved, keys) as gateway:
        async with (
            RedisStore(redis_url) as store,
            sdk_client.of(gateway, timeout=120) as client,
            gateway.client() as plain,
        ):
            calls: dict[str, Callable[[], Any]] = {
                "embeddings": lambda: client.embeddings.create(model=gp.MODEL, input="a"),
                "dimensions": lambda: client.embeddings.create(
                    model=gp.MODEL, input="a", dimensions=2
                ),
                "responses": lambda: client.responses.create(model=gp.MODEL, input="a"),
                "chat": lambda: client.chat.completions.create(
                    model=gp.MODEL, messages=[{"role": "user", "content": "a"}]
                ),
                "completions": lambda: client.completions.create(model=gp.MODEL, prompt="a"),
            }
            for detail, (features, refused) in BEATS.items():
                beat = {"state": "ready", "features": features, "detail": detail}
                await Workers(store).heartbeat(unserved, "w", beat, ttl_s=3_600)

                async def heard(said: str = detail) -> bool:
                    ready = (await plain.get("/ready")).json()
                    return bool(ready["engine"]["detail"] == said)

                await waiting.eventually(heard, "the gateway knows the worker", within_s=60)
                for name in refused:
                    with pytest.raises(openai.BadRequestError) as caught:
                        await calls[name]()
                    param = "dimensions" if name == "dimensions" else "model"
                    assert caught.value.param == param, name
                    assert gp.MODEL in caught.value.message
            await Workers(store).forget_worker(unserved, "w")
    assert await requests_of(kafka, unserved) == []
