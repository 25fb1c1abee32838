"""A gateway's life: start, limits, drain, and parts that go away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tailrace.local import ports
from tests.services.gateway.conftest import events_of, opened, text_of
from tests.support import gateway_process as gp
from tests.support import local, waiting

CONNECTION_LIMIT_S = 1  # the age at which a socket takes no more requests

Start = Callable[..., gp.Gateway]
pytestmark = pytest.mark.timeout(300)  # processes are started, which takes long only where many are
QUICK = {"input": "hi", "metadata": gp.cues(5, 1)}


@pytest.fixture
def start(
    tmp_path: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys, engine: gp.Process
) -> Iterator[Start]:
    """Starts gateways of the test's own, beside the worker they share."""
    with contextlib.ExitStack() as stack:

        def begin(name: str = "own", **more: str) -> gp.Gateway:
            return stack.enter_context(
                gp.gateway(tmp_path, kafka, redis_url, pool, keys, name, **more)
            )

        yield begin


async def read_out(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass


async def drains(gateway: gp.Gateway) -> None:
    """Wait until the gateway reports that it drains, or takes no more connections."""
    async with gateway.client() as client:

        async def said() -> bool:
            try:
                return bool((await client.get("/ready")).json()["draining"])
            except httpx.TransportError:
                return True

        await waiting.eventually(said, "the gateway drains")


class TestLimits:
    async def test_requests_and_sockets_are_limited_per_principal(self, start: Start) -> None:
        """With a time to come back."""
        limits = {"requests_rate": 0.01, "requests_burst": 2, "sockets_per_principal": 1}
        gateway = start(TAILRACE_LIMITS=json.dumps(limits))
        subject = f"eager-{time.time_ns()}"
        async with gateway.client(subject) as client, gateway.client(f"{subject}-2") as other:
            answers = [await client.post("/v1/responses", json=QUICK) for _ in range(3)]
            assert [a.status_code for a in answers] == [200, 200, 429]
            refused = answers[-1]
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(refused.headers["retry-after"]) <= 150
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert (await other.post("/v1/responses", json=QUICK)).status_code == 200
        async with opened(gateway, subject=subject) as ws:
            await ws.create()
            error = await ws.error()
            assert error["status"] == 429
            assert int(error["error"]["headers"]["retry-after"]) >= 1
            with pytest.raises(InvalidStatus) as full:
                async with connect(gateway.ws, additional_headers=gateway.headers(subject)):
                    pass
            assert full.value.response.status_code == 429
            async with opened(gateway, subject="bob"):
                pass

    async def test_what_fits_no_record_is_refused_by_name_and_disturbs_nothing(
        self, start: Start, pool: str
    ) -> None:
        pools = json.dumps({pool: {"models": [gp.MODEL], "max_model_len": 100_000}})
        gateway = start(TAILRACE_POOLS=pools, TAILRACE_HTTP_MAX_BYTES=str(4 << 20))
        async with gateway.client() as client:
            answer = await client.post("/v1/responses", json={"input": "é" * 600_000})
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                400,
                "context_length_exceeded",
            )
            assert (await client.post("/v1/responses", json=QUICK)).status_code == 200

    async def test_a_socket_gets_old_between_turns(self, start: Start) -> None:
        gateway = start(TAILRACE_CONNECTION_LIMIT_S=str(CONNECTION_LIMIT_S))
        async with opened(gateway) as socket:
            await socket.create(tokens=300, pace_ms=10)
            seen = await socket.until("response.output_text.delta")
            await asyncio.sleep(CONNECTION_LIMIT_S + 0.1)
            await socket.create(stream_id="late")
            rest = []
            while True:
                event = await socket.event()
                if event["type"] == "error":
                    assert (event["error"]["code"], event["status"], event["stream_id"]) == (
                        "websocket_connection_limit_reached",
                        400,
                        "late",
                    )
                    continue
                rest.append(event)
                if event["type"] == "response.completed":
                    break
            assert len([*seen, *rest]) == rest[-1]["sequence_number"] + 1
            last = await socket.error()
            assert last["error"]["code"] == "websocket_connection_limit_reached"
            assert (await socket.closed())[0] == 1012


