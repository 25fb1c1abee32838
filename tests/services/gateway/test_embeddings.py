"""Embeddings on real parts: Kafka, Redis, a gateway, workers on the scripted engine, and the
official client as it is."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tailrace import log
from tailrace.protocol import records, topics
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers
from tests.support import gateway_process as gp
from tests.support import waiting
from worker.engines import scripted_embeddings

TEXTS = ["hello, world", "Grüezi", "🦊 and more"]


def values(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def expected(*inputs: str | list[int], dimensions: int | None = None) -> list[list[float]]:
    ids = scripted_embeddings.encode(records.Embed(list(inputs), dimensions), 4096)
    return [values(scripted_embeddings.vector(each, dimensions)) for each in ids]


def sdk(gateway: gp.Gateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=gateway.api, api_key=gateway.keys.token("alice"), max_retries=0, timeout=120
    )


@pytest.fixture
async def client(gateway: gp.Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(gateway) as made:
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
            ({"input": ["a", "b" * 20_000]}, "input", "'input[1]' has 5000 tokens"),
            ({"input": "a", "dimensions": 33}, "input", "'dimensions'"),
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


@contextlib.asynccontextmanager
async def token_log(kafka: str) -> AsyncIterator[Callable[[str], Any]]:
    """Reads the token records of all requests of a pool."""
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)
    layout = await log.layout(kafka)
    every = range(layout.partitions)

    async def values_of(topic: str) -> list[log.Record]:
        ends = await offsets.ends(topic, every)
        begins = await offsets.beginnings(topic, every)
        found: list[log.Record] = []
        for p in every:
            async for batch in replays.read(topic, p, begins[p], ends[p]):
                found += batch
        return found

    async def of_pool(pool: str) -> list[records.TokenRecord]:
        asked = await values_of(topics.requests(pool, "interactive"))
        keys = {r.key for r in asked}
        decoded = [
            records.token_of(r.key, r.value)
            for r in await values_of(topics.TOKENS)
            if r.key in keys
        ]
        return [record for record in decoded if record is not None]

    try:
        yield of_pool
    finally:
        await offsets.stop()
        await replays.stop()


@pytest.fixture(scope="module")
def lost_pool(kafka: str) -> str:
    asyncio.run(log.apply_topics(kafka, ["embeddings-lost"]))
    return "embeddings-lost"


@pytest.fixture(scope="module")
def refused_pool(kafka: str) -> str:
    asyncio.run(log.apply_topics(kafka, ["embeddings-refused"]))
    return "embeddings-refused"


class TestLosses:
    @pytest.fixture
    def start(
        self, lost_pool: str, tmp_path: Path, kafka: str, redis_url: str, keys: gp.Keys
    ) -> Iterator[tuple[gp.Gateway, dict[str, gp.Process]]]:
        with contextlib.ExitStack() as stack:
            workers = {
                name: stack.enter_context(gp.worker(tmp_path, kafka, redis_url, lost_pool, name))
                for name in ("first", "second")
            }
            more = {"TAILRACE_CANCEL_GRACE_MS": "100"}
            yield (
                stack.enter_context(
                    gp.gateway(tmp_path, kafka, redis_url, lost_pool, keys, **more)
                ),
                workers,
            )

    @pytest.mark.timeout(240)
    async def test_a_worker_that_is_killed_is_replaced_and_a_client_that_leaves_cancels(
        self, start: tuple[gp.Gateway, dict[str, gp.Process]], kafka: str, lost_pool: str
    ) -> None:
        gateway, workers = start
        inputs = [f"text {i}" for i in range(40)]
        async with token_log(kafka) as read, sdk(gateway) as client:

            def ask(pace_ms: int) -> asyncio.Task[Any]:
                return asyncio.create_task(
                    client.embeddings.create(
                        model=gp.MODEL,
                        input=inputs,
                        extra_body={"metadata": gp.cues(0, pace_ms)},
                    )
                )

            async def claims() -> list[records.Claim]:
                return [r for r in await read(lost_pool) if isinstance(r, records.Claim)]

            await ask(0)  # both are there
            before = {claim.rid for claim in await claims()}
            asking = ask(250)  # the longer part takes eight seconds

            async def claimed() -> list[records.Claim]:
                found = [c for c in await claims() if c.rid not in before]
                return found if len(found) == 2 else []

            running = await waiting.eventually(claimed, "both parts run", within_s=90)
            longer = running[0].worker.split("/")[0]
            workers[longer].kill()
            found = await asyncio.wait_for(asking, 90)
            assert [each.embedding for each in found.data] == expected(*inputs)
            written = [r for r in await read(lost_pool) if r.rid not in before]
            ends = Counter(r.rid for r in written if isinstance(r, records.End))
            assert ends == {claim.rid: 1 for claim in running}
            assert len([r for r in written if isinstance(r, records.Claim)]) > 2
            assert not [r for r in written if isinstance(r, records.Tok)]

            before |= {r.rid for r in written}
            leaving = ask(5_000)
            gone = await waiting.eventually(claimed, "both parts run", within_s=90)
            leaving.cancel()

            async def cancelled() -> bool:
                cancels = {r.rid for r in await read(lost_pool) if isinstance(r, records.Cancel)}
                return cancels == {claim.rid for claim in gone}

            await waiting.eventually(cancelled, "both parts are cancelled", within_s=30)


class TestRefusals:
    @pytest.mark.parametrize(
        ("told", "refused"),
        [
            (["tools"], {"embeddings"}),
            (["embeddings"], {"responses", "chat", "completions", "dimensions"}),
            (["dimensions", "embeddings"], {"responses", "chat", "completions"}),
        ],
        ids=["text", "embeddings", "matryoshka"],
    )
    async def test_what_the_model_is_not_for_is_refused_before_the_log(
        self,
        refused_pool: str,
        tmp_path: Path,
        kafka: str,
        redis_url: str,
        keys: gp.Keys,
        told: list[str],
        refused: set[str],
    ) -> None:
        store = RedisStore(redis_url)
        beat = {"state": "ready", "features": told}
        offsets, layout = log.Offsets(kafka), await log.layout(kafka)
        topic = topics.requests(refused_pool, "interactive")
        before = await offsets.ends(topic, range(layout.partitions))
        with gp.gateway(tmp_path, kafka, redis_url, refused_pool, keys) as gateway:
            await Workers(store).heartbeat(refused_pool, "w", beat, ttl_s=120)
            async with sdk(gateway) as client:

                async def heard() -> bool:
                    async with gateway.client() as plain:
                        ready = (await plain.get("/ready")).json()
                    return bool(ready["engine"]["workers"] == 1)

                await waiting.eventually(heard, "the gateway knows the worker")
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
                for name in refused:
                    with pytest.raises(openai.BadRequestError) as caught:
                        await calls[name]()
                    param = "dimensions" if name == "dimensions" else "model"
                    assert caught.value.param == param, name
                    assert gp.MODEL in caught.value.message
        assert await offsets.ends(topic, range(layout.partitions)) == before
        await offsets.stop()
        await Workers(store).forget_worker(refused_pool, "w")
        await store.aclose()
