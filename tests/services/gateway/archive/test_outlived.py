"""Every event of responses of every kind, from the log and then from the archive alone, after all
that can be lost was lost.

`make nightly` has 1,000 responses, other runs 45; `-s` shows its figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tailrace import log
from tailrace.archive import database
from tailrace.protocol import history, topics
from tests.faults import wants
from tests.support import archive_parts, archive_rows, pictures, waiting
from tests.support import gateway_process as gp
from tests.support.long_runs import LONG

pytestmark = pytest.mark.nightly

RESPONSES = 1_000 if LONG else 45
AT_ONCE = 8
SEED = 14
USERS = ("alice", "bob")
UNBOUNDED = '{"requests_rate": 0.0, "tokens_rate": 0.0}'

Body = dict[str, Any]


def text(rng: random.Random, source: str) -> Body:
    return {"input": f"hi {rng.random()}", "metadata": gp.cues(rng.randrange(1, 60), 0)}


def many_frames(rng: random.Random, source: str) -> Body:
    """The worker writes each of its tokens alone."""
    return {"input": f"hi {rng.random()}", "metadata": gp.cues(rng.randrange(100, 250), 2)}


def items(rng: random.Random, source: str) -> Body:
    """Tools, reasoning, formats, log probabilities, stop strings, in many mixtures."""
    drawn = wants.draw(rng, 60)
    return {"input": f"{rng.random()} says hello\n{drawn.pop('commands')}", **drawn}


def everything(rng: random.Random, source: str) -> Body:
    drawn = dict(wants.EVERYTHING)
    return {"input": f"{rng.random()}\n{drawn.pop('commands')}", **drawn}


def stopped(rng: random.Random, source: str) -> Body:
    return {**text(rng, source), "stop": [rng.choice("aeiou")]}


def incomplete(rng: random.Random, source: str) -> Body:
    return {"input": f"{rng.random()}", "metadata": gp.cues(60, 0), "max_output_tokens": 16}


def failed(rng: random.Random, source: str) -> Body:
    at = rng.randrange(0, 10)
    return {"input": "hi", "metadata": gp.cues(30, 1, fault="error", fault_at=at)}


def cancelled(rng: random.Random, source: str) -> Body:
    return {"input": "hi", "metadata": gp.cues(3_000, 20), "background": True}


def shown(rng: random.Random, source: str) -> Body:
    parts = [{"type": "input_image", "image_url": pictures.url(data)} for data in wants.images(rng)]
    told = [{"type": "input_text", "text": "What?"}, *parts]
    return {"input": [{"role": "user", "content": told}]}


def fork(rng: random.Random, source: str) -> Body:
    of = {"response_id": source, "at": rng.randrange(0, 2), "replace": rng.choice(("", " 天"))}
    return {"fork": of, "metadata": gp.cues(rng.randrange(3, 40), 0)}


def next_turn(rng: random.Random, source: str) -> Body:
    return {"input": "and then?", "previous_response_id": source, "metadata": gp.cues(9, 0)}


def choices(rng: random.Random, source: str) -> Body:
    messages = [{"role": "user", "content": f"hi {rng.random()}"}]
    return {"messages": messages, "n": 2, "metadata": gp.cues(rng.randrange(2, 30), 0)}


def large(rng: random.Random, source: str) -> Body:
    """What is kept of it fills several records."""
    return {
        "input": f"hi {rng.random()}",
        "metadata": gp.cues(3_500, 0),
        "max_output_tokens": 3_900,
        "include": wants.LOGPROBS,
        "top_logprobs": 20,
    }


Kind = Callable[[random.Random, str], Body]
KINDS: dict[Kind, float] = {
    text: 20,
    many_frames: 6,
    items: 30,
    everything: 3,
    stopped: 5,
    incomplete: 4,
    failed: 4,
    cancelled: 3,
    shown: 5,
    fork: 10,
    next_turn: 6,
    choices: 4,
    large: 0.4,
}


class Asking:
    """Creates responses. `made`: ids of those that may be forked and continued, by user."""

    def __init__(self, clients: dict[str, httpx.AsyncClient], seed: int) -> None:
        self.clients = clients
        self.rng = random.Random(seed)
        self.made: dict[str, list[str]] = {user: [] for user in clients}
        self.count = Counter[str]()
        self.expected = 0

    async def all(self, count: int) -> None:
        """So many, of every kind at least two."""
        for user in self.clients:
            await self.one(text, user)
        twice = [kind for kind in KINDS for _ in range(2)]
        rest = self.rng.choices(list(KINDS), list(KINDS.values()), k=max(0, count - len(twice)))
        turns = asyncio.Semaphore(AT_ONCE)

        async def in_turn(kind: Kind) -> None:
            async with turns:
                await self.one(kind, self.rng.choice(USERS))

        async with asyncio.TaskGroup() as tasks:
            for kind in [*twice, *rest]:
                tasks.create_task(in_turn(kind))

    async def one(self, kind: Kind, user: str) -> None:
        client = self.clients[user]
        source = self.rng.choice(self.made[user]) if self.made[user] else ""
        body = kind(self.rng, source)
        path = "/v1/chat/completions" if "messages" in body else "/v1/responses"
        got = await client.post(path, json=body, timeout=120)
        assert got.status_code == 200, (kind.__name__, got.text)
        self.count[kind.__name__] += 1
        self.expected += body.get("n", 1)
        if kind is cancelled:
            rid = got.json()["id"]
            await asyncio.sleep(self.rng.uniform(0, 0.4))
            assert (await client.post(f"/v1/responses/{rid}/cancel")).status_code == 200
        elif kind is text:
            self.made[user].append(got.json()["id"])


async def read(
    clients: dict[str, httpx.AsyncClient], rids: dict[str, str]
) -> dict[str, tuple[bytes, bytes]]:
    """The events of all, and their input."""
    turns, found = asyncio.Semaphore(4), dict[str, tuple[bytes, bytes]]()

    async def one(rid: str, user: str) -> None:
        async with turns:
            events = await clients[user].get(f"/v1/responses/{rid}?stream=true", timeout=120)
            assert events.status_code == 200, events.text
            whole = await clients[user].get(f"/v1/responses/{rid}", timeout=120)
            assert whole.status_code == 200, whole.text
            found[rid] = events.content, whole.content

    async with asyncio.TaskGroup() as tasks:
        for rid, user in rids.items():
            tasks.create_task(one(rid, user))
    return found


async def inputs(clients: dict[str, httpx.AsyncClient], rids: dict[str, str]) -> dict[str, bytes]:
    return {
        rid: (await clients[user].get(f"/v1/responses/{rid}/input_items")).content
        for rid, user in rids.items()
    }


def rows(file: Path) -> dict[str, str]:
    """What the archive has: ids, and whose they are."""
    if not file.exists():
        return {}
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        try:
            found = connection.execute("SELECT rid, owner FROM responses").fetchall()
        except sqlite3.OperationalError:
            return {}
    return {rid: next(user for user in USERS if user in owner) for rid, owner in found}


async def kept_in(kafka: str) -> tuple[int, int, int]:
    """What `llm.history` holds: records, bytes of them, and HISTORYs of several records."""
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)
    count = size = several = 0
    try:
        partitions = range(topics.partitions_of(topics.HISTORY))
        for p, end in (await offsets.ends(topics.HISTORY, partitions)).items():
            async for batch in replays.read(topics.HISTORY, p, 0, end):
                for r in batch:
                    count, size = count + 1, size + len(r.key or b"") + len(r.value or b"")
                    named = history.part_from_key(r.key)
                    several += named is not None and named[1] == 1
    finally:
        await offsets.stop()
        await replays.stop()
    return count, size, several


async def dumped(url: str) -> bytes:
    engine = database.engine(url)
    try:
        return await archive_rows.dump(engine)
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def users(base: str, keys: gp.Keys) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        yield {
            user: await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=base, headers={"Authorization": f"Bearer {keys.token(user)}"}
                )
            )
            for user in USERS
        }


@pytest.fixture
def parts(tmp_path_factory: pytest.TempPathFactory, keys: gp.Keys) -> Iterator[archive_parts.Parts]:
    folder = tmp_path_factory.mktemp("outlived")
    with archive_parts.parts(folder, keys, "outlived") as made:
        yield made


@pytest.mark.timeout(1_800 if LONG else 300)
async def test_every_event_outlives_log_archive_redis_and_every_process(
    parts: archive_parts.Parts,
) -> None:
    file = parts.folder / "archive.sqlite3"
    with contextlib.ExitStack() as running:
        archive = running.enter_context(parts.archive())
        killed: list[gp.Process] = [
            archive,
            running.enter_context(parts.worker("worker-1")),
            running.enter_context(parts.worker("worker-2")),
            running.enter_context(parts.push("push-1")),
            gateway := running.enter_context(parts.gateway("gateway-1", TAILRACE_LIMITS=UNBOUNDED)),
        ]
        async with users(gateway.url, parts.keys) as clients:
            asking = Asking(clients, SEED)
            await asking.all(RESPONSES)
            await waiting.eventually(
                lambda: asyncio.to_thread(lambda: len(rows(file)) == asking.expected),
                f"{asking.expected} responses in the archive",
                within_s=60,
            )
            rids = rows(file)
            before = await read(clients, rids)
            asked = await inputs(clients, rids)
        statuses = Counter(json.loads(whole)["status"] for _, whole in before.values())
        assert {"completed", "incomplete", "failed", "cancelled"} == set(statuses)
        cpu = psutil.Process(archive.child.pid).cpu_times()
        folding_s = cpu.user + cpu.system
        for each in killed:
            each.kill()
    built = await dumped(parts.url)
    records, size, several = await kept_in(parts.kafka)
    assert several >= 2, f"no HISTORY of several records: {size} bytes in {records}"

    parts.broker.kill()
    parts.store.kill()
    parts.broker.start()
    parts.store.start()
    parts.drop()
    await parts.retention(topics.FILES)

    with parts.archive() as archive:
        first_s = last_s = time.monotonic()
        first = 0
        while len(rows(file)) < len(rids):
            last_s = time.monotonic()
            if not first:
                first, first_s = len(rows(file)), last_s
            assert last_s < first_s + 120, f"{len(rows(file))} of {len(rids)} built again"
            await asyncio.sleep(0.005)
        seconds = time.monotonic() - first_s
        await waiting.eventually(
            lambda: _equal(parts.url, built), "an archive that is equal to the one before"
        )
        cpu = psutil.Process(archive.child.pid).cpu_times()
        rebuild_s = cpu.user + cpu.system
        with parts.gateway("gateway-2", TAILRACE_LIMITS=UNBOUNDED) as gateway:
            async with users(gateway.url, parts.keys) as clients:
                again = await read(clients, rids)
                assert [rid for rid in rids if again[rid] != before[rid]] == []
                assert await inputs(clients, rids) == asked
        with parts.push("push-2") as push:
            async with users(push.url, parts.keys) as clients:
                again = await read(clients, rids)
                assert [rid for rid in rids if again[rid] != before[rid]] == []
    events = sum(body.count(b'"sequence_number":') for body, _ in before.values())
    assert events > 10 * len(rids)
    print(
        f"\n{len(rids)} responses ({dict(asking.count)}; {dict(statuses)}), {events} events, "
        f"{sum(len(body) for body, _ in before.values()) / 1e6:.1f} MB of events; llm.history: "
        f"{records} records, {size / 1e6:.2f} MB, {several} of several records; the archive's "
        f"process while they were made: {folding_s / len(rids) * 1e3:.2f} ms of CPU each; built "
        f"again: {len(rids) - first} in {seconds:.2f} s "
        f"({(len(rids) - first) / max(seconds, 1e-3):.0f}/s), {rebuild_s:.2f} s of CPU with start"
    )


async def _equal(url: str, built: bytes) -> bool:
    return await dumped(url) == built