class TestDrain:
    async def test_what_is_short_still_ends_and_what_comes_late_is_sent_elsewhere(
        self, start: Start
    ) -> None:
        """Readiness goes first, and requests are still taken for a moment."""
        draining = start(TAILRACE_DRAIN_S="60", TAILRACE_ACCEPT_MS="4000")
        async with (
            draining.client() as client,
            opened(draining) as idle,
            opened(draining) as ws,
        ):
            await idle.create()
            await idle.end()
            await ws.create(tokens=800, pace_ms=10)
            await ws.until("response.output_text.delta")
            draining.child.send_signal(signal.SIGTERM)
            await drains(draining)
            state = await client.get("/ready")
            assert (state.status_code, state.json()["draining"]) == (503, True)
            assert (await client.post("/v1/responses", json=QUICK)).status_code == 200
            assert (await idle.closed())[0] == 1012
            await ws.create(stream_id="late")
            kinds: list[str] = []
            while not kinds or kinds[-1] != "response.completed":
                event = await ws.event()
                if event["type"] == "error":
                    assert (event["status"], event["stream_id"]) == (503, "late")
                kinds.append(event["type"])
            assert "error" in kinds
            assert (await ws.closed())[0] == 1012
        assert draining.stop() == 0

    async def test_what_is_long_is_cut_and_resumed_elsewhere_without_a_gap(
        self, start: Start, gateway: gp.Gateway
    ) -> None:
        draining = start(TAILRACE_DRAIN_S="0")
        long = {"input": "x", "stream": True, "metadata": gp.cues(1000, 10)}
        async with (
            opened(draining) as ws,
            draining.client() as client,
            client.stream("POST", "/v1/responses", json=long) as answer,
        ):
            body = answer.aiter_bytes()
            await anext(body)
            await ws.create(tokens=600, pace_ms=10)
            seen = await ws.until("response.output_text.delta")
            draining.child.send_signal(signal.SIGTERM)
            with contextlib.suppress(Exception):
                while True:
                    seen.append(await ws.event())
            assert ws.ws.close_code == 1012
            with pytest.raises(httpx.RemoteProtocolError):
                await read_out(body)
        assert draining.stop() == 0
        where = f"?resume={seen[0]['response']['id']}"
        async with opened(
            gateway, f"{where}&starting_after={seen[-1]['sequence_number']}"
        ) as again:
            seen += await again.end()
        assert [e["sequence_number"] for e in seen] == list(range(len(seen)))
        assert text_of(seen) == seen[-1]["response"]["output"][0]["content"][0]["text"]


class TestTheOfficialSdk:
    async def test_its_socket_resumes_over_a_restart_of_the_gateway_unmodified(
        self, start: Start
    ) -> None:
        """As documented: `on_reconnecting` returns the query of the next handshake."""
        port = str(ports.free_port())
        first = start("first", TAILRACE_DRAIN_S="0", TAILRACE_PORT=port)
        seen: dict[str, Any] = {}
        deltas: list[str] = []
        numbers: list[int] = []

        def on_reconnecting(_event: Any) -> Any:
            return {"extra_query": {"resume": seen["id"], "starting_after": str(numbers[-1])}}

        async with (
            openai.AsyncOpenAI(base_url=first.api, api_key=first.keys.token()) as sdk,
            sdk.responses.connect(on_reconnecting=on_reconnecting) as connection,
        ):
            await connection.response.create(model=gp.MODEL, input="x", metadata=gp.cues(400, 10))
            restarted = False
            async for event in connection:
                assert event.type != "error", event
                numbers.append(event.sequence_number)
                if event.type == "response.created":
                    seen["id"] = event.response.id
                elif event.type == "response.output_text.delta":
                    deltas.append(event.delta)
                    if len(deltas) == 20 and not restarted:
                        restarted = True
                        await asyncio.to_thread(first.stop)
                        await asyncio.to_thread(start, "second", TAILRACE_PORT=port)
                elif event.type == "response.completed":
                    assert event.response.output_text == "".join(deltas)
                    break
        assert restarted
        assert numbers == list(range(len(numbers)))


