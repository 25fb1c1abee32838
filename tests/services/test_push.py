"""The push service as a process of its own, on real Kafka and Redis. The test plays gateway and
worker: it writes the records itself. One process serves all tests but the one that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from websockets.asyncio.client import connect

from tailrace import log
from tailrace.auth.principal import Principal
from tailrace.protocol import events, fold, ids, records, topics
from tailrace.store.redis_store import RedisStore
from tailrace.store.tickets import Tickets
from tests.support import compact_reader, local, waiting
from tests.support import gateway_process as gp

# A slow client reads nothing for a while, which a client during one burst does not.
BURST_PAUSE_S = 1.0


@dataclass
class World:
    """A push process, and the means to write a response's records by hand. `pool` has no worker."""

    service: gp.Listening
    keys: gp.Keys
    pool: str
    writer: log.Writer
    layout: log.Layout
    offsets: log.Offsets
    redis: str

    @property
    def base(self) -> str:
        return self.service.url

    def headers(
        self, subject: str = "alice", ttl: int = 3600, age_s: float = 0.0
    ) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys.token(subject, ttl, age_s)}"}

    @property
    def ws(self) -> str:
        return self.base.replace("http", "ws", 1) + "/v1/watch"

    async def request(
        self, subject: str = "alice", partition: int = 1, background: bool = False
    ) -> records.Request:
        end = (await self.offsets.ends(topics.TOKENS, [partition]))[partition]
        rid = ids.mint(ids.Address(self.layout.tag, partition, end), os.urandom(ids.RANDOM_BYTES))
        made = records.Request(
            rid,
            records.Owner(gp.ISS, subject),
            "m",
            [{"role": "user", "content": "hi"}],
            records.Sampling(100),
            events.echo(rid, 1, "m", background=background),
        )
        await self.writer.append(
            topics.requests(self.pool, "interactive"), partition, rid, records.encode(made)
        )
        return made

    def put(self, rid: str, record: records.TokenRecord) -> asyncio.Future[log.Appended]:
        return self.writer.append(
            topics.TOKENS, ids.parse(rid).partition, rid, records.encode(record)
        )


@dataclass
class Author:
    """A worker by hand: claims, writes tokens, ends."""

    world: World
    request: records.Request
    own: str = "own-1"
    prev: str | None = None
    state: fold.Fold = field(default_factory=fold.Fold)
    offset: int = 0

    async def say(self, record: records.TokenRecord) -> None:
        self.offset += 1
        self.state.apply(record, self.offset)
        await self.world.put(self.request.rid, record)

    async def claim(self) -> None:
        r = self.request
        topic = topics.requests(self.world.pool, "interactive")
        await self.say(
            records.Claim(
                r.rid, self.own, self.prev, r.owner, "w", topic, 0, "rev", "tok", echo=r.echo
            )
        )

    async def token(self, text: str) -> None:
        await self.say(
            records.Tok(
                self.request.rid,
                self.own,
                self.state.next,
                [self.state.next + 7],
                text,
                self.state.h,
            )
        )

    async def end(self, reason: str = "stop") -> None:
        await self.say(
            records.End(
                self.request.rid,
                self.own,
                self.state.next,
                reason,
                self.state.h,
                usage=records.Usage(3, self.state.next),
            )
        )


@dataclass(frozen=True)
class Place:
    """What a push process is started with."""

    folder: Path
    kafka: str
    redis: str
    pool: str
    keys: gp.Keys

    def push(self, name: str = "push-1") -> contextlib.AbstractContextManager[gp.Listening]:
        return gp.push(self.folder, self.kafka, self.redis, self.pool, self.keys, name)


