"""Chat completions with several choices on real parts: a worker that is lost among them, a client
that leaves, and a quota that ends before the last of them. Every test has a pool of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace import log
from tailrace.protocol import records, topics
from tests.services.gateway.test_tools import forgotten
from tests.support import gateway_process as gp
from tests.support import read_log, waiting

CHOICES = 4
TOKENS = 120
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "n": CHOICES}
Start = Callable[..., Any]


@pytest.fixture
def own_pool(kafka: str) -> str:
    name = f"choices-{os.urandom(4).hex()}"
    asyncio.run(log.apply_topics(kafka, [name]))
    return name


@pytest.fixture
def start(
    own_pool: str, tmp_path: Path, kafka: str, redis_url: str, keys: gp.Keys
) -> Iterator[tuple[Start, Start]]:
    """Starts gateways, and workers, of the pool."""
    with contextlib.ExitStack() as stack:

        def gateway(**more: str) -> gp.Gateway:
            return stack.enter_context(
                gp.gateway(tmp_path, kafka, redis_url, own_pool, keys, **more)
            )

        def worker(name: str) -> gp.Process:
            return stack.enter_context(gp.worker(tmp_path, kafka, redis_url, own_pool, name))

        yield gateway, worker


async def chunks_of(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


class Said:
    """What a stream said, by choice."""

    def __init__(self) -> None:
        self.texts: defaultdict[int, str] = defaultdict(str)
        self.deltas: defaultdict[int, int] = defaultdict(int)
        self.reasons: dict[int, list[str]] = defaultdict(list)

    def take(self, chunk: dict[str, Any]) -> None:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            index, delta = choice["index"], choice["delta"]
            assert not self.reasons[index], "nothing follows the end of a choice"
            self.texts[index] += delta.get("content") or ""
            self.deltas[index] += bool(delta.get("content"))
            if choice["finish_reason"]:
                self.reasons[index].append(choice["finish_reason"])


@pytest.mark.timeout(240)
async def test_a_worker_killed_among_the_choices_changes_none_of_them(
    start: tuple[Start, Start], kafka: str, redis_url: str
) -> None:
    gateway, worker = start[0](), start[1]
    first = worker("first")
    slow = {**BODY, "metadata": gp.cues(TOKENS, 30)}
    said, last = Said(), {}
    async with gateway.client() as client:
        client.timeout = httpx.Timeout(150)
        whole = asyncio.create_task(client.post("/v1/chat/completions", json=slow))
        streamed = {**slow, "stream": True, "stream_options": {"include_usage": True}}
        async with client.stream("POST", "/v1/chat/completions", json=streamed) as answer:
            killed = False
            async for chunk in chunks_of(answer):
                said.take(chunk)
                last = chunk
                if not killed and all(said.deltas[i] >= 5 for i in range(CHOICES)):
                    killed = True
                    assert not whole.done()
                    assert not any(said.reasons.values())
                    first.kill()
                    await forgotten(redis_url)
                    worker("second")
            assert killed
        body = (await whole).json()
        for name, shown in ((last["id"], said.texts), (body["id"], None)):
            kept = (await client.get(f"/v1/chat/completions/{name}")).json()
            texts = [choice["message"]["content"] for choice in kept["choices"]]
            assert [choice["finish_reason"] for choice in kept["choices"]] == ["stop"] * CHOICES
            assert kept["usage"]["completion_tokens"] == TOKENS * CHOICES
            if shown is not None:
                assert [shown[i] for i in range(CHOICES)] == texts
                assert kept["usage"] == last["usage"]
            else:
                assert kept == body
        assert dict(said.reasons) == {i: ["stop"] for i in range(CHOICES)}
        # A worker that was never killed says the same.
        quick = {**BODY, "metadata": gp.cues(TOKENS, 0)}
        calm = (await client.post("/v1/chat/completions", json=quick)).json()
        calmly = [choice["message"]["content"] for choice in calm["choices"]]
        assert calmly == [choice["message"]["content"] for choice in body["choices"]]
        assert calmly == [said.texts[i] for i in range(CHOICES)]
    rids = answer.headers["x-tailrace-response-id"].split(", ")
    rids += (await whole).headers["x-tailrace-response-id"].split(", ")
    for rid in rids:
        found = await asyncio.to_thread(read_log.records_of, kafka, rid)
        claims = [each.worker for each in found if isinstance(each, records.Claim)]
        assert len(claims) == 2, "it was killed in the middle of each"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_cancels_every_choice(
    start: tuple[Start, Start], kafka: str, own_pool: str, streamed: bool
) -> None:
    gateway = start[0](TAILRACE_CANCEL_GRACE_MS="300")
    start[1]("only")
    body = {**BODY, "store": False, "stream": streamed, "metadata": gp.cues(4000, 10)}
    async with gateway.client() as client:
        client.timeout = httpx.Timeout(60)
        if streamed:
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                said = Said()
                async for chunk in chunks_of(answer):
                    said.take(chunk)
                    if all(said.deltas[i] for i in range(CHOICES)):
                        break
        else:
            waiting_for = asyncio.create_task(client.post("/v1/chat/completions", json=body))

            async def begun() -> bool:
                asked = await requests_of(kafka, own_pool)
                found = [await written(kafka, each.rid) for each in asked]
                return len(asked) == CHOICES and all(
                    any(isinstance(r, records.Tok) for r in each) for each in found
                )

            await waiting.eventually(begun, "every choice runs", within_s=60)
            waiting_for.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting_for
    asked = await requests_of(kafka, own_pool)
    assert len(asked) == CHOICES
    for request in asked:
        await gp.cancelled(kafka, request.rid)


@pytest.mark.timeout(180)
async def test_a_quota_that_ends_among_the_choices_lets_none_of_them_run(
    start: tuple[Start, Start], kafka: str, own_pool: str
) -> None:
    gateway = start[0](
        TAILRACE_LIMITS=json.dumps({"requests_rate": 0.001, "requests_burst": CHOICES - 1})
    )
    async with gateway.client() as client:
        refused = await client.post("/v1/chat/completions", json=BODY)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert "x-tailrace-response-id" not in refused.headers
    asked = await requests_of(kafka, own_pool)
    assert len(asked) == CHOICES - 1, "as many as the quota had places for"
    start[1]("late")  # it reads what is left of them
    topic, offsets = topics.requests(own_pool, "interactive"), log.Offsets(kafka)
    try:
        ends = await offsets.ends(topic, range(await offsets.partitions(topic)))
        assert sum(ends.values()) == len(asked)

        async def passed() -> bool:
            done = await offsets.committed(topics.group(own_pool))
            return all(done.get((topic, p), (0, ""))[0] >= end for p, end in ends.items() if end)

        await waiting.eventually(passed, "the worker is through", within_s=60)
        usage = await values(kafka, topics.USAGE)
    finally:
        await offsets.stop()
    for request in asked:
        (record,) = await written(kafka, request.rid)
        assert isinstance(record, records.Cancel)
        assert record.withdrawn
        assert not any(request.rid.encode() in value for value in usage), "nothing is billed"


async def written(kafka: str, rid: str) -> list[records.TokenRecord]:
    return await asyncio.to_thread(read_log.records_of, kafka, rid)


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