class TestSlowReaders:
    async def test_one_that_stops_reading_is_closed_and_resumes_while_others_are_served(
        self, gateway: gp.Gateway
    ) -> None:
        own, told = gateway, '"reason":"slow"'
        before = own.log.read_text().count(told)
        narrow = socket.create_connection(("127.0.0.1", own.port))
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with opened(own, max_queue=1, sock=narrow) as stalled, opened(own) as lively:
            for i in range(100):
                await stalled.create(
                    stream_id=f"l{i % 8}", tokens=3000, pace_ms=0, max_output_tokens=3000
                )
            first = await stalled.event()

            async def closed_while_others_are_served() -> bool:
                await lively.create(tokens=3, pace_ms=1)
                assert (await lively.end())[-1]["type"] == "response.completed"
                return own.log.read_text().count(told) > before

            await waiting.eventually(
                closed_while_others_are_served,
                "the client that reads nothing is closed as slow",
                within_s=90,
                every_s=0.5,
            )
            rid = first["response"]["id"]
            async with own.client() as client:
                rest = events_of(
                    (await client.get(f"/v1/responses/{rid}?stream=true&starting_after=0")).text
                )
            assert [e["sequence_number"] for e in rest] == list(range(1, len(rest) + 1))
            assert rest[-1]["response"]["usage"]["output_tokens"] == 3000


@pytest.fixture(scope="module")
def store() -> Iterator[local.LocalRedis]:
    with local.LocalRedis() as running:
        yield running


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
    store: local.LocalRedis,
    kafka: str,
    pool: str,
    keys: gp.Keys,
    engine: gp.Process,
) -> Iterator[tuple[gp.Gateway, gp.Gateway]]:
    place = (tmp_path_factory.mktemp("both"), kafka, store.url, pool, keys)
    with gp.gateway(*place, "a") as one, gp.gateway(*place, "b") as other:
        yield one, other


