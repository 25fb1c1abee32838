"""A file of pools that changes under a gateway and its broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tailrace import log
from tests.services.gateway.conftest import opened
from tests.support import gateway_process as gp
from tests.support.waiting import eventually

FILE = """
pools:
  {pool}: {{models: [{model}], aliases: [usual]}}
  {pool}-later: {{models: [later]}}
auto:
  - {{model: later, features: [tools]}}
  - {{model: usual}}
"""


async def test_a_new_pool_is_offered_once_its_topics_are_there(
    folder: Path,
    kafka: str,
    redis_url: str,
    pool: str,
    keys: gp.Keys,
    engine: gp.Process,
    tmp_path: Path,
) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(f"pools: {{{pool}: {{models: [{gp.MODEL}]}}}}")

    with gp.gateway(folder, kafka, redis_url, pool, keys, TAILRACE_POOLS=str(file)) as gateway:
        async with gateway.client() as client:

            async def offers(*names: str) -> bool:
                data = (await client.get("/v1/models")).json()["data"]
                return [each["id"] for each in data] == list(names)

            assert await offers(gp.MODEL)
            file.write_text(FILE.format(pool=pool, model=gp.MODEL))
            await eventually(
                lambda: "pools_refused" in gateway.log.read_text(), "told", within_s=20
            )
            assert f"tailrace topics apply --pool {pool}-later" in gateway.log.read_text()
            assert await offers(gp.MODEL)
            await log.apply_topics(kafka, [pool, f"{pool}-later"])
            named = (gp.MODEL, "usual", "later", "auto")
            await eventually(lambda: offers(*named), "offered", within_s=20)
            assert await answered(client, "usual") == gp.MODEL
            assert await answered(client, "auto") == gp.MODEL
            waits = {"model": "later", "input": "hi", "background": True}
            assert (await client.post("/v1/responses", json=waits)).status_code == 200


async def answered(client: httpx.AsyncClient, model: str) -> str:
    answer = await client.post("/v1/responses", json={"model": model, "input": "hi"})
    assert answer.json()["status"] == "completed", answer.text
    return str(answer.json()["model"])


RULES = """
pools:
  {pool}: {{models: [{model}]}}
  {pool}-later: {{models: [later]}}
auto:
  - {{model: {model}, max_prompt_tokens: 40}}
  - {{model: later}}
"""


async def test_a_dialogue_that_grows_changes_its_model_over_http_and_on_a_socket(
    folder: Path,
    kafka: str,
    redis_url: str,
    pool: str,
    keys: gp.Keys,
    engine: gp.Process,
    tmp_path: Path,
) -> None:
    """The large pool has no workers: that a request waits there is told by its model."""
    await log.apply_topics(kafka, [pool, f"{pool}-later"])
    file = tmp_path / "pools.yaml"
    file.write_text(RULES.format(pool=pool, model=gp.MODEL))
    asked: dict[str, Any] = {"model": "auto", "input": "hi"}
    with gp.gateway(folder, kafka, redis_url, pool, keys, TAILRACE_POOLS=str(file)) as gateway:
        async with gateway.client() as client:
            long = {**asked, "max_output_tokens": 60, "metadata": gp.cues(60, 1)}
            first = (await client.post("/v1/responses", json=long)).json()
            assert (first["model"], first["usage"]["output_tokens"]) == (gp.MODEL, 60)
            more = {**asked, "previous_response_id": first["id"]}
            behind = await client.post("/v1/responses", json={**more, "background": True})
            assert behind.json()["model"] == "later", behind.text
            async with opened(gateway) as ws:
                await ws.send("response.create", **more)
                created = await ws.event()
            assert created["type"] == "response.created", created
            assert created["response"]["model"] == "later"
            short = {**asked, "input": "so", "previous_response_id": await said(client, "x")}
            answer = await client.post("/v1/responses", json=short)
            assert answer.json()["model"] == gp.MODEL, answer.text


async def said(client: httpx.AsyncClient, text: str) -> str:
    """The id of a short answer."""
    body = {"model": "auto", "input": text, "metadata": gp.cues(3, 1)}
    answer = (await client.post("/v1/responses", json=body)).json()
    assert answer["model"] == gp.MODEL, answer
    return str(answer["id"])
