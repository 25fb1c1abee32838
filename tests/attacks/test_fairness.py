"""One user floods the engines; ten ordinary users ask beside it."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tailrace.protocol import records, topics
from tests.attacks import room
from tests.faults.stage import MODEL, Service

FLOOD: Final = 400
# In full, the flood that once kept others waiting for 45 s; otherwise as many slots for less time.
FLOOD_TOKENS: Final = room.amount(1_500, 60)
FLOOD_PACE_MS: Final = room.amount(15, 120)
USERS: Final = 10
QUESTIONS: Final = room.amount(5, 1)  # of each user, one after the other
TRIES: Final = 60
GIVE_UP_S: Final = 120.0
ADDRESS: Final = "127.0.0.4"
FIRST_TOKEN: Final = "response.output_text.delta"


@dataclass
class Asked:
    """First tokens of ordinary users, in seconds, and the ids of their responses."""

    waited: list[float] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def p99(self) -> float:
        return sorted(self.waited)[max(0, -(-len(self.waited) * 99 // 100) - 1)]


def client(service: Service, headers: dict[str, str]) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(
        local_address=ADDRESS, limits=httpx.Limits(max_connections=16)
    )
    return httpx.AsyncClient(
        base_url=service.url, headers=headers, timeout=GIVE_UP_S, transport=transport
    )


def question(tokens: int, pace_ms: int, **more: Any) -> dict[str, Any]:
    metadata = {"script_tokens": str(tokens), "script_pace_ms": str(pace_ms)}
    return {"model": MODEL, "input": "Tell me.", "metadata": metadata, **more}


async def flood(http: httpx.AsyncClient) -> list[str]:
    """The ids of the flood's responses. It comes again as soon as it may when it is refused."""

    async def one() -> str:
        body = question(FLOOD_TOKENS, FLOOD_PACE_MS, background=True)
        for _ in range(TRIES):
            answer = await http.post("/v1/responses", json=body)
            if answer.status_code != 429:
                break
            await asyncio.sleep(min(1.0, float(answer.headers["retry-after"])))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    return list(await asyncio.gather(*(one() for _ in range(FLOOD))))


async def ask(http: httpx.AsyncClient, asked: Asked) -> None:
    """One user's questions, each until its first token, then to its end."""
    for _ in range(QUESTIONS):
        begun, first = time.monotonic(), 0.0
        body = question(5, 5, stream=True)
        async with http.stream("POST", "/v1/responses", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not first and FIRST_TOKEN in line:
                    first = time.monotonic()
        asked.waited.append(first - begun)
        asked.ids.append(answer.headers["x-tailrace-response-id"])


async def ordinary(deployment: room.Deployment) -> Asked:
    """Ten users at both gateways."""
    asked = Asked()
    gateways = itertools.cycle((deployment.gateway(1), deployment.gateway(2)))
    users = [
        client(next(gateways), deployment.headers(f"ordinary-{n}", tenant=f"home-{n}"))
        for n in range(USERS)
    ]
    try:
        await asyncio.gather(*(ask(http, asked) for http in users))
    finally:
        for http in users:
            await http.aclose()
    return asked


def claims(deployment: room.Deployment) -> dict[str, int]:
    """When each response was first claimed, in ms of the broker's clock."""
    found: dict[str, int] = {}
    for record in deployment.records(topics.TOKENS):
        told = records.token_of(record.key, record.value)
        if isinstance(told, records.Claim):
            found[told.rid] = min(record.timestamp, found.get(told.rid, record.timestamp))
    return found


async def cancel(http: httpx.AsyncClient, ids: list[str]) -> None:
    await asyncio.gather(*(http.post(f"/v1/responses/{rid}/cancel") for rid in ids))


async def test_a_flood_of_one_user_keeps_no_other_waiting(deployment: room.Deployment) -> None:
    idle = await ordinary(deployment)
    async with client(deployment.gateway(1), deployment.headers("flood", tenant="flood")) as http:
        begun = time.monotonic()
        ids = await flood(http)
        try:
            asked = await ordinary(deployment)
            took = time.monotonic() - begun
        finally:
            await cancel(http, ids)
    claimed = claims(deployment)
    slot_s = FLOOD_TOKENS * FLOOD_PACE_MS / 1000
    earlier = [
        sum(claimed[rid] < claimed[own] for rid in ids if rid in claimed) for own in asked.ids
    ]
    told = (
        f"first token of {USERS} users, p99: idle {1000 * idle.p99():.0f} ms, beside a flood of "
        f"{FLOOD} answers {asked.p99():.2f} s (longest {max(asked.waited):.2f} s, one answer of "
        f"the flood {slot_s:.1f} s, the flood went on for {took:.0f} s); answers of the flood "
        f"claimed before theirs: {min(earlier)} to {max(earlier)}"
    )
    print(told)
    # In the order of arrival all of the flood would come before the first other question.
    if QUESTIONS == 1:
        assert max(earlier) < FLOOD * 7 // 8
    else:
        assert asked.p99() < 2 * idle.p99() + 1.25 * slot_s
