"""Garbage on every input: a clear error in the client's protocol, and nothing else disturbed."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import aiokafka
import httpx
import pytest
import websockets
from websockets.asyncio.client import connect

from tailrace.protocol import ids, topics
from tailrace.protocol.events import TERMINAL_TYPES
from tests.journey.conftest import MODEL, Stack
from tests.support import read_log
from worker.engines import scripted

GOOD = {"model": MODEL, "input": "hi", "metadata": {"script_tokens": "5", "script_pace_ms": "1"}}


@pytest.fixture
def client(scripted_stack: Stack) -> Any:
    with httpx.Client(
        base_url=scripted_stack.url, headers=scripted_stack.headers, timeout=30.0
    ) as c:
        yield c


def error_of(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found


BAD_BODIES: list[tuple[bytes, int, str | None]] = [
    (b"", 400, None),
    (b"{", 400, None),
    (b"[]", 400, None),
    (b"null", 400, None),
    (b'"text"', 400, None),
    (b"[" * 100_000, 400, None),
    (b'{"model":"m","input":"\xff\xfe"}', 400, None),
    (json.dumps({"input": "hi", "model": 7}).encode(), 400, "model"),
    (json.dumps({"model": MODEL}).encode(), 400, "input"),
    (json.dumps({**GOOD, "input": 7}).encode(), 400, "input"),
    (json.dumps({**GOOD, "input": [7]}).encode(), 400, None),
    (json.dumps({**GOOD, "temperature": "hot"}).encode(), 400, "temperature"),
    (json.dumps({**GOOD, "temperature": 1e9}).encode(), 400, "temperature"),
    (json.dumps({**GOOD, "top_p": -1}).encode(), 400, "top_p"),
    (json.dumps({**GOOD, "max_output_tokens": 10**12}).encode(), 400, "max_output_tokens"),
    (json.dumps({**GOOD, "max_output_tokens": 0}).encode(), 400, "max_output_tokens"),
    (json.dumps({**GOOD, "metadata": {"k": 1}}).encode(), 400, None),
    (json.dumps({**GOOD, "stream": "perhaps"}).encode(), 400, "stream"),
    (
        json.dumps({**GOOD, "previous_response_id": "../../etc/passwd"}).encode(),
        400,
        "previous_response_id",
    ),
    (json.dumps({**GOOD, "model": "no-such"}).encode(), 404, "model"),
]


@pytest.mark.parametrize(("body", "status", "param"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_bad_bodies(client: httpx.Client, body: bytes, status: int, param: str | None) -> None:
    answer = client.post(
        "/v1/responses", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    error = error_of(answer)
    if param is not None:
        assert error["param"] == param


@pytest.mark.nightly
def test_a_huge_body_is_refused_and_the_next_one_is_served(client: httpx.Client) -> None:
    answer = client.post(
        "/v1/responses",
        content=b'{"input":"' + b"x" * (8 << 20) + b'"}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 413
    error_of(answer)
    assert client.post("/v1/responses", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    "credential", ["", "Bearer", "Bearer x", "Basic abc", "Bearer " + "a" * 9000, "Bearer a.b.c"]
)
@pytest.mark.parametrize("service", ["url", "push_url"])
def test_wrong_credentials(scripted_stack: Stack, service: str, credential: str) -> None:
    base = getattr(scripted_stack, service)
    headers = {"Authorization": credential} if credential else {}
    answer = httpx.get(f"{base}/v1/responses/resp_x", headers=headers, timeout=30.0)
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "invalid_api_key"


@pytest.mark.nightly
@pytest.mark.parametrize("service", ["url", "push_url"])
@pytest.mark.parametrize(
    "rid",
    [
        "resp_x",
        "x",
        "resp_" + "A" * 32,
        "resp_" + "_" * 32,
        "resp_%00",
        "resp_" + "A" * 5000,
        "..%2f..%2fetc",
    ],
)
def test_malformed_ids_are_404(scripted_stack: Stack, service: str, rid: str) -> None:
    answer = httpx.get(
        f"{getattr(scripted_stack, service)}/v1/responses/{rid}",
        headers=scripted_stack.headers,
        timeout=30.0,
    )
    assert answer.status_code == 404
    error_of(answer)


@pytest.mark.nightly
@pytest.mark.parametrize("service", ["url", "push_url"])
def test_a_bad_position_is_400(scripted_stack: Stack, service: str) -> None:
    rid = httpx.post(
        f"{scripted_stack.url}/v1/responses",
        json=GOOD,
        headers=scripted_stack.headers,
        timeout=30.0,
    ).json()["id"]
    for bad in ("x", "1.5", "-2", "9" * 40):
        answer = httpx.get(
            f"{getattr(scripted_stack, service)}/v1/responses/{rid}",
            params={"stream": "true", "starting_after": bad},
            headers=scripted_stack.headers,
        )
        assert answer.status_code == 400, bad
        assert error_of(answer)["param"] == "starting_after"


def ws_url(base: str, path: str) -> str:
    return base.replace("http", "ws", 1) + path


BAD_MESSAGES: list[Any] = [
    "",
    "{",
    "null",
    "[]",
    "[" * 10_000,  # below the smallest size cap
    '{"type":7}',
    '{"type":"no.such.event"}',
    '{"type":"response.create","model":7,"input":"x"}',
    '{"type":"response.create","stream_id":"","model":"m","input":"x"}',
    '{"type":"response.create","stream_id":"a b","model":"m","input":"x"}',
    '{"type":"response.create","previous_response_id":"resp_unknown","model":"'
    + MODEL
    + '","input":"x"}',
    '{"type":"response.cancel","response_id":"resp_unknown"}',
    b"\x00\x01",
]


async def test_bad_messages_on_the_responses_socket_leave_it_open(scripted_stack: Stack) -> None:
    async with connect(
        ws_url(scripted_stack.url, "/v1/responses"), additional_headers=scripted_stack.headers
    ) as ws:
        for message in BAD_MESSAGES:
            await ws.send(message)
            answer = json.loads(await asyncio.wait_for(ws.recv(), 10))
            assert answer["type"] == "error", (message[:60], answer)
            assert answer["status"] in (400, 404), answer
            assert answer["error"]["code"]
            assert answer["error"]["message"]
        await ws.send(json.dumps({"type": "response.create", **GOOD}))
        kinds: list[str] = []
        while not kinds or kinds[-1] not in TERMINAL_TYPES:
            kinds.append(json.loads(await asyncio.wait_for(ws.recv(), 10))["type"])
        assert kinds[-1] == "response.completed"


async def test_bad_messages_on_the_watch_socket_leave_it_open(scripted_stack: Stack) -> None:
    async with httpx.AsyncClient(timeout=30.0) as client:
        rid = (
            await client.post(
                f"{scripted_stack.url}/v1/responses", json=GOOD, headers=scripted_stack.headers
            )
        ).json()["id"]
    for base in (scripted_stack.url, scripted_stack.push_url):
        async with connect(
            ws_url(base, "/v1/watch"), additional_headers=scripted_stack.headers
        ) as ws:
            for message in [
                *BAD_MESSAGES,
                '{"type":"watch"}',
                '{"type":"watch","response_id":7}',
                '{"type":"watch","response_id":"resp_unknown"}',
                json.dumps({"type": "watch", "response_id": rid, "starting_after": "x"}),
                json.dumps({"type": "watch", "response_id": rid, "starting_after": True}),
            ]:
                await ws.send(message)
                answer = json.loads(await asyncio.wait_for(ws.recv(), 10))
                assert answer["type"] == "watch.error", (message[:60], answer)
                assert answer["error"]["message"]
            await ws.send(json.dumps({"type": "watch", "response_id": rid}))
            numbers: list[int] = []
            while True:
                answer = json.loads(await asyncio.wait_for(ws.recv(), 10))
                if answer["type"] == "watch.done":
                    break
                numbers += [e["sequence_number"] for e in answer["events"]]
            assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/watch"])
async def test_handshakes_that_must_be_refused(scripted_stack: Stack, path: str) -> None:
    url = ws_url(scripted_stack.url, path)
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer nonsense"}, 401),
        ({**scripted_stack.headers, "Origin": "https://evil.example"}, 403),
        ({**scripted_stack.headers, "Origin": "null"}, 403),
    ):
        with pytest.raises(websockets.exceptions.InvalidStatus) as e:
            await connect(url, additional_headers=headers)
        assert e.value.response.status_code == status
        assert set(json.loads(e.value.response.body)["error"]) == {
            "message",
            "type",
            "param",
            "code",
        }
    # A credential in the query is not looked at.
    with pytest.raises(websockets.exceptions.InvalidStatus) as e:
        await connect(f"{url}?token={scripted_stack.credential}")
    assert e.value.response.status_code == 401


@pytest.mark.nightly
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/watch"])
async def test_a_message_too_big_closes_1009(scripted_stack: Stack, path: str) -> None:
    async with connect(
        ws_url(scripted_stack.url, path), additional_headers=scripted_stack.headers
    ) as ws:
        with pytest.raises(websockets.exceptions.ConnectionClosed) as e:  # noqa: PT012 (the close may come at the send or after it)
            await ws.send("x" * (4 << 20))
            while True:
                await asyncio.wait_for(ws.recv(), 10)
        # The close frame may be lost to the reset that follows what was sent and not read.
        assert e.value.rcvd is None or e.value.rcvd.code == 1009


@pytest.mark.nightly
async def test_a_ticket_opens_one_socket_once(scripted_stack: Stack) -> None:
    origin = scripted_stack.url
    async with httpx.AsyncClient(
        base_url=scripted_stack.url, headers={**scripted_stack.headers, "Origin": origin}
    ) as client:
        ticket = (await client.post("/v1/tickets")).json()["ticket"]
    url = ws_url(scripted_stack.push_url, "/v1/watch")
    protocols: Any = ["tailrace.v1", f"ticket.{ticket}"]
    async with connect(url, subprotocols=protocols, origin=origin) as ws:  # type: ignore[arg-type]
        assert ws.subprotocol == "tailrace.v1"
    with pytest.raises(websockets.exceptions.InvalidStatus) as e:
        await connect(url, subprotocols=protocols, origin=origin)  # type: ignore[arg-type]
    assert e.value.response.status_code == 401


def garbage(rid: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values that no Tailrace writer makes, some of them under a real key."""
    key = rid.encode()
    return [
        (b"", b""),
        (key, None),
        (key, b"{"),
        (key, b"\xff\xfe\x00"),
        (key, b"[" * 20_000),
        (key, b'{"t":"TOK"}'),
        (
            key,
            json.dumps(
                {
                    "t": "TOK",
                    "rid": rid,
                    "own": "x",
                    "seq": -1,
                    "ids": [],
                    "text": "EVIL",
                    "parent": "",
                }
            ).encode(),
        ),
        (
            key,
            json.dumps(
                {
                    "t": "TOK",
                    "rid": rid,
                    "own": "x",
                    "seq": 0,
                    "ids": [1],
                    "text": "EVIL",
                    "parent": "0" * 16,
                }
            ).encode(),
        ),
        (
            key,
            json.dumps(
                {"t": "END", "rid": rid, "own": "x", "seq": 0, "reason": "stop", "digest": "0" * 16}
            ).encode(),
        ),
        (key, json.dumps({"t": "FUTURE", "rid": rid, "v": 99}).encode()),
        (os.urandom(3000), os.urandom(100_000)),
    ]


