"""The wait that a gateway tells, by what its worker says of its backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tailrace import log
from tests.support import gateway_process as gp
from tests.support import waiting

POOL = "backlog-tests"
PLACES = 4
TOKENS, PACE_MS = 20, 20  # 0.4 s of one place


@pytest.fixture
def busy(folder: Path, kafka: str, redis_url: str, keys: gp.Keys) -> Iterator[gp.Gateway]:
    asyncio.run(log.apply_topics(kafka, [POOL]))
    few = {"TAILRACE_MAX_NUM_SEQS": str(PLACES)}
    with (
        gp.worker(folder, kafka, redis_url, POOL, "backlog-worker", **few),
        gp.gateway(folder, kafka, redis_url, POOL, keys, "backlog-gateway") as running,
    ):
        yield running


async def ask(client: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"input": "hi", "background": True, "metadata": gp.cues(TOKENS, PACE_MS), **fields}
    return await client.post("/v1/responses", json=body)


async def test_who_would_wait_too_long_is_told_how_long_and_others_are_served(
    busy: gp.Gateway,
) -> None:
    async with busy.client() as alice, busy.client("bob") as bob:
        # Nothing has waited yet, so no rate is known: it may wait in the log, where it expires.
        long = {"metadata": gp.cues(10 * TOKENS, PACE_MS)}
        places = await asyncio.gather(*(ask(alice, **long) for _ in range(PLACES)))
        hopeless = (await ask(alice, deadline_ms=300)).json()["id"]
        first = [await ask(alice) for _ in range(100)]
        assert {each.status_code for each in (*places, *first)} == {200}

        async def refused() -> bool:
            found = await ask(alice, deadline_ms=1_000)
            if found.status_code == 200:
                await alice.post(f"/v1/responses/{found.json()['id']}/cancel")
                return False
            error = found.json()["error"]
            assert (found.status_code, error["code"]) == (429, "rate_limit_exceeded")
            assert "after its deadline of 1s" in error["message"]
            return int(found.headers["retry-after"]) >= 1

        await waiting.eventually(refused, "the backlog is known")
        assert (await ask(alice, deadline_ms=600_000)).status_code == 200
        taken = await ask(bob, deadline_ms=5_000)
        assert taken.status_code == 200, "who has nothing waiting overtakes"

        async def status(client: httpx.AsyncClient, rid: str) -> str:
            found = (await client.get(f"/v1/responses/{rid}")).json()
            return (found["error"] or {}).get("code", "") or str(found["status"])

        async def ended() -> bool:
            return await status(alice, hopeless) == "expired"

        await waiting.eventually(ended, "it has expired")

        async def answered() -> bool:
            return await status(bob, taken.json()["id"]) == "completed"

        await waiting.eventually(answered, "bob is answered")
