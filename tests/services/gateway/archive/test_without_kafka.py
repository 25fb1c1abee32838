"""The broker of the deployment is killed. What it leaves to the others is why this comes last."""

from __future__ import annotations

import asyncio

import pytest

from tests.services.gateway.conftest import opened
from tests.support import archive_parts, waiting
from tests.support import gateway_process as gp

QUICK = {"input": "hi", "metadata": gp.cues(5, 1)}


@pytest.mark.timeout(300)
async def test_a_request_is_refused_clearly_and_afterwards_all_is_well(
    parts: archive_parts.Parts, gateway: gp.Gateway
) -> None:
    async with opened(gateway) as socket, gateway.client(patient=False) as client:
        assert (await client.post("/v1/responses", json=QUICK)).status_code == 200
        parts.broker.kill()
        answer = await client.post("/v1/responses", json=QUICK)
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "server_error"
        assert int(answer.headers["retry-after"]) >= 1
        await socket.create()
        assert (await socket.error())["status"] == 503
        await asyncio.to_thread(parts.broker.start)  # the socket answers pings meanwhile

        async def served() -> bool:
            return (await client.post("/v1/responses", json=QUICK)).status_code == 200

        await waiting.eventually(served, "requests are served again", within_s=90)
        await socket.create()
        assert (await socket.end())[-1]["type"] == "response.completed"
