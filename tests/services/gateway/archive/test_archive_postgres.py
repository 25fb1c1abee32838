"""The whole deployment with its archive in PostgreSQL, which is killed while answers run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from tests.services.gateway.conftest import events_of
from tests.services.gateway.test_tools import WEATHER, dense
from tests.support import archive_parts, postgres, waiting
from tests.support import gateway_process as gp

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not postgres.installed(), reason="PostgreSQL is not installed (make install)"
    ),
]
BODIES: list[dict[str, Any]] = [
    {"input": "hi", "metadata": {**gp.cues(40, 1), "number": "0"}},
    {"input": 'call weather {"city":"Rome","days":1}', "tools": [WEATHER]},
    {"input": "say a few plain words", "instructions": "Be brief."},
    {"input": "hi", "metadata": gp.cues(30, 1, fault="error", fault_at=5)},
]


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.LocalPostgres]:
    with postgres.LocalPostgres() as running:
        yield running


@pytest.fixture(scope="module")
def parts(
    tmp_path_factory: pytest.TempPathFactory, keys: gp.Keys, database: postgres.LocalPostgres
) -> Iterator[archive_parts.Parts]:
    folder = tmp_path_factory.mktemp("postgres")
    url = asyncio.run(postgres.new_database(database.url))
    with (
        archive_parts.parts(folder, keys, "postgres-tests", url) as made,
        made.worker(),
        made.archive(),
    ):
        yield made


PATHS = ("?stream=true", "", "/input_items")  # push has the first two


async def read(
    client: httpx.AsyncClient, rids: list[str], paths: Sequence[str] = PATHS
) -> list[bytes]:
    found = []
    for rid in rids:
        for path in paths:
            got = await client.get(f"/v1/responses/{rid}{path}")
            assert got.status_code == 200, got.text
            found.append(got.content)
    return found


async def ids(client: httpx.AsyncClient, path: str = "/v1/responses") -> list[str]:
    got = await client.get(f"{path}?limit=100")
    assert got.status_code == 200, got.text
    return [each["id"] for each in got.json()["data"]]


async def status(client: httpx.AsyncClient, rid: str = "") -> int:
    path = f"/v1/responses/{rid}" if rid else "/v1/responses"
    return (await client.get(path)).status_code


async def test_lists_and_answers_outlive_the_log_and_a_killed_database(
    parts: archive_parts.Parts, database: postgres.LocalPostgres
) -> None:
    token = {"Authorization": f"Bearer {parts.keys.token('alice')}"}
    with parts.gateway("gateway-1") as gateway:
        async with gateway.client() as client, gateway.client("bob") as bob:
            rids = [(await client.post("/v1/responses", json=b)).json()["id"] for b in BODIES]
            talk = (await client.post("/v1/conversations", json={"title": "Größe"})).json()["id"]
            chat = {"messages": [{"role": "user", "content": "hi"}], "metadata": gp.cues(9, 1)}
            name = (await client.post("/v1/chat/completions", json=chat)).json()["id"]
            await archive_parts.archived(client, *rids)
            assert await ids(client) == rids
            assert await ids(client, "/v1/chat/completions") == [name]
            assert await ids(bob) == []
            before = await read(client, rids)
    await parts.retention()
    with parts.gateway("gateway-2") as gateway, parts.push("push-1") as push:
        async with (
            gateway.client() as client,
            httpx.AsyncClient(base_url=push.url, headers=token, timeout=60) as device,
        ):
            assert await read(client, rids[:3]) == before[:9]  # the last one is not looked up yet
            assert await ids(client) == rids
            turn = {"previous_response_id": rids[2], "input": "say more", "background": True}
            slow = {**turn, "metadata": gp.cues(150, 20)}
            running = (await client.post("/v1/responses", json=slow)).json()["id"]
            watched = asyncio.create_task(device.get(f"/v1/responses/{running}?stream=true"))

            async def begun() -> bool:
                return bool((await client.get(f"/v1/responses/{running}")).json()["output"])

            await waiting.eventually(begun, "a running answer", within_s=30)
            await asyncio.to_thread(database.kill)
            assert [await status(client, rids[3]), await status(client)] == [503, 503]
            assert await status(device, rids[0]) == 503
            # What the log holds goes on and is served.
            more = {"input": "hi", "metadata": gp.cues(20, 1)}
            made = await client.post("/v1/responses", json=more)
            assert made.json()["status"] == "completed"
            seen = events_of((await watched).text)
            assert dense(seen)
            assert seen[-1]["type"] == "response.completed"
            assert await status(device, made.json()["id"]) == 200

            await asyncio.to_thread(database.start)
            expected = [*rids, running, made.json()["id"]]

            async def whole() -> bool:
                return await status(client) == 200 and {*expected} == {*await ids(client)}

            await waiting.eventually(whole, "all in the list", within_s=60)
            assert await read(client, rids) == before
            shown = [each for at, each in enumerate(before) if at % 3 < 2]
            assert await read(device, rids, PATHS[:2]) == shown
            last = await read(client, [running])
    await parts.retention()
    with parts.gateway("gateway-3") as gateway:
        async with gateway.client() as client:
            assert await read(client, [*rids, running]) == [*before, *last]
            assert (await client.delete(f"/v1/responses/{rids[0]}")).status_code == 200

            async def erased() -> bool:
                return rids[0] not in await ids(client)

            await waiting.eventually(erased, "the erased one is in no list")
            found = (await client.get("/v1/conversations/search?q=gross")).json()["data"]
            assert [each["conversation"]["id"] for each in found] == [talk]
            assert await status(client, rids[0]) == 404