class TestTwoGateways:
    """On a Redis of their own, which goes away."""

    async def test_one_continues_resumes_cancels_and_deletes_what_the_other_took(
        self, both: tuple[gp.Gateway, gp.Gateway]
    ) -> None:
        async with both[0].client() as one, both[1].client() as two:
            rid = (await one.post("/v1/responses", json=QUICK)).json()["id"]
            assert (await two.get(f"/v1/responses/{rid}")).json() == (
                await one.get(f"/v1/responses/{rid}")
            ).json()
            assert (
                await two.post("/v1/responses", json={**QUICK, "previous_response_id": rid})
            ).status_code == 200
            body = {"input": "x", "background": True, "metadata": gp.cues(3000, 10)}
            running = (await one.post("/v1/responses", json=body)).json()["id"]
            cancelled = (await two.post(f"/v1/responses/{running}/cancel")).json()
            assert cancelled["status"] == "cancelled"
            shown = [
                events_of((await c.get(f"/v1/responses/{running}?stream=true")).text)
                for c in (one, two)
            ]
            assert shown[0] == shown[1]
            assert (await two.delete(f"/v1/responses/{rid}")).status_code == 200

            async def gone_there_too() -> bool:
                return (await one.get(f"/v1/responses/{rid}")).status_code == 404

            await waiting.eventually(gone_there_too, "the other gateway knows of the deletion")

    async def test_the_same_key_at_both_is_one_response(
        self, both: tuple[gp.Gateway, gp.Gateway]
    ) -> None:
        headers = {"Idempotency-Key": f"k-{time.time_ns()}"}
        async with both[0].client() as one, both[1].client() as two:
            answers = await asyncio.gather(
                *(
                    c.post("/v1/responses", json=QUICK, headers=headers)
                    for c in (one, two, one, two)
                )
            )
        assert {a.status_code for a in answers} == {200}
        assert len({a.json()["id"] for a in answers}) == 1

    async def test_a_key_outlives_redis_because_the_log_has_it(
        self, both: tuple[gp.Gateway, gp.Gateway], store: local.LocalRedis
    ) -> None:
        running = {"input": "x", "background": True, "metadata": gp.cues(3000, 10)}
        for body in (QUICK, running):
            headers = {"Idempotency-Key": f"k-{time.time_ns()}"}
            async with both[0].client() as one, both[1].client() as two:
                first = (await one.post("/v1/responses", json=body, headers=headers)).json()["id"]
                store.kill()
                store.start()
                assert (await two.post("/v1/responses", json=body, headers=headers)).json()[
                    "id"
                ] == first
                store.kill()  # and without any Redis
                assert (await one.post("/v1/responses", json=body, headers=headers)).json()[
                    "id"
                ] == first
                store.start()
                await two.post(f"/v1/responses/{first}/cancel")
                assert (await two.delete(f"/v1/responses/{first}")).status_code == 200
                afresh = await two.post(
                    "/v1/responses", json=QUICK, headers=headers
                )  # nothing to attach to any more
                assert afresh.json()["id"] != first
                store.kill()
                store.start()
                assert (await one.post("/v1/responses", json=QUICK, headers=headers)).json()[
                    "id"
                ] == afresh.json()["id"]

    async def test_redis_away_or_hanging_costs_no_stream_and_no_request(
        self, both: tuple[gp.Gateway, gp.Gateway], store: local.LocalRedis
    ) -> None:
        gateway, _ = both
        async with gateway.client() as client, opened(gateway) as ws:
            before = (await client.post("/v1/responses", json=QUICK)).json()["id"]
            store.pause()
            try:
                for _ in range(3):
                    assert (await client.post("/v1/responses", json=QUICK)).status_code == 200
            finally:
                store.resume()
            await ws.create(tokens=100, pace_ms=10)
            seen = await ws.until("response.output_text.delta")
            store.kill()
            seen += await ws.end()
            assert [e["sequence_number"] for e in seen] == list(range(len(seen)))
            more = {**QUICK, "previous_response_id": before}
            after = await client.post("/v1/responses", json=more)
            assert after.json()["status"] == "completed"
            await ws.create(previous_response_id=before)
            assert (await ws.end())[-1]["type"] == "response.completed"
            ticket = await client.post("/v1/tickets")
            assert (ticket.status_code, "retry-after" in ticket.headers) == (503, True)
            state = (await client.get("/ready")).json()
            assert (state["ready"], state["redis"]) == (True, False)
            store.start()

            async def tickets_again() -> bool:
                return (await client.post("/v1/tickets")).status_code == 200

            await waiting.eventually(tickets_again, "tickets are minted again", within_s=60)


def test_a_port_that_is_taken_is_a_misconfiguration(gateway: gp.Gateway) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "OTEL_"))}
    env = {
        **kept,
        "TAILRACE_ISSUERS": str(gateway.keys.issuers),
        "TAILRACE_PORT": str(gateway.port),
    }
    done = subprocess.run(
        [sys.executable, "-m", "gateway"],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert "TAILRACE_PORT" in done.stderr


async def test_health_needs_no_credential(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.get("/health")).status_code == 200


async def test_no_prompt_answer_or_credential_is_in_the_logs(
    gateway: gp.Gateway, keys: gp.Keys
) -> None:
    token, canary = keys.token(), "canary-9f2b"
    async with httpx.AsyncClient(
        base_url=gateway.url, headers={"Authorization": f"Bearer {token}"}, timeout=30
    ) as client:
        await client.post("/v1/responses", json={**QUICK, "input": canary, "instructions": canary})
        await client.post("/v1/responses", json={**QUICK, "input": canary, "temperature": canary})
        ticket = (await client.post("/v1/tickets")).json()["ticket"]
        await client.get("/v1/responses/resp_x", params={"token": token})
    async with with_ticket(gateway, ticket):
        pass
    said = gateway.log.read_text()
    assert "service_started" in said
    for secret in (canary, token, ticket):
        assert secret not in said


def with_ticket(gateway: gp.Gateway, ticket: str) -> Any:
    offered: Any = ["tailrace.v1", f"ticket.{ticket}"]
    return connect(gateway.ws, subprotocols=offered)
