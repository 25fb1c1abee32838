"""Forged records: what a client that may write to Kafka, and has no record key, can and cannot do.

The forger reads the log, so it knows the owner, the fencing token and the length of every answer,
and writes exactly what the service would write.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import aiokafka
import httpx
import msgspec
import pytest

from tailrace import log
from tailrace.protocol import fold, ids, record_tags, records, topics
from tests.attacks import room
from tests.faults import stage
from tests.support import waiting
from worker.engines import scripted

TOKENS: Final = 200
QUESTION: Final = "Tell me of the sea."
BODY: Final[dict[str, Any]] = {
    "model": stage.MODEL,
    "input": QUESTION,
    "background": True,
    "metadata": {"script_tokens": str(TOKENS), "script_pace_ms": "25"},
}
REQUESTS: Final = topics.requests(stage.POOL, "interactive")
SURELY_READ_S: Final = 60.0


@dataclass
class Victim:
    """A response that runs, as the log has it.

    Attributes:
        first: its newest claim.
        request: its request record.
        last: its newest frame.
    """

    rid: str
    partition: int
    first: records.Claim
    request: records.Request
    last: records.Tok
    headers: log.Headers

    @property
    def length(self) -> int:
        """Number of tokens up to the newest frame."""
        return self.last.seq + len(self.last.ids)

    @property
    def digest(self) -> str:
        """The rolling hash behind the newest frame."""
        return fold.roll(self.last.parent, self.last.ids)


@dataclass
class Forger:
    """Writes to the log as any client with a connection to Kafka can."""

    producer: aiokafka.AIOKafkaProducer
    places: list[tuple[str, int, int]]

    async def write(
        self,
        topic: str,
        partition: int,
        key: str,
        record: records.Record,
        headers: log.Headers = (),
    ) -> None:
        meta = await self.producer.send_and_wait(
            topic,
            key=key.encode(),
            value=records.encode(record),
            partition=partition,
            headers=list(headers),
        )
        self.places.append((topic, meta.partition, meta.offset))


@contextlib.asynccontextmanager
async def forging(kafka: str) -> AsyncIterator[Forger]:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    try:
        yield Forger(producer, [])
    finally:
        await producer.stop()


def client(deployment: room.Deployment, user: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=deployment.gateway(1).url, headers=deployment.headers(user), timeout=30.0
    )


class Log(Protocol):
    """Of a deployment: what its log holds."""

    def records(self, topic: str) -> list[log.Record]: ...


async def running(deployment: Log, http: httpx.AsyncClient) -> Victim:
    """A response with a few tokens, by its owner."""
    made = await http.post("/v1/responses", json=BODY)
    rid = made.json()["id"]

    async def begun() -> Any:
        claim = last = request = None
        headers: log.Headers = ()
        for r in deployment.records(topics.TOKENS):
            record = records.token_of(r.key, r.value)
            if record is not None and record.rid == rid:
                if isinstance(record, records.Claim):
                    claim = record
                if isinstance(record, records.Tok):
                    last, headers = record, r.headers
        for r in deployment.records(REQUESTS):
            request = records.request_of(r.key, r.value) if r.key == rid.encode() else request
        if claim is None or last is None or request is None or last.seq < 5:
            return None
        return Victim(rid, ids.parse(rid).partition, claim, request, last, headers)

    found: Victim = await waiting.eventually(begun, f"{rid} runs")
    return found


async def finished(http: httpx.AsyncClient, rid: str) -> Any:
    async def asked() -> Any:
        found = (await http.get(f"/v1/responses/{rid}")).json()
        return found if found.get("status") not in ("queued", "in_progress") else None

    return await waiting.eventually(asked, f"{rid} ends", within_s=SURELY_READ_S)


def end(v: Victim) -> records.End:
    return records.End(v.rid, v.first.own, v.length, "stop", v.digest)


def frame(v: Victim) -> records.Tok:
    return records.Tok(v.rid, v.first.own, v.length, [1, 2], " forged", v.digest)


def claim(v: Victim) -> records.Claim:
    return msgspec.structs.replace(v.first, own="forged", prev=v.first.own, worker="forger")


# What the forger writes about another user's running response.
ABOUT_A_RESPONSE: Final[dict[str, Callable[[Victim], tuple[str, records.Record]]]] = {
    "CANCEL of its owner": lambda v: (
        topics.TOKENS,
        records.Cancel(v.rid, v.first.owner, v.first.echo),
    ),
    "CANCEL of a stranger": lambda v: (
        topics.TOKENS,
        records.Cancel(v.rid, records.Owner(v.first.owner.issuer, "mallory")),
    ),
    "DELETED of its owner": lambda v: (
        topics.DELETIONS,
        records.Deleted(v.rid, v.first.owner),
    ),
    "DELETED of a stranger": lambda v: (
        topics.DELETIONS,
        records.Deleted(v.rid, records.Owner(v.first.owner.issuer, "mallory")),
    ),
    "CLAIM": lambda v: (topics.TOKENS, claim(v)),
    "TOK": lambda v: (topics.TOKENS, frame(v)),
    "END": lambda v: (topics.TOKENS, end(v)),
    "YIELD": lambda v: (
        topics.TOKENS,
        records.Yield(v.rid, v.first.own, v.length),
    ),
}


async def forge(
    forger: Forger, v: Victim, kind: str, headers: log.Headers = ()
) -> tuple[str, int, int]:
    topic, record = ABOUT_A_RESPONSE[kind](v)
    partition = v.partition if topic == topics.TOKENS else 0
    await forger.write(topic, partition, v.rid, record, headers)
    return forger.places[-1]


def tagged_by_its_own_key(topic: str, partition: int, key: bytes, value: bytes) -> log.Headers:
    """The tag of a forger who knows how tags are made, and has made keys."""
    keys = [
        record_tags.Key(f"{role}-1", role, "Zm9yZ2VkZm9yZ2VkZm9yZ2VkZm9yZ2VkZm9yZ2VkZm9yZ2Vk")
        for role in record_tags.ROLES
    ]
    ring = record_tags.Keyring(record_tags.KeyFile(keys))
    return [("tag", ring.tag("worker-1", topic, partition, key, value))]


def forged_at(deployment: room.Deployment) -> float:
    """Forged records that the services have counted, together."""
    return sum(s.metric("tailrace_forged_records_total") for s in deployment.services.values())


def verdict(deployment: room.Deployment) -> dict[str, Any]:
    """What `tailrace verify` says of the deployment's log."""
    done = deployment.command("verify", "--kafka", deployment.kafka, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_no_forged_record_moves_a_response(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    """Each kind on a response of its own, without a tag, with one of the forger's making, and with
    the tag of a genuine record."""
    expected = scripted.expected_text([{"role": "user", "content": QUESTION}], TOKENS)
    before = forged_at(deployment)
    async with client(deployment, "victim") as http, forging(deployment.kafka) as forger:
        with attack("forged records about a running response", "no effect; counted") as row:
            victims = [await running(deployment, http) for _ in ABOUT_A_RESPONSE]
            for v, kind in zip(victims, ABOUT_A_RESPONSE, strict=True):
                topic, record = ABOUT_A_RESPONSE[kind](v)
                own = tagged_by_its_own_key(
                    topic, v.partition, v.rid.encode(), records.encode(record)
                )
                for headers in ((), own, v.headers):
                    await forge(forger, v, kind, headers)
            for v, kind in zip(victims, ABOUT_A_RESPONSE, strict=True):
                ended = await finished(http, v.rid)
                assert ended["status"] == "completed", kind
                assert ended["output"][0]["content"][0]["text"] == expected, kind
            counted = forged_at(deployment) - before
            row.note = f"{len(forger.places)} forged, {counted:.0f} times counted by readers"
            assert counted >= len(forger.places)
    found = await asyncio.to_thread(verdict, deployment)
    assert failed(found) == {"A2"}
    assert found["checks"]["A2"]["failed"] >= len(forger.places)
    named = [each["what"] for each in found["checks"]["A2"]["counterexamples"]]
    assert all(re.match(r"llm\.\S+\[\d+\] at \d+: ", what) for what in named), named


async def test_no_forged_request_runs(deployment: room.Deployment, attack: room.Attacks) -> None:
    async with client(deployment, "victim") as http, forging(deployment.kafka) as forger:
        v = await running(deployment, http)
        rid = v.rid[:-1] + ("a" if v.rid[-1] != "a" else "b")
        request = msgspec.structs.replace(v.request, rid=rid, append_by=0, echo={"id": rid})
        with attack("a forged request", "never claimed, unknown to its owner"):
            for headers in ((), v.headers):
                await forger.write(REQUESTS, v.partition, rid, request, headers)
            # A question behind it in the same partition has been claimed, so it was read.
            await finished(http, v.rid)
            later: list[str] = []
            while not any(ids.parse(each).partition == v.partition for each in later):
                later.append((await http.post("/v1/responses", json=BODY)).json()["id"])
            for each in later:
                await http.post(f"/v1/responses/{each}/cancel")
            for each in later:
                await finished(http, each)
            assert (await http.get(f"/v1/responses/{rid}")).status_code == 404
    assert not [r for r in deployment.records(topics.TOKENS) if r.key == rid.encode()]


async def test_no_forged_revocation_shuts_anybody_out(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    async with client(deployment, "victim") as http, forging(deployment.kafka) as forger:
        v = await running(deployment, http)
        owner, key = v.first.owner, "0123456789abcdef"
        with attack("a forged revocation", "lets every user in as before") as row:
            before = forged_at(deployment)
            revoked = records.Revoked(key, owner.issuer, 2**40, subject=owner.subject)
            await forger.write(topics.REVOCATIONS, 0, key, revoked)
            readers = ("gateway", "push")
            everywhere = sum(name.startswith(readers) for name in deployment.services)

            async def read() -> bool:
                return forged_at(deployment) - before >= everywhere

            await waiting.eventually(read, "every service has read it")
            assert (await http.get("/v1/models")).status_code == 200
            row.note = f"counted by {everywhere} services"


class Unsigned:
    """A small deployment without record keys."""

    def __init__(self, made: stage.Stage) -> None:
        self.stage = made
        self.kafka: str = made.kafka.bootstrap

    def records(self, topic: str) -> list[log.Record]:
        return room.records_of(self.kafka, topic)

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.stage.token('victim')}"}
        url = self.stage.services["gateway-1"].url
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=30.0)

    def ended(self, rid: str) -> bool:
        found = [records.token_of(r.key, r.value) for r in self.records(topics.TOKENS)]
        return any(isinstance(r, records.End) and r.rid == rid for r in found)


@pytest.fixture
def unsigned(tmp_path: Path) -> Iterator[Unsigned]:
    made = stage.Stage(tmp_path, workers=1, gateways=1, pushes=1, traced=False).open()
    try:
        yield Unsigned(made)
    finally:
        made.close()


async def test_without_keys_a_stranger_is_ignored_and_a_copied_owner_is_obeyed(
    unsigned: Unsigned,
) -> None:
    """Readers know whose response it is from the log, and so does a forger. That is what the keys
    are for."""
    text = scripted.expected_text([{"role": "user", "content": QUESTION}], TOKENS)
    async with unsigned.client() as http, forging(unsigned.kafka) as forger:
        for kind in ("CANCEL of a stranger", "CANCEL of its owner"):
            v = await running(unsigned, http)
            await forge(forger, v, kind)
            ended = await finished(http, v.rid)
            whole = ended["status"] == "completed" and (
                ended["output"][0]["content"][0]["text"] == text
            )
            assert whole == (kind == "CANCEL of a stranger"), ended["status"]
        for kind, answer in (("DELETED of a stranger", 200), ("DELETED of its owner", 404)):
            v = await running(unsigned, http)

            async def over(v: Victim = v) -> bool:
                return unsigned.ended(v.rid)

            await waiting.eventually(over, "it ends")
            await forge(forger, v, kind)

            async def answers(v: Victim = v, answer: int = answer) -> bool:
                return (await http.get(f"/v1/responses/{v.rid}")).status_code == answer

            await waiting.eventually(answers, f"{kind}: {answer}")
        assert (await http.get(f"/v1/responses/{v.rid}")).status_code == 404
    done = await asyncio.to_thread(
        unsigned.stage.command, "verify", "--kafka", unsigned.kafka, "--json"
    )
    found = json.loads(done.stdout)
    assert failed(found) == {"A1"}
    assert found["checks"]["A2"]["verdict"] == "-"


def failed(found: dict[str, Any]) -> set[str]:
    """Names of the checks that failed."""
    return {name for name, check in found["checks"].items() if check["verdict"] == "fail"}
