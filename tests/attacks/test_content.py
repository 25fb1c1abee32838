"""What clients and others write is data: in records, in logs, in answers (security: attacks 24, 25
and 29)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import aiokafka
import httpx
import pytest
from websockets.asyncio.client import connect

from tailrace.protocol import ids, topics
from tests.attacks import room
from tests.faults.stage import MODEL, POOL
from tests.journey.test_garbage import garbage
from tests.support import waiting
from worker.engines import scripted

QUICK = {"model": MODEL, "metadata": {"script_tokens": "5", "script_pace_ms": "1"}}
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><!--",
    "\x1b]0;owned\x07\x1b[2J",
    "\r\n\r\ndata: [DONE]\r\n\r\nevent: response.completed\ndata: {}\n\n",
    "\u2028\u2029\u0000\ufeff",
    '"}],"type":"response.completed","',
    "\x00\x1e\x1f\x7f\x85",
)


def client(deployment: room.Deployment, base: str, user: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base, headers=deployment.headers(user), timeout=30.0)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_comes_back_as_the_same_text(
    deployment: room.Deployment, text: str
) -> None:
    """The question is in the answer's echo (`instructions`), and in each event that holds it."""
    body = {**QUICK, "input": text, "instructions": text, "stream": True}
    seen = []
    async with (
        client(deployment, deployment.gateway(1).url, "mallory") as http,
        http.stream("POST", "/v1/responses", json=body) as answer,
    ):
        assert answer.status_code == 200
        # Not `aiter_lines`: it takes U+2028 and others for ends of lines, which an event stream
        # does not.
        for line in (await answer.aread()).splitlines():
            assert line == b"" or line.startswith((b"event: response.", b"data: ")), line
            if line.startswith(b"data: {"):
                seen.append(json.loads(line[6:]))
    numbers = [event["sequence_number"] for event in seen]
    assert numbers == list(range(len(seen)))
    assert seen[0]["response"]["instructions"] == text
    assert seen[-1]["type"] == "response.completed"


def said(deployment: room.Deployment) -> Iterator[tuple[str, str]]:
    """Everything that the services wrote for operators: logs and metrics."""
    for name, service in deployment.services.items():
        yield f"log of {name}", service.log.read_text(errors="replace")
        metrics = httpx.get(f"http://127.0.0.1:{service.admin_port}/metrics", timeout=10)
        yield f"metrics of {name}", metrics.text


async def test_no_log_and_no_metric_holds_a_prompt_an_answer_or_a_credential(
    deployment: room.Deployment,
) -> None:
    canary = f"canary-{os.urandom(6).hex()}"
    credential = deployment.token(canary)
    body = {**QUICK, "input": canary, "instructions": canary, "metadata": {"note": canary}}
    answers = []
    async with client(deployment, deployment.gateway(1).url, canary) as http:
        made = (await http.post("/v1/responses", json=body)).json()
        answers.append(made["output"][0]["content"][0]["text"])
        for wrong in ({"temperature": canary}, {"model": canary}, {canary: canary}, {"input": 1}):
            await http.post("/v1/responses", json={**body, **wrong})
        await http.post("/v1/responses", content=canary.encode() * 10)
        await http.get(f"/v1/responses/{canary}", params={"credential": credential})
        ticket = (await http.post("/v1/tickets")).json()["ticket"]
    async with connect(
        f"ws://127.0.0.1:{deployment.push(1).port}/v1/watch",
        subprotocols=["tailrace.v1", f"ticket.{ticket}"],  # type: ignore[list-item]
    ) as socket:
        await socket.send(json.dumps({"type": "watch", "response_id": made["id"]}))
        await socket.send(json.dumps({"type": canary, "response_id": canary}))
        await socket.recv()
    looked_at = 0
    for place, text in said(deployment):
        looked_at += len(text)
        for secret in (canary, credential, credential.split(".")[1], ticket, *answers):
            assert secret not in text, place
    assert looked_at > 10_000


async def finished(http: httpx.AsyncClient, rid: str) -> Any:
    async def asked() -> Any:
        found = (await http.get(f"/v1/responses/{rid}")).json()
        return found if found["status"] not in ("queued", "in_progress") else None

    return await waiting.eventually(asked, f"{rid} ends", within_s=60.0)


async def test_garbage_in_every_topic_stalls_nothing(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    body = {
        "model": MODEL,
        "input": "steady",
        "background": True,
        "metadata": {"script_tokens": "150", "script_pace_ms": "10"},
    }
    expected = scripted.expected_text([{"role": "user", "content": "steady"}], 150)
    async with client(deployment, deployment.gateway(2).url, "carol") as http:
        made = [(await http.post("/v1/responses", json=body)).json()["id"] for _ in range(4)]
        with attack("garbage in every topic", "counted and skipped; answers stay what they are"):
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=deployment.kafka)
            await producer.start()
            try:
                for topic in topics.table([POOL]):
                    for partition in await producer.partitions_for(topic.name):
                        rid = next(
                            (r for r in made if ids.parse(r).partition == partition), made[0]
                        )
                        for key, value in garbage(rid):
                            if topic.config["cleanup.policy"] == "compact" and not key:
                                continue  # the broker refuses a record without key there
                            if topic.name == topics.HISTORY and value is None:
                                # The broker itself erases by it, whoever wrote it: SECURITY.md.
                                continue
                            await producer.send(
                                topic.name, key=key, value=value, partition=partition
                            )
                await producer.flush()
            finally:
                await producer.stop()
            for rid in made:
                ended = await finished(http, rid)
                assert ended["output"][0]["content"][0]["text"] == expected
