"""A gateway whose tails are behind says nothing that another one has told otherwise: it waits, and
where it waits for too long, that is 503 and not an answer.

On a busy machine a turn was refused (400, which no client tries again) because the response before
it "was still in progress", which had ended for the client at another gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tailrace.auth import revocation_list
from tailrace.delivery import catch_up, whole_topic
from tailrace.protocol import ids, records, topics
from tests.support import gateway_parts, gateway_process, log_contract, waiting
from tests.unit.gateway.test_app import Service, serving

RESPONSES = "/v1/responses"
REVOCATIONS = "/v1/admin/revocations"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path_factory.mktemp("keys"))


@contextlib.asynccontextmanager
async def behind(
    keys: gateway_process.Keys,
) -> AsyncIterator[tuple[Service, httpx.AsyncClient, str]]:
    """A gateway that does not read that a response has ended, which runs here; and its id."""
    async with serving(keys) as service, service.client() as client:
        await client.post(RESPONSES, json={"input": "1", "background": True})
        request = await service.asked()
        gateway_parts.put_answer(service.broker, request, "one", end=False)
        position = len(service.broker.records(topics.TOKENS, 0))
        await until_status(client, request.rid, "in_progress")
        service.broker.lag(topics.TOKENS, 0, position)
        gateway_parts.put_answer(service.broker, request, "one")
        yield service, client, request.rid


async def until_status(client: httpx.AsyncClient, rid: str, status: str) -> None:
    async def reached() -> bool:
        return bool((await client.get(f"{RESPONSES}/{rid}")).json()["status"] == status)

    await waiting.eventually(reached, f"it is {status}")


def unknown(service: Service) -> str:
    """An id of this log that no response has."""
    return ids.mint(ids.Address(service.broker.layout.tag, 0, 0), b"u" * ids.RANDOM_BYTES)


async def test_what_has_ended_elsewhere_is_shown_and_continued_once_it_was_read(
    keys: gateway_process.Keys,
) -> None:
    async with behind(keys) as (service, client, rid):
        turn = {"input": "2", "previous_response_id": rid, "background": True}
        tasks = [
            asyncio.create_task(client.get(f"{RESPONSES}/{rid}")),
            asyncio.create_task(client.post(RESPONSES, json=turn)),
            asyncio.create_task(client.get(f"{RESPONSES}/{unknown(service)}")),
        ]
        done, _ = await asyncio.wait(tasks, timeout=0.1)
        assert not done
        service.broker.catch_up(topics.TOKENS, 0)
        first, continuation, missing = await asyncio.gather(*tasks)
        assert first.json()["status"] == "completed"
        assert continuation.status_code == 200, continuation.text
        assert missing.status_code == 404
        dialogue = [(m["role"], m["content"]) for m in (await service.asked(2)).messages]
        assert dialogue == [("user", "1"), ("assistant", "one"), ("user", "2")]


async def test_behind_for_too_long_is_503_over_http_sse_and_websocket(
    keys: gateway_process.Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind(keys) as (service, client, rid):
        monkeypatch.setattr(catch_up, "WITHIN_S", 0.05)
        turn = {"input": "2", "previous_response_id": rid}
        missing = unknown(service)
        for answer in (
            await client.get(f"{RESPONSES}/{rid}"),
            await client.get(f"{RESPONSES}/{missing}"),
            await client.get(f"{RESPONSES}/{missing}?stream=true"),
            await client.get(f"{RESPONSES}/{missing}/input_items"),
            await client.post(f"{RESPONSES}/{missing}/cancel"),
            await client.delete(f"{RESPONSES}/{missing}"),
            await client.post(RESPONSES, json=turn),
            await client.post(RESPONSES, json={**turn, "stream": True}),
        ):
            label = f"{answer.request.method} {answer.request.url}: {answer.text}"
            assert answer.status_code == 503, label
            assert answer.json()["error"]["code"] == "service_unavailable", label
            assert int(answer.headers["retry-after"]) >= 1, label
        async with service.socket() as socket:
            await socket.send(json.dumps({"type": "response.create", **turn}))
            reply = json.loads(await asyncio.wait_for(socket.recv(), 5))
            assert (reply["type"], reply["status"]) == ("error", 503)
        async with service.socket(path="/v1/watch") as socket:
            await socket.send(json.dumps({"type": "watch", "response_id": missing}))
            reply = json.loads(await asyncio.wait_for(socket.recv(), 5))
            assert (reply["type"], reply["status"]) == ("watch.error", 503)
        # What is known needs no end: the input of a response that runs.
        assert (await client.get(f"{RESPONSES}/{rid}/input_items")).status_code == 200
        assert len(service.requests()) == 1, "nothing was taken"


async def test_a_revocation_made_elsewhere_is_listed_and_can_be_taken_back(
    keys: gateway_process.Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(keys) as service, service.client("ops", scopes=["admin"]) as admin:
        broker, until = service.broker, revocation_list.issued_until(time.time())
        record = records.Revoked("0" * 16, gateway_process.ISS, until, subject="bob")
        broker.lag(topics.REVOCATIONS, 0, 0)
        broker.put_record(topics.REVOCATIONS, 0, record, record.id)
        with monkeypatch.context() as patch:
            patch.setattr(whole_topic, "CAUGHT_UP_S", 0.05)
            assert (await admin.get(REVOCATIONS)).status_code == 503
            assert (await admin.delete(f"{REVOCATIONS}/{record.id}")).status_code == 503
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(admin.get(REVOCATIONS)),
            asyncio.create_task(admin.delete(f"{REVOCATIONS}/{record.id}")),
        ]
        done, _ = await asyncio.wait(tasks, timeout=0.1)
        assert not done
        broker.catch_up(topics.REVOCATIONS, 0)
        listing, lift = await asyncio.gather(*tasks)
        assert [each["id"] for each in listing.json()["data"]] == [record.id]
        assert lift.json()["lifted"] is True
        await log_contract.until(lambda: len(service.gateway.revocations.known) == 0, 5)