@pytest.mark.nightly
async def test_garbage_in_every_topic_stalls_nothing_and_changes_no_answer(
    scripted_stack: Stack,
) -> None:
    bootstrap = read_log.kafka_of(scripted_stack)
    async with httpx.AsyncClient(
        base_url=scripted_stack.url, headers=scripted_stack.headers, timeout=60.0
    ) as client:
        body = {
            "model": MODEL,
            "input": "steady",
            "background": True,
            "metadata": {"script_tokens": "200", "script_pace_ms": "10"},
        }
        rids = [(await client.post("/v1/responses", json=body)).json()["id"] for _ in range(8)]
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        try:
            for topic in topics.table(["default"]):
                for partition in await producer.partitions_for(topic.name):
                    target = next((r for r in rids if ids.parse(r).partition == partition), rids[0])
                    for key, value in garbage(target):
                        if topic.config["cleanup.policy"] == "compact" and not key:
                            continue  # the broker itself refuses a record without key there
                        await producer.send(topic.name, key=key, value=value, partition=partition)
            await producer.flush()
        finally:
            await producer.stop()
        expected = scripted.expected_text([{"role": "user", "content": "steady"}], 200)
        for rid in rids:
            async with client.stream(
                "GET", f"/v1/responses/{rid}", params={"stream": "true"}
            ) as answer:
                events = [
                    json.loads(line[6:])
                    async for line in answer.aiter_lines()
                    if line.startswith("data: {")
                ]
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == expected
        # Afterwards new requests are served on every partition, so none stands still behind the
        # garbage.
        seen: set[int] = set()
        for i in range(60):
            answer = await client.post(
                "/v1/responses", json={**GOOD, "input": f"hi {i}"}
            )  # an equal prompt would go where its prefix is warm
            assert answer.json()["status"] == "completed", answer.text
            seen.add(ids.parse(answer.json()["id"]).partition)
        assert len(seen) == 4, "the preferred partitions of a gateway"
