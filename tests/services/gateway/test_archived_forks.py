"""Forks of responses that only the archive has are those of live ones."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.services.gateway.conftest import events_of, opened
from tests.services.gateway.test_forks import WORD
from tests.services.gateway.test_tools import (
    SHELL,
    WEATHER,
    calls_of,
    dense,
    over_http,
    text_of,
)
from tests.support import archive_parts, waiting
from tests.support import gateway_process as gp

PLAIN: dict[str, Any] = {"tools": None}
PLACES = (0, 1, 17, 39, 40)


@pytest.fixture
def parts(tmp_path_factory: pytest.TempPathFactory, keys: gp.Keys) -> Iterator[archive_parts.Parts]:
    folder = tmp_path_factory.mktemp("forks")
    with archive_parts.parts(folder, keys, "fork-tests") as made, made.archive():
        yield made


def nameless(response: dict[str, Any]) -> str:
    """A response without its ids and times."""
    text = json.dumps(response, ensure_ascii=False)
    for name in dict.fromkeys(re.findall(r"(?:resp|msg|rs|fc|call|ctc)_[A-Za-z0-9_-]{20,}", text)):
        text = text.replace(name, "id")
    return re.sub(r'"(created_at|completed_at)": [0-9.]+', "", text)


async def forks(client: httpx.AsyncClient, plain: str, tools: str) -> list[str]:
    """Forks of two responses at several places, with and without another word."""
    found = []
    for rid, words in ((plain, ("", WORD)), (tools, ("",))):
        for at in PLACES:
            for word in words:
                of = {"response_id": rid, "at": at, "replace": word}
                made = await over_http(client, fork=of, metadata=gp.cues(60, 0), **PLAIN)
                found.append(nameless(made.whole))
    return found


@pytest.mark.timeout(240)
async def test_a_fork_of_what_only_the_archive_has_is_that_of_a_live_one(
    parts: archive_parts.Parts,
) -> None:
    with parts.worker():
        with parts.gateway("gateway-1") as gateway:
            async with gateway.client() as client:
                told: dict[str, Any] = {"instructions": "Be brief.", "metadata": gp.cues(40, 0)}
                plain = (await over_http(client, input="fork me", **told, **PLAIN)).whole["id"]
                asked = {"input": "call weather 30\ncall shell 10", "tools": [WEATHER, SHELL]}
                tools = (await over_http(client, **asked)).whole["id"]
                live = await forks(client, plain, tools)
                await archive_parts.archived(client, plain, tools)
        await parts.retention()
        with parts.gateway("gateway-2") as gateway:
            async with gateway.client() as client, gateway.client("bob") as bob:
                assert await forks(client, plain, tools) == live
                of = {"response_id": plain, "at": 41}
                assert (await over_http(client, fork=of, **PLAIN)).refused[0] == "fork.at"
                of = {"response_id": plain, "at": 4}
                assert (await over_http(bob, fork=of, **PLAIN)).refused[0] == "fork.response_id"
                # A fork of the fork, after retention too, and a turn behind it.
                first = (await over_http(client, fork=of, metadata=gp.cues(30, 0), **PLAIN)).whole
                await archive_parts.archived(client, first["id"])
                await parts.retention()
        with parts.gateway("gateway-3") as gateway:
            async with gateway.client() as client:
                of = {"response_id": first["id"], "at": 20}
                again = await over_http(client, fork=of, metadata=gp.cues(30, 0), **PLAIN)
                assert text_of(again.whole) == text_of(first)
                turn = {"previous_response_id": again.whole["id"], "input": "go on"}
                assert "go on" in text_of((await over_http(client, **turn, **PLAIN)).whole)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("when", ["before the first frame", "in mid-answer"])
async def test_a_worker_killed_in_such_a_fork_changes_nothing(
    parts: archive_parts.Parts, when: str
) -> None:
    with parts.worker() as first, parts.gateway("gateway-1") as gateway:
        async with gateway.client() as client:
            asked = {"input": "call weather 80\ncall shell 10", "tools": [WEATHER, SHELL]}
            source = (await over_http(client, **asked)).whole
            await archive_parts.archived(client, source["id"])
            await parts.retention()
        if when == "before the first frame":
            first.kill()
        with parts.gateway("gateway-2") as fresh, parts.push("push-1") as push:
            async with (
                opened(fresh) as socket,
                fresh.client() as client,
                httpx.AsyncClient(base_url=push.url, timeout=120.0) as device,
            ):
                of = {"response_id": source["id"], "at": 40}
                await socket.send("response.create", fork=of, metadata={"script_pace_ms": "25"})
                seen: list[dict[str, Any]] = []

                async def more() -> str:
                    seen.append(json.loads(await asyncio.wait_for(socket.ws.recv(), 90)))
                    return str(seen[-1]["type"])

                await more()
                rid = seen[0]["response"]["id"]
                path = f"/v1/responses/{rid}?stream=true"
                watched = asyncio.create_task(device.get(path, headers=fresh.headers()))
                if first.child.poll() is None:

                    async def beyond() -> bool:
                        await more()
                        kinds = [e["type"] for e in seen]
                        return kinds.count("response.function_call_arguments.delta") >= 6

                    await waiting.eventually(beyond, "tokens of its own come", within_s=90)
                    first.kill()
                deleted = await client.delete(f"/v1/responses/{source['id']}")
                assert deleted.status_code == 200, "gone for clients, not for the fork"
                with parts.worker("worker-2"):
                    while await more() not in ("response.completed", "response.failed"):
                        pass
                assert seen[-1]["type"] == "response.completed", seen[-1]
                assert dense(seen)
                ours, theirs = calls_of(seen[-1]["response"]), calls_of(source)
                assert [(c["name"], c.get("arguments"), c.get("input")) for c in ours] == [
                    (c["name"], c.get("arguments"), c.get("input")) for c in theirs
                ]
                assert events_of((await watched).text) == seen, "the second device"
                whole, usage = source["usage"], seen[-1]["response"]["usage"]
                assert usage["output_tokens"] == whole["output_tokens"] - 40
                assert usage["input_tokens"] == whole["input_tokens"] + 40