@pytest.fixture(scope="module")
def place(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder, pool = tmp_path_factory.mktemp("push"), f"push-{os.urandom(4).hex()}"
    local.apply_topics(kafka, [pool])
    return Place(folder, kafka, redis_url, pool, gp.Keys.make(folder, leeway_s=30))


@pytest.fixture(scope="module")
def service(place: Place) -> Iterator[gp.Listening]:
    """The push process that the tests share."""
    with place.push() as started:
        yield started


@pytest.fixture
async def world(place: Place, service: gp.Listening) -> AsyncIterator[World]:
    writer, offsets = log.Writer(place.kafka), log.Offsets(place.kafka)
    running = asyncio.create_task(writer.run())
    layout = await log.layout(place.kafka)
    yield World(service, place.keys, place.pool, writer, layout, offsets, place.redis)
    await writer.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await offsets.stop()


async def sse(
    world: World,
    rid: str,
    after: int | None = None,
    subject: str = "alice",
    begun: asyncio.Event | None = None,
) -> list[dict[str, Any]]:
    """Every event up to the end. Sets `begun` once the stream is open."""
    query: dict[str, Any] = {"stream": "true"}
    if after is not None:
        query["starting_after"] = after
    got = []
    async with (
        httpx.AsyncClient(timeout=30.0) as client,
        client.stream(
            "GET", f"{world.base}/v1/responses/{rid}", params=query, headers=world.headers(subject)
        ) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        if begun is not None:
            begun.set()
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    got = [json.loads(line[6:]) for line in lines[:-1]]
    return got


def text_of(series: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in series if e["type"] == "response.output_text.delta")


async def watched(ws: Any, rid: str, deadline: float = 20.0) -> list[dict[str, Any]]:
    """Events of one response until its `watch.done`."""
    out: list[dict[str, Any]] = []
    while True:
        message = json.loads(await asyncio.wait_for(ws.recv(), deadline))
        if message.get("response_id") != rid:
            continue
        assert message["type"] in ("watch.events", "watch.done"), message
        if message["type"] == "watch.done":
            return out
        out += message["events"]


async def answer(world: World, pieces: int = 20, partition: int = 1) -> records.Request:
    request = await world.request(partition=partition)
    author = Author(world, request)
    await author.claim()
    for i in range(pieces):
        await author.token(f"w{i} ")
    await author.end()
    return request


async def test_a_finished_answer_is_replayed_whole_and_from_every_position(world: World) -> None:
    request = await answer(world)
    whole = await sse(world, request.rid)
    assert [e["sequence_number"] for e in whole] == list(range(len(whole)))
    assert text_of(whole) == "".join(f"w{i} " for i in range(20))
    for after in (0, 3, len(whole) // 2, len(whole) - 2):
        assert await sse(world, request.rid, after) == whole[after + 1 :]
    assert await sse(world, request.rid, len(whole) - 1) == []
    assert await sse(world, request.rid, 10_000) == []


async def test_the_same_answer_over_the_watch_socket(world: World) -> None:
    request = await answer(world)
    whole = await sse(world, request.rid)
    async with connect(world.ws, additional_headers=world.headers()) as ws:
        await ws.send(json.dumps({"type": "watch", "response_id": request.rid}))
        assert await watched(ws, request.rid) == whole
        await ws.send(
            json.dumps({"type": "watch", "response_id": request.rid, "starting_after": 5})
        )
        assert await watched(ws, request.rid) == whole[6:]


async def test_what_the_log_has_acknowledged_is_shown_at_once(world: World) -> None:
    """A client that had seen an end at a gateway was told here that the response runs."""
    partition = 2
    async with (
        httpx.AsyncClient(timeout=30.0, base_url=world.base, headers=world.headers()) as client,
        connect(world.ws, additional_headers=world.headers()) as ws,
    ):
        for _ in range(30):
            author = Author(world, await world.request(partition=partition))
            rid = author.request.rid
            await author.claim()
            await ws.send(json.dumps({"type": "watch", "response_id": rid}))
            assert (await client.get(f"/v1/responses/{rid}")).json()["status"] == "in_progress"
            for number in range(20):
                await author.token(f"w{number} ")
            await author.end()
            assert (await client.get(f"/v1/responses/{rid}")).json()["status"] == "completed"


@contextlib.asynccontextmanager
async def watch_socket(world: World, *offered: str) -> AsyncIterator[Any]:
    protocols: Any = offered
    async with connect(
        world.ws, additional_headers=world.headers(), subprotocols=protocols
    ) as socket:
        assert socket.subprotocol == offered[0]
        yield socket


async def raw_until(ws: Any, *ends: str) -> list[str]:
    """The messages up to the last one of these types, one for each."""
    raw: list[str] = []
    left = list(ends)
    while left:
        raw.append(str(await asyncio.wait_for(ws.recv(), 20)))
        message = json.loads(raw[-1])
        if isinstance(message, dict) and message["type"] in left:
            left.remove(message["type"])
    return raw


async def test_both_forms_of_the_watch_socket_show_the_same_events(world: World) -> None:
    """Two live answers on a socket of each form, the feed beside them on the compact one, which
    resumes in mid-answer on another socket."""
    requests = [await world.request(partition=p, background=p == 2) for p in (1, 2)]
    one, two = (r.rid for r in requests)
    async with (
        watch_socket(world, "tailrace.v1") as plain,
        watch_socket(world, "tailrace.v2", "tailrace.v1") as compact,
        watch_socket(world, "tailrace.v2", "tailrace.v1") as later,
    ):
        for ws in (plain, compact):
            for rid in (one, two):
                await ws.send(json.dumps({"type": "watch", "response_id": rid}))
        await compact.send(json.dumps({"type": "feed"}))
        authors = [Author(world, r) for r in requests]
        for author in authors:
            await author.claim()
        for i in range(30):
            for author in authors:
                await author.token(f'"{i}é ')
                await asyncio.sleep(0.01)
            if i == 20:  # events of both were seen, and more will come
                seen = {"type": "watch", "response_id": one, "starting_after": 9}
                await later.send(json.dumps(seen))
        for author in authors:
            await author.end()
        told = await raw_until(plain, *["watch.done"] * 2)
        short = await raw_until(compact, *["watch.done"] * 2, "feed.events")
        resumed = await raw_until(later, "watch.done")
    for rid in (one, two):
        messages = [json.loads(each) for each in told]
        events_ = [e for m in messages if m["response_id"] == rid for e in m.get("events", ())]
        assert text_of(events_) == "".join(f'"{i}é ' for i in range(30))
        assert compact_reader.Reader().events(short, rid) == events_
        assert await sse(world, rid) == events_
        if rid == one:
            assert compact_reader.Reader().events(resumed, rid) == events_[10:]
    fed = [json.loads(m) for m in short if m.startswith('{"type":"feed.events"')]
    assert fed[0]["events"][0]["type"] == "feed.ready"
    steady = [m for m in short if m.startswith("[") and "{" not in m]
    texts = [text for m in steady for text in json.loads(m)[1:]]
    assert texts
    around = sum(len(m.encode()) for m in steady) - sum(
        len(json.dumps(text, ensure_ascii=False).encode()) - 2 for text in texts
    )
    assert around / len(texts) <= 15


async def test_a_live_answer_is_followed_from_before_its_claim_to_its_end(world: World) -> None:
    request = await world.request(background=True)
    async with connect(world.ws, additional_headers=world.headers()) as ws:
        await ws.send(json.dumps({"type": "watch", "response_id": request.rid}))
        first = json.loads(await asyncio.wait_for(ws.recv(), 20))
        assert [e["type"] for e in first["events"]] == ["response.created", "response.queued"]
        author = Author(world, request)
        await author.claim()
        for i in range(10):
            await author.token(f"x{i} ")
        await author.end()
        rest = await watched(ws, request.rid)
        assert rest[0]["type"] == "response.in_progress"
        numbers = [e["sequence_number"] for e in first["events"] + rest]
        assert numbers == list(range(len(numbers)))
        assert text_of(rest) == "".join(f"x{i} " for i in range(10))


async def test_a_takeover_and_a_zombie_leave_no_seam(world: World) -> None:
    request = await world.request()
    a = Author(world, request)
    await a.claim()
    for i in range(5):
        await a.token(f"a{i} ")
    b = Author(world, request, own="own-2", prev="own-1", state=a.state, offset=a.offset)
    await b.claim()
    zombie = records.Tok(request.rid, "own-1", 5, [99], "ZOMBIE ", a.state.h)
    await world.put(request.rid, zombie)
    for i in range(5, 10):
        await b.token(f"b{i} ")
    await world.put(request.rid, records.Tok(request.rid, "own-2", 8, [1], "DOUBLE ", "0" * 16))
    await b.end()
    await world.put(request.rid, records.Cancel(request.rid, request.owner))
    series = await sse(world, request.rid)
    assert text_of(series) == "a0 a1 a2 a3 a4 b5 b6 b7 b8 b9 "
    assert series[-1]["type"] == "response.completed"
    assert sum(e["type"] == "response.in_progress" for e in series) == 1


async def test_one_socket_follows_many_and_two_sockets_one(world: World) -> None:
    requests = [await answer(world, pieces=30, partition=p) for p in range(6)]
    async with (
        connect(world.ws, additional_headers=world.headers()) as one,
        connect(world.ws, additional_headers=world.headers()) as two,
    ):
        got: dict[str, list[dict[str, Any]]] = {r.rid: [] for r in requests}
        for r in requests:
            await one.send(json.dumps({"type": "watch", "response_id": r.rid}))
        await two.send(json.dumps({"type": "watch", "response_id": requests[0].rid}))
        done = 0
        while done < len(requests):
            message = json.loads(await asyncio.wait_for(one.recv(), 20))
            if message["type"] == "watch.done":
                done += 1
            else:
                got[message["response_id"]] += message["events"]
        assert await watched(two, requests[0].rid) == got[requests[0].rid]
    for r in requests:
        assert [e["sequence_number"] for e in got[r.rid]] == list(range(len(got[r.rid])))


async def test_another_users_response_is_unknown_over_every_way(world: World) -> None:
    request = await answer(world)
    unknown = ids.mint(ids.parse(request.rid), os.urandom(ids.RANDOM_BYTES))
    async with httpx.AsyncClient(timeout=30.0) as client:
        answers = [
            (
                await client.get(
                    f"{world.base}/v1/responses/{rid}",
                    params=query,
                    headers=world.headers("mallory"),
                )
            )
            for rid in (request.rid, unknown)
            for query in ({}, {"stream": "true"})
        ]
    assert {a.status_code for a in answers} == {404}
    shapes = {a.text.replace(request.rid, "ID").replace(unknown, "ID") for a in answers}
    assert len(shapes) == 1, shapes
    async with connect(world.ws, additional_headers=world.headers("mallory")) as ws:
        for rid in (request.rid, unknown):
            await ws.send(json.dumps({"type": "watch", "response_id": rid}))
            message = json.loads(await asyncio.wait_for(ws.recv(), 20))
            assert (message["type"], message["status"], message["error"]["code"]) == (
                "watch.error",
                404,
                "response_not_found",
            )


async def test_a_deleted_response_is_gone(world: World) -> None:
    request = await answer(world)
    assert await sse(world, request.rid)
    await world.writer.append(
        topics.DELETIONS,
        0,
        request.rid,
        records.encode(records.Deleted(request.rid, request.owner)),
    )
    async with httpx.AsyncClient() as client:

        async def gone() -> bool:
            url = f"{world.base}/v1/responses/{request.rid}"
            return (await client.get(url, headers=world.headers())).status_code == 404

        await waiting.eventually(gone, "push knows of the deletion")


async def test_an_id_of_another_log_is_history_lost(world: World) -> None:
    foreign = ids.mint(ids.Address(b"\0\1\2\3", 1, 0), os.urandom(ids.RANDOM_BYTES))
    async with httpx.AsyncClient() as client:
        got = await client.get(f"{world.base}/v1/responses/{foreign}", headers=world.headers())
    assert got.status_code == 410
    assert got.json()["error"]["code"] == "history_lost"


async def test_a_ticket_is_for_one_socket_of_one_origin(world: World) -> None:
    principal = Principal(gp.ISS, "alice", None, frozenset({"read"}), int(time.time()) + 600)
    async with RedisStore(world.redis) as store:
        good, other = [
            await Tickets(store).mint_ticket(principal, gp.ORIGIN, time.time()) for _ in range(2)
        ]
    protocols: Any = ["tailrace.v1", f"ticket.{good}"]
    async with connect(world.ws, subprotocols=protocols, origin=gp.ORIGIN) as ws:  # type: ignore[arg-type]
        assert ws.subprotocol == "tailrace.v1"
    for offer, origin, status in (
        (good, gp.ORIGIN, 401),
        (other, "http://evil.test", 403),
        ("nonsense", gp.ORIGIN, 401),
    ):
        with pytest.raises(websockets.exceptions.InvalidStatus) as e:
            await connect(world.ws, subprotocols=["tailrace.v1", f"ticket.{offer}"], origin=origin)  # type: ignore[arg-type, list-item]
        assert e.value.response.status_code == status


async def test_a_credential_that_ends_closes_the_socket_with_come_back(world: World) -> None:
    """The issuer's leeway lets a credential that is over still open a socket; the socket ends with
    it. That its end is told before is proven in `tests/unit/tailrace/web/test_credential_timer.py`.
    """
    headers = world.headers(ttl=60, age_s=60)
    async with connect(world.ws, additional_headers=headers) as ws:
        with pytest.raises(websockets.exceptions.ConnectionClosed) as e:
            await asyncio.wait_for(ws.recv(), 60)
    assert e.value.rcvd is not None
    assert e.value.rcvd.code == 4003


async def test_a_stalled_reader_is_closed_and_others_do_not_notice(world: World) -> None:
    request = await world.request()
    author = Author(world, request)
    await author.claim()
    stalled = await connect(
        world.ws, additional_headers=world.headers(), max_queue=1, ping_interval=None
    )
    await stalled.send(json.dumps({"type": "watch", "response_id": request.rid}))
    reading = asyncio.Event()
    reader = asyncio.create_task(sse(world, request.rid, begun=reading))
    await asyncio.wait_for(reading.wait(), 20)
    big = "x" * 60_000
    for i in range(160):  # more than the sockets' own buffers and the outbox together hold
        await author.token(big)
        if i % 40 == 39:
            await asyncio.sleep(BURST_PAUSE_S)
    await author.end()
    series = await asyncio.wait_for(reader, 40)
    assert text_of(series) == big * 160
    stopped_at = -1
    with pytest.raises(websockets.exceptions.ConnectionClosed) as e:  # noqa: PT012 (it ends at whichever message is the last)
        while True:
            message = json.loads(await asyncio.wait_for(stalled.recv(), 40))
            if message["type"] == "watch.events":
                stopped_at = message["events"][-1]["sequence_number"]
    assert e.value.rcvd is None or e.value.rcvd.code == 4001
    assert stopped_at < len(series) - 1
    async with connect(world.ws, additional_headers=world.headers(), max_size=None) as ws:
        await ws.send(
            json.dumps({"type": "watch", "response_id": request.rid, "starting_after": stopped_at})
        )
        assert [e["sequence_number"] for e in await watched(ws, request.rid)] == list(
            range(stopped_at + 1, len(series))
        )


@pytest.fixture
def leaving(place: Place) -> Iterator[gp.Listening]:
    """A push process of the test's own."""
    with place.push("push-2") as started:
        yield started


async def test_draining_tells_clients_to_come_back_and_exits_clean(
    world: World, leaving: gp.Listening
) -> None:
    world.service = leaving
    request = await world.request()
    await Author(world, request).claim()
    async with connect(world.ws, additional_headers=world.headers()) as ws:
        await ws.send(json.dumps({"type": "watch", "response_id": request.rid}))
        await asyncio.wait_for(ws.recv(), 20)
        reading = asyncio.Event()
        broken = asyncio.create_task(sse(world, request.rid, begun=reading))
        await asyncio.wait_for(reading.wait(), 20)
        leaving.child.send_signal(signal.SIGTERM)
        kinds = []
        with pytest.raises(websockets.exceptions.ConnectionClosed) as e:  # noqa: PT012 (it ends at whichever message is the last)
            while True:
                kinds.append(json.loads(await asyncio.wait_for(ws.recv(), 20))["type"])
        assert "watch.draining" in kinds
        assert e.value.rcvd is not None
        assert e.value.rcvd.code == 4002
    with pytest.raises(httpx.RemoteProtocolError):  # an abnormal break, not a clean early end
        await broken
    assert await asyncio.to_thread(leaving.child.wait, 60) == 0
