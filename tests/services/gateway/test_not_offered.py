"""A worker whose engine does not take some fields: gateways refuse them by name, before the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace import log
from tailrace.protocol import topics
from tests.services.gateway.conftest import opened
from tests.support import gateway_process as gp
from tests.support import local, waiting


@pytest.fixture(scope="module")
def limited(kafka: str, process_name: str) -> str:
    name = f"not-offered-{process_name}"
    local.apply_topics(kafka, [name])
    return name


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
    kafka: str,
    redis_url: str,
    limited: str,
    keys: gp.Keys,
) -> Iterator[gp.Gateway]:
    folder = tmp_path_factory.mktemp("not-offered")
    engine = {
        "TAILRACE_SCRIPT_REFUSES": "min_p,json_object",
        "TAILRACE_SCRIPT_ENDS": "logit_bias",
        "TAILRACE_TRIALS": str(folder / "trials"),
    }
    with (
        gp.worker(folder, kafka, redis_url, limited, "limited", **engine),
        gp.gateway(folder, kafka, redis_url, limited, keys, "limited-gateway") as started,
    ):
        yield started


async def records_of(kafka: str, pool: str) -> int:
    """How many requests of the pool are in the log."""
    offsets = log.Offsets(kafka)
    try:
        count = 0
        for priority in topics.CLASSES:
            topic = topics.requests(pool, priority)
            ends = await offsets.ends(topic, range(await offsets.partitions(topic)))
            count += sum(ends.values())
        return count
    finally:
        await offsets.stop()


BIAS: dict[str, Any] = {"logit_bias": {"1": 2}}
JSON: dict[str, Any] = {"type": "json_object"}


async def test_what_the_engine_does_not_take_is_refused_by_name_on_every_way_in(
    running: gp.Gateway, limited: str, kafka: str
) -> None:
    async with running.client() as client:

        async def known() -> bool:
            # A stream: what the worker refuses, before the gateway knows it, is 200 there.
            body = {"input": "hi", "stream": True, **BIAS}
            answer = await client.post("/v1/responses", json=body)
            return answer.status_code == 400

        await waiting.eventually(known, "the gateway knows the worker", within_s=60)
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        plain = await client.post("/v1/responses", json={"input": "hi", "metadata": gp.cues(2)})
        assert plain.status_code == 200, "the worker serves"
        before = await records_of(kafka, limited)
        told = []
        for path, body in (
            ("/v1/responses", {"input": "hi", **BIAS}),
            ("/v1/responses", {"input": "hi", "text": {"format": JSON}}),
            ("/v1/responses", {"input": "hi", "stream": True, "min_p": 0.1}),
            ("/v1/chat/completions", {**chat, "response_format": JSON}),
            ("/v1/chat/completions", {**chat, **BIAS, "stream": True}),
            ("/v1/completions", {"prompt": "hi", "min_p": 0.1}),
        ):
            answer = await client.post(path, json=body)
            error = answer.json()["error"]
            told.append((answer.status_code, error["code"], error["param"]))
            assert set(error) == {"message", "type", "param", "code"}
        code = "unsupported_parameter"
        names = ["logit_bias", "text.format", "min_p", "response_format", "logit_bias", "min_p"]
        assert told == [(400, code, name) for name in names]
        async with opened(running) as socket:
            await socket.create(min_p=0.1)
            event = await socket.error()
            assert (event["status"], event["error"]["code"]) == (400, code)
            assert event["error"]["param"] == "min_p"
            await socket.create(temperature=0.5)  # the socket goes on
            await socket.end()
        assert await records_of(kafka, limited) == before + 1
