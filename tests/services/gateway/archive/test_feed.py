"""The feed on real parts: two devices in step, over both transports and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.services.gateway.archive.test_conversations import answered, made, turn
from tests.support import archive_parts
from tests.support import gateway_process as gp

pytestmark = pytest.mark.timeout(300)


class Device:
    """What one device was told."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    @property
    def position(self) -> str:
        return str(self.events[-1]["position"])

    def put(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The first event of this type with these fields."""
        async with asyncio.timeout(60):
            while True:
                for event in self.events:
                    if event["type"] == kind and all(event.get(n) == v for n, v in fields.items()):
                        return event
                self._changed.clear()
                await self._changed.wait()

    def of(self, name: str) -> list[tuple[str, ...]]:
        """Types of the events about a conversation, with what tells them apart."""
        return [
            (e["type"], str(e.get("response_id") or e.get("title") or ""))
            for e in self.events
            if e.get("conversation_id") == name
        ]


@contextlib.asynccontextmanager
async def over_sse(
    service: gp.Listening, keys: gp.Keys, subject: str = "alice", after: str | None = None
) -> AsyncIterator[Device]:
    device = Device()
    headers = {"authorization": f"Bearer {keys.token(subject)}"}

    async def read() -> None:
        params = {"after": after} if after else {}
        async with (
            httpx.AsyncClient(base_url=service.url, headers=headers, timeout=60) as client,
            client.stream("GET", "/v1/feed", params=params) as stream,
        ):
            assert stream.status_code == 200
            event_id = ""
            with contextlib.suppress(httpx.HTTPError):
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        event_id = line[4:]
                    if line.startswith("data: "):
                        event = json.loads(line[6:])
                        assert event["position"] == event_id
                        device.put(event)

    task = asyncio.create_task(read())
    try:
        yield device
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def over_socket(
    service: gp.Listening, keys: gp.Keys, subject: str = "alice", after: str | None = None
) -> AsyncIterator[Device]:
    device = Device()
    url = service.url.replace("http", "ws") + "/v1/watch"
    headers = {"authorization": f"Bearer {keys.token(subject)}"}
    async with connect(url, additional_headers=headers) as socket:

        async def read() -> None:
            async for text in socket:
                message = json.loads(text)
                assert message["type"] == "feed.events", message
                for event in message["events"]:
                    device.put(event)

        await socket.send(json.dumps({"type": "feed", **({"after": after} if after else {})}))
        task = asyncio.create_task(read())
        try:
            yield device
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_two_devices_are_in_step(
    client: httpx.AsyncClient, gateway: gp.Gateway, push: gp.Listening, keys: gp.Keys
) -> None:
    async with (
        over_sse(push, keys) as phone,
        over_socket(push, keys) as desk,
        over_sse(gateway, keys) as third,
        over_sse(push, keys, "bob") as stranger,
    ):
        devices = (phone, desk, third)
        for device in (*devices, stranger):
            await device.until("feed.ready")
        name = await made(client, title="first")
        await answered(client, name, "hello")
        await client.post(f"/v1/conversations/{name}", json={"title": "second"})
        nodes = (await client.get(f"/v1/conversations/{name}/nodes")).json()["data"]
        rid = nodes[0]["id"]
        alone = (await client.post("/v1/responses", json={"input": "alone"})).json()["id"]
        await client.delete(f"/v1/conversations/{name}")
        for device in devices:
            await device.until("conversation.deleted", conversation_id=name)
            await device.until("response.ended", response_id=alone, status="completed")
        for device in devices:
            acts = [e for e in device.of(name) if not e[0].startswith("response.")]
            assert acts == [
                ("conversation.created", ""),
                ("conversation.turn", rid),
                ("conversation.updated", "second"),
                ("conversation.deleted", ""),
            ]
            notices = [e for e in device.of(name) if e[0].startswith("response.")]
            assert notices == [("response.started", rid), ("response.ended", rid)]
            started = await device.until("response.started", response_id=alone)
            assert (started["conversation_id"], started["model"]) == (None, gp.MODEL)
        assert [e["type"] for e in stranger.events] == ["feed.ready"]


async def test_a_device_that_was_away_gets_what_it_missed_once(
    client: httpx.AsyncClient,
    elsewhere: httpx.AsyncClient,
    parts: archive_parts.Parts,
    push: gp.Listening,
    keys: gp.Keys,
) -> None:
    async with over_sse(push, keys) as device:
        await device.until("feed.ready")
        name = await made(client)
        await device.until("conversation.created", conversation_id=name)
        position = device.position
    await answered(client, name, "while away")
    await answered(elsewhere, name, "and again")
    turns = (await client.get(f"/v1/conversations/{name}/nodes")).json()["data"]
    first, second = (node["id"] for node in turns)
    with parts.push("push-3") as push:
        for transport in (over_sse, over_socket):
            async with transport(push, keys, after=position) as device:
                await device.until("feed.ready")
                await device.until("response.ended", response_id=second)
                missed = [e for e in device.of(name) if e[0] != "conversation.updated"]
                assert sorted(missed) == sorted(
                    [
                        *(("conversation.turn", rid) for rid in (first, second)),
                        *(("response.started", rid) for rid in (first, second)),
                        *(("response.ended", rid) for rid in (first, second)),
                    ]
                )
                then = device.position
                # Another one each time: the second device is told of the first change, too.
                title = transport.__name__
                await client.post(f"/v1/conversations/{name}", json={"title": title})
                await device.until("conversation.updated", conversation_id=name, title=title)
                assert device.position != then
            async with transport(push, keys, after=device.position) as device:
                await device.until("feed.ready")
                assert len(device.events) == 1, "nothing twice"


async def test_positions_resume_at_every_event(
    client: httpx.AsyncClient, push: gp.Listening, keys: gp.Keys
) -> None:
    async with over_sse(push, keys) as whole:
        await whole.until("feed.ready")
        name = await made(client)
        for n in range(4):
            await answered(client, name, f"turn {n}")
        last = await client.post(f"/v1/conversations/{name}", json={"title": "end"})
        assert last.status_code == 200
        await whole.until("conversation.updated", title="end")
        nodes = (await client.get(f"/v1/conversations/{name}/nodes")).json()["data"]
        await whole.until("response.ended", response_id=nodes[-1]["id"])
    everything = {json.dumps({**e, "position": ""}) for e in whole.events[1:]}
    for n, event in enumerate(whole.events):
        async with over_sse(push, keys, after=event["position"]) as device:
            await device.until("feed.ready")
            seen = {json.dumps({**e, "position": ""}) for e in whole.events[1 : n + 1]}
            told = [e for e in device.events if e["type"] != "feed.ready"]
            got = [json.dumps({**e, "position": ""}) for e in told]
            assert seen | set(got) == everything
            assert not seen & set(got)
            assert len(got) == len(set(got))


async def test_a_position_that_the_log_has_no_longer_is_said_to_be_lost(
    client: httpx.AsyncClient, push: gp.Listening, keys: gp.Keys, parts: archive_parts.Parts
) -> None:
    async with over_sse(push, keys) as device:
        await device.until("feed.ready")
        await client.post("/v1/responses", json={"input": "x"})
        await device.until("response.ended")
        position = device.events[0]["position"]
    await archive_parts.cut(parts.kafka, ["llm.activity"])
    async with over_socket(push, keys, after=position) as device:
        await device.until("feed.reset")
        rid = (await client.post("/v1/responses", json={"input": "y"})).json()["id"]
        await device.until("response.ended", response_id=rid)
    other = "00000000" + position[8:]
    async with over_sse(push, keys, after=other) as device:
        await device.until("feed.reset")


async def test_what_is_no_position_is_refused(push: gp.Listening, keys: gp.Keys) -> None:
    headers = {"authorization": f"Bearer {keys.token('alice')}"}
    async with httpx.AsyncClient(base_url=push.url, headers=headers) as client:
        for wrong in ("1", "x-1-1", "00000000-1-", "0" * 300):
            got = await client.get("/v1/feed", params={"after": wrong})
            assert (got.status_code, got.json()["error"]["param"]) == (400, "after")
    async with httpx.AsyncClient(base_url=push.url) as nobody:
        assert (await nobody.get("/v1/feed")).status_code == 401


@pytest.mark.nightly
async def test_the_end_is_told_once_also_where_the_worker_that_began_is_killed(
    parts: archive_parts.Parts, keys: gp.Keys
) -> None:
    own = await asyncio.to_thread(parts.with_another_pool, "feed-lost")
    with own.gateway("feed-1") as gateway, own.push("push-feed") as push:
        async with gateway.client() as client, over_sse(push, keys) as device:
            name = await made(client)
            await device.until("feed.ready")
            with own.worker("feed-worker-1") as first:
                asked = asyncio.create_task(turn(client, name, "long", tokens=80, pace_ms=40))
                begun = await device.until("response.started", conversation_id=name)
                log_ = first.log.read_text()
                first.kill()
            assert "response_claimed" in log_
            assert "response_ended" not in log_
            with own.worker("feed-worker-2") as second:
                got = (await asked).json()
                assert got["status"] == "completed"
                ended = await device.until("response.ended", response_id=got["id"])
                assert "response_taken_over" in second.log.read_text()
            assert ended["status"] == "completed"
            assert begun["response_id"] == got["id"]
            kinds = [e["type"] for e in device.events if e.get("response_id") == got["id"]]
            assert [k for k in kinds if k.startswith("response.")] == [
                "response.started",
                "response.ended",
            ]


async def test_feeds_end_with_their_revocation_and_their_service(
    parts: archive_parts.Parts,
    gateway: gp.Gateway,
    client: httpx.AsyncClient,
    push: gp.Listening,
    keys: gp.Keys,
) -> None:
    """And go on elsewhere from their position, with nothing missing and nothing twice."""
    with parts.push("push-drained") as drained:
        await made(client, title="before")
        async with following(drained, keys.token("mallory")) as ended:
            async with gateway.client("root", ("admin",)) as admin:
                done = await admin.post("/v1/admin/revocations", json={"subject": "mallory"})
                assert done.status_code == 201
            assert await ended == 4500
        async with over_sse(drained, keys) as device:
            await device.until("feed.ready")
            name = await made(client, title="seen")
            await device.until("conversation.created", conversation_id=name)
            position = device.position
        async with following(drained, keys.token("alice")) as ended:
            drained.child.terminate()
            assert await ended == 4002
        missed = await made(client, title="missed")
    async with over_sse(push, keys, after=position) as device:
        await device.until("feed.ready")
        created = [e for e in device.events if e["type"] == "conversation.created"]
        assert [e["conversation_id"] for e in created] == [missed]


@contextlib.asynccontextmanager
async def following(push: gp.Listening, credential: str) -> AsyncIterator[Awaitable[int]]:
    """Follows a feed over SSE and over a socket. Gives the socket's close code, once both have
    ended; the body of the other was broken off."""
    headers = {"authorization": f"Bearer {credential}"}
    url = push.url.replace("http", "ws") + "/v1/watch"

    async def ends(lines: AsyncIterator[str], socket: ClientConnection) -> int:
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in lines:
                pass
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv()
        assert socket.close_code is not None
        return int(socket.close_code)

    async with (
        httpx.AsyncClient(base_url=push.url, headers=headers, timeout=60) as client,
        client.stream("GET", "/v1/feed") as stream,
        connect(url, additional_headers=headers) as socket,
    ):
        assert stream.status_code == 200
        await socket.send(json.dumps({"type": "feed"}))
        assert "feed.ready" in str(await socket.recv())
        yield asyncio.wait_for(ends(stream.aiter_lines(), socket), 60)
