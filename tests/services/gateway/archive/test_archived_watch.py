"""Watchers on push of responses that only the archive has."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.services.gateway.conftest import events_of
from tests.services.gateway.test_tools import WEATHER
from tests.support import archive_parts, waiting
from tests.support import gateway_process as gp


class Watcher:
    """A watch socket; what comes is kept by response."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.seen: dict[str, list[dict[str, Any]]] = {}

    async def watch(self, rid: str, **more: int) -> None:
        self.seen[rid] = []
        await self._socket.send(json.dumps({"type": "watch", "response_id": rid, **more}))

    async def until_over(self, *rids: str) -> dict[str, Any]:
        """The last message of each: `watch.done`, or the error."""
        last: dict[str, Any] = {}
        while {*rids} - last.keys():
            message = json.loads(await asyncio.wait_for(self._socket.recv(), 60))
            rid = message.get("response_id")
            if message["type"] == "watch.events":
                self.seen[rid] += message["events"]
            elif rid in rids:
                last[rid] = message
        return last


def watching(push: gp.Listening, keys: gp.Keys, user: str = "alice") -> connect:
    url = push.url.replace("http", "ws", 1) + "/v1/watch"
    return connect(
        url, additional_headers={"Authorization": f"Bearer {keys.token(user)}"}, max_size=None
    )


@pytest.mark.timeout(300)
async def test_a_watcher_of_what_only_the_archive_has(
    parts: archive_parts.Parts, client: httpx.AsyncClient, push: gp.Listening
) -> None:
    keys = parts.keys
    bodies = [
        {"input": "hi", "metadata": gp.cues(30, 1)},
        {"input": 'call weather {"city":"Rome","days":1}', "tools": [WEATHER]},
        {"input": "hi", "metadata": gp.cues(12, 1, fault="error", fault_at=4)},
    ]
    rids = [(await client.post("/v1/responses", json=body)).json()["id"] for body in bodies]
    async with watching(push, keys) as socket:
        live = Watcher(socket)  # as they were seen while the log had them
        for rid in rids:
            await live.watch(rid)
        await live.until_over(*rids)
    await archive_parts.archived(client, *rids)
    await parts.retention()
    slow = {"input": "a long one", "background": True, "metadata": gp.cues(150, 20)}
    running = (await client.post("/v1/responses", json=slow)).json()["id"]
    # Nobody folds into this archive yet: the watcher is told so, and the socket stays.
    own = parts.with_another_archive("watched")
    told = {"Authorization": f"Bearer {keys.token('alice')}"}
    with own.push("push-2") as fresh:
        async with (
            watching(fresh, keys) as later,
            watching(fresh, keys, "bob") as other,
            httpx.AsyncClient(headers=told, timeout=60) as device,
        ):
            now = Watcher(later)
            await now.watch(rids[1])
            refused = (await now.until_over(rids[1]))[rids[1]]
            assert (refused["type"], refused["status"]) == ("watch.error", 503), refused
            assert "archive" in refused["error"]["message"]
            await now.watch(running)
            assert (await now.until_over(running))[running]["type"] == "watch.done"
            assert now.seen[running][-1]["type"] == "response.completed"
            with own.archive():

                async def back() -> bool:
                    await now.watch(rids[1])
                    over = (await now.until_over(rids[1]))[rids[1]]
                    return bool(over["type"] == "watch.done")

                await waiting.eventually(back, "the archive built again", within_s=60)
                for rid in rids:
                    await now.watch(rid)
                last = await now.until_over(*rids)
                assert {m["type"] for m in last.values()} == {"watch.done"}
                for rid in rids:
                    assert now.seen[rid] == live.seen[rid]
                    assert now.seen[rid][0]["type"] == "response.created"
                ends = [now.seen[rid][-1]["type"] for rid in rids]
                assert ends == ["response.completed", "response.completed", "response.failed"]
                # From a position, at the end and behind it; over the other transport too.
                whole = live.seen[rids[0]]
                for after in (0, 5, len(whole) - 2, len(whole) - 1, 9_999):
                    await now.watch(rids[0], starting_after=after)
                    await now.until_over(rids[0])
                    assert now.seen[rids[0]] == whole[after + 1 :]
                    path = f"{fresh.url}/v1/responses/{rids[0]}?stream=true"
                    got = await device.get(f"{path}&starting_after={after}")
                    assert events_of(got.text) == whole[after + 1 :]
                stranger = Watcher(other)
                await stranger.watch(rids[0])
                refused = (await stranger.until_over(rids[0]))[rids[0]]
                assert (refused["type"], refused["status"]) == ("watch.error", 410)
