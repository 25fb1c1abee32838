"""A gateway's life: start, limits, drain, and parts that go away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
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

from gateway import request_builder
from tailrace import log
from tailrace.local import ports
from tailrace.protocol import ids, records, topics
from tests.services.gateway.conftest import events_of, opened, text_of
from tests.support import gateway_process as gp
from tests.support import local, waiting

CONNECTION_LIMIT_S = 1  # the age at which a socket takes no more requests

Start = Callable[..., gp.Gateway]
pytestmark = pytest.mark.timeout(240)  # processes are started, which takes long only where many are
QUICK = {"input": "hi", "metadata": gp.cues(5, 1)}


@pytest.fixture
def start(
    tmp_path: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys, engine: gp.Process
) -> Iterator[Start]:
    """Starts gateways of the test's own, beside the worker they share."""
    with contextlib.ExitStack() as stack:

        def begin(
            name: str = "own", *, kafka_at: str = kafka, redis_at: str = redis_url, **more: str
        ) -> gp.Gateway:
            return stack.enter_context(
                gp.gateway(tmp_path, kafka_at, redis_at, pool, keys, name, **more)
            )

        yield begin


@contextlib.asynccontextmanager
async def client_of(
    gateway: gp.Gateway, subject: str = "alice"
) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client(subject) as client:
        yield client


async def drained(parts: AsyncIterator[bytes]) -> None:
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
    async def test_requests_per_second_are_limited_per_principal_with_a_time_to_come_back(
        self, start: Start
    ) -> None:
        gateway = start(TAILRACE_LIMITS=json.dumps({"requests_rate": 0.5, "requests_burst": 2}))
        subject = f"eager-{time.time_ns()}"
        async with (
            client_of(gateway, subject) as client,
            client_of(gateway, f"{subject}-other") as other,
        ):
            answers = [await client.post("/v1/responses", json=QUICK) for _ in range(3)]
            assert [a.status_code for a in answers] == [200, 200, 429]
            refused = answers[-1]
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(refused.headers["retry-after"]) <= 3
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert (await other.post("/v1/responses", json=QUICK)).status_code == 200
        async with opened(gateway, subject=subject) as socket:
            await socket.create()
            error = await socket.error()
            assert error["status"] == 429
            assert int(error["error"]["headers"]["retry-after"]) >= 1

    async def test_tokens_are_limited_too(self, start: Start) -> None:
        gateway = start(TAILRACE_LIMITS=json.dumps({"tokens_rate": 1, "tokens_burst": 1500}))
        async with client_of(gateway, f"greedy-{time.time_ns()}") as client:
            running = {
                "input": "x",
                "background": True,
                "max_output_tokens": 1000,
                "metadata": gp.cues(1000, 100),
            }
            # It is charged for the longest answer, until its end tells what it took.
            rid = (await client.post("/v1/responses", json=running)).json()["id"]
            answer = await client.post("/v1/responses", json={**QUICK, "max_output_tokens": 1000})
            assert (answer.status_code, answer.json()["error"]["type"]) == (429, "tokens")
            await client.post(f"/v1/responses/{rid}/cancel")

            async def settled() -> bool:
                again = {**QUICK, "max_output_tokens": 1000}
                return (await client.post("/v1/responses", json=again)).status_code == 200

            await waiting.eventually(settled, "what it did not take is given back")

    async def test_responses_at_once_per_principal(self, start: Start) -> None:
        gateway = start(TAILRACE_LIMITS=json.dumps({"responses_per_principal": 2}))
        async with client_of(gateway) as client:
            body = {"input": "x", "background": True, "metadata": gp.cues(3000, 10)}
            running = [
                (await client.post("/v1/responses", json=body)).json()["id"] for _ in range(2)
            ]
            assert (await client.post("/v1/responses", json=QUICK)).status_code == 429
            await client.post(f"/v1/responses/{running[0]}/cancel")

            async def a_place_is_free() -> bool:
                return (await client.post("/v1/responses", json=QUICK)).status_code == 200

            await waiting.eventually(a_place_is_free, "a place is free")
            await client.post(f"/v1/responses/{running[1]}/cancel")

    async def test_sockets_per_principal(self, start: Start) -> None:
        gateway = start(TAILRACE_LIMITS=json.dumps({"sockets_per_principal": 1}))
        async with opened(gateway):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(gateway.ws, additional_headers=gateway.headers()):
                    pass
            assert refused.value.response.status_code == 429
            async with opened(gateway, subject="bob"):
                pass

    async def test_what_fits_no_record_is_refused_by_name_and_disturbs_nothing(
        self, start: Start, pool: str
    ) -> None:
        pools = json.dumps({pool: {"models": [gp.MODEL], "max_model_len": 100_000}})
        gateway = start(TAILRACE_POOLS=pools, TAILRACE_HTTP_MAX_BYTES=str(4 << 20))
        async with client_of(gateway) as client:
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
    async def test_idle_sockets_are_sent_elsewhere_and_the_process_ends_well(
        self, start: Start
    ) -> None:
        gateway = start()
        async with opened(gateway) as socket:
            await socket.create()
            await socket.end()
            gateway.child.send_signal(signal.SIGTERM)
            assert (await socket.closed())[0] == 1012
        assert gateway.stop() == 0

    async def test_a_short_answer_still_ends_on_its_socket(self, start: Start) -> None:
        gateway = start(TAILRACE_DRAIN_S="10")
        async with opened(gateway) as socket:
            await socket.create(tokens=150, pace_ms=10)
            await socket.until("response.output_text.delta")
            gateway.child.send_signal(signal.SIGTERM)
            await drains(gateway)
            await socket.create(stream_id="late")
            kinds: list[str] = []
            while not kinds or kinds[-1] != "response.completed":
                event = await socket.event()
                if event["type"] == "error":
                    assert (event["status"], event["stream_id"]) == (503, "late")
                kinds.append(event["type"])
            assert "error" in kinds
            assert (await socket.closed())[0] == 1012
        assert gateway.stop() == 0

    async def test_a_long_answer_is_handed_over_and_resumed_elsewhere_without_a_gap(
        self, start: Start
    ) -> None:
        gateway, other = start("a", TAILRACE_DRAIN_S="0"), start("b")
        async with opened(gateway) as socket:
            await socket.create(tokens=600, pace_ms=10)
            seen = await socket.until("response.output_text.delta")
            gateway.child.send_signal(signal.SIGTERM)
            code = None
            with contextlib.suppress(Exception):
                while True:
                    seen.append(await socket.event())
            code = socket.ws.close_code
        assert code == 1012
        assert gateway.stop() == 0
        async with opened(
            other,
            f"?resume={seen[0]['response']['id']}&starting_after={seen[-1]['sequence_number']}",
        ) as again:
            seen += await again.end()
        assert [e["sequence_number"] for e in seen] == list(range(len(seen)))
        assert text_of(seen) == seen[-1]["response"]["output"][0]["content"][0]["text"]

    async def test_a_stream_that_cannot_end_is_cut_not_finished(self, start: Start) -> None:
        gateway = start(TAILRACE_DRAIN_S="0")
        long = {"input": "x", "stream": True, "metadata": gp.cues(1000, 10)}
        async with (
            client_of(gateway) as client,
            client.stream("POST", "/v1/responses", json=long) as answer,
        ):
            body = answer.aiter_bytes()
            await anext(body)
            gateway.child.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                await drained(body)
        assert gateway.stop() == 0

    async def test_readiness_goes_first_and_requests_are_still_taken_for_a_moment(
        self, start: Start
    ) -> None:
        gateway = start(TAILRACE_ACCEPT_MS="1500")
        async with client_of(gateway) as client:
            gateway.child.send_signal(signal.SIGTERM)
            await drains(gateway)
            state = await client.get("/ready")
            assert (state.status_code, state.json()["draining"]) == (503, True)
            assert (await client.post("/v1/responses", json=QUICK)).status_code == 200
        assert gateway.stop() == 0


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
        self, start: Start
    ) -> None:
        own = start()
        async with opened(own, max_queue=1) as stalled, opened(own) as lively:
            for i in range(100):
                await stalled.create(
                    stream_id=f"l{i % 8}", tokens=3000, pace_ms=0, max_output_tokens=3000
                )
            first = await stalled.event()

            async def closed_while_others_are_served() -> bool:
                await lively.create(tokens=3, pace_ms=1)
                assert (await lively.end())[-1]["type"] == "response.completed"
                return '"reason":"slow"' in own.log.read_text()

            await waiting.eventually(
                closed_while_others_are_served,
                "the client that reads nothing is closed as slow",
                within_s=60,
                every_s=0.5,
            )
            rid = first["response"]["id"]
            async with own.client() as client:
                rest = events_of(
                    (await client.get(f"/v1/responses/{rid}?stream=true&starting_after=0")).text
                )
            assert [e["sequence_number"] for e in rest] == list(range(1, len(rest) + 1))
            assert rest[-1]["response"]["usage"]["output_tokens"] == 3000


class TestPartsThatGoAway:
    async def test_redis_away_costs_no_stream_and_no_request(self, start: Start) -> None:
        with local.LocalRedis() as store:
            gateway = start(redis_at=store.url)
            async with client_of(gateway) as client, opened(gateway) as socket:
                before = (await client.post("/v1/responses", json=QUICK)).json()["id"]
                await socket.create(tokens=100, pace_ms=10)
                seen = await socket.until("response.output_text.delta")
                store.kill()
                seen += await socket.end()
                assert [e["sequence_number"] for e in seen] == list(range(len(seen)))
                after = await client.post(
                    "/v1/responses", json={**QUICK, "previous_response_id": before}
                )
                assert after.json()["status"] == "completed"
                await socket.create(previous_response_id=before)
                assert (await socket.end())[-1]["type"] == "response.completed"
                ticket = await client.post("/v1/tickets")
                assert (ticket.status_code, "retry-after" in ticket.headers) == (503, True)
                state = (await client.get("/ready")).json()
                assert (state["ready"], state["redis"]) == (True, False)
                store.start()

                async def tickets_again() -> bool:
                    return (await client.post("/v1/tickets")).status_code == 200

                await waiting.eventually(tickets_again, "tickets are minted again")

    async def test_a_redis_that_hangs_delays_one_request_not_all(self, start: Start) -> None:
        with local.LocalRedis() as store:
            gateway = start(redis_at=store.url)
            async with client_of(gateway) as client:
                await client.post("/v1/responses", json=QUICK)
                store.pause()
                try:
                    for _ in range(3):
                        assert (await client.post("/v1/responses", json=QUICK)).status_code == 200
                finally:
                    store.resume()

    async def test_without_kafka_a_request_is_refused_clearly_and_afterwards_all_is_well(
        self, start: Start, tmp_path: Path, redis_url: str, pool: str
    ) -> None:
        with local.LocalKafka(settings=local.QUICK_RETURN) as broker:
            await asyncio.to_thread(broker.apply_topics, [pool])
            gateway = start(kafka_at=broker.bootstrap)
            with gp.worker(tmp_path, broker.bootstrap, redis_url, pool, "own-worker"):
                async with client_of(gateway) as client, opened(gateway) as socket:
                    assert (await client.post("/v1/responses", json=QUICK)).status_code == 200
                    broker.kill()
                    answer = await client.post("/v1/responses", json=QUICK)
                    assert answer.status_code == 503
                    assert answer.json()["error"]["type"] == "server_error"
                    assert int(answer.headers["retry-after"]) >= 1
                    await socket.create()
                    assert (await socket.error())["status"] == 503
                    broker.start()

                    async def served() -> bool:
                        return (await client.post("/v1/responses", json=QUICK)).status_code == 200

                    await waiting.eventually(served, "requests are served again", within_s=40)
                    await socket.create()
                    assert (await socket.end())[-1]["type"] == "response.completed"


class TestTwoGateways:
    async def test_one_continues_resumes_cancels_and_deletes_what_the_other_took(
        self, start: Start
    ) -> None:
        a, b = start("a"), start("b")
        async with client_of(a) as one, client_of(b) as two:
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
            both = [
                events_of((await c.get(f"/v1/responses/{running}?stream=true")).text)
                for c in (one, two)
            ]
            assert both[0] == both[1]
            assert (await two.delete(f"/v1/responses/{rid}")).status_code == 200

            async def gone_there_too() -> bool:
                return (await one.get(f"/v1/responses/{rid}")).status_code == 404

            await waiting.eventually(gone_there_too, "the other gateway knows of the deletion")

    async def test_the_same_key_at_both_is_one_response(self, start: Start) -> None:
        a, b = start("a"), start("b")
        headers = {"Idempotency-Key": f"k-{time.time_ns()}"}
        async with client_of(a) as one, client_of(b) as two:
            answers = await asyncio.gather(
                *(
                    c.post("/v1/responses", json=QUICK, headers=headers)
                    for c in (one, two, one, two)
                )
            )
        assert {a.status_code for a in answers} == {200}
        assert len({a.json()["id"] for a in answers}) == 1

    async def test_a_key_outlives_redis_because_the_log_has_it(self, start: Start) -> None:
        with local.LocalRedis() as store:
            a, b = start("a", redis_at=store.url), start("b", redis_at=store.url)
            running = {"input": "x", "background": True, "metadata": gp.cues(3000, 10)}
            for body in (QUICK, running):
                headers = {"Idempotency-Key": f"k-{time.time_ns()}"}
                async with client_of(a) as one, client_of(b) as two:
                    first = (await one.post("/v1/responses", json=body, headers=headers)).json()[
                        "id"
                    ]
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

    async def test_of_two_at_once_without_redis_the_first_in_the_log_wins(
        self, start: Start, kafka: str, pool: str
    ) -> None:
        with local.LocalRedis() as store:
            a, b = start("a", redis_at=store.url), start("b", redis_at=store.url)
            store.kill()
            body = {"input": "x", "background": True, "metadata": gp.cues(3000, 10)}
            async with client_of(a) as one, client_of(b) as two:
                for n in range(5):
                    key = f"k-{time.time_ns()}-{n}"
                    answers = await asyncio.gather(
                        *(
                            c.post("/v1/responses", json=body, headers={"Idempotency-Key": key})
                            for c in (one, two, one, two)
                        )
                    )
                    rids = {answer.json()["id"] for answer in answers}
                    assert len(rids) == 1
                    asked = await requests_with(
                        kafka, pool, request_builder.key_digest(key), next(iter(rids))
                    )
                    assert asked[0] in rids
                    for loser in asked[1:]:

                        async def cancelled(rid: str = loser) -> bool:
                            return bool(
                                (await two.get(f"/v1/responses/{rid}")).json()["status"]
                                == "cancelled"
                            )

                        await waiting.eventually(cancelled, "the second response is cancelled")
                    await one.post(f"/v1/responses/{asked[0]}/cancel")


async def requests_with(kafka: str, pool: str, digest: str | None, like: str) -> list[str]:
    """Ids of the requests with this key in the partition of `like`, in log order."""
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)
    topic, partition = topics.requests(pool, "interactive"), ids.parse(like).partition
    try:
        end = (await offsets.ends(topic, [partition]))[partition]
        found = [
            records.decode_request(r.value)
            async for batch in replays.read(topic, partition, 0, end)
            for r in batch
        ]
    finally:
        await offsets.stop()
        await replays.stop()
    return list(
        dict.fromkeys(r.rid for r in found if r is not None and r.idempotency_key == digest)
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TAILRACE_ISSUERS", ""),
        ("TAILRACE_ISSUERS", "/no/such/file"),
        ("TAILRACE_PORT", "http"),
        ("TAILRACE_POOLS", "{"),
        ("TAILRACE_POOLS", '{"a":{"models":["m"]},"b":{"models":["m"]}}'),
        ("TAILRACE_LIMITS", '{"no_such": 1}'),
        ("TAILRACE_PUSH_URL", "http://x; script-src *"),
    ],
)
def test_a_misconfiguration_is_one_line_that_names_it(
    keys: gp.Keys, variable: str, value: str
) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "OTEL_"))}
    env = {**kept, "TAILRACE_ISSUERS": str(keys.issuers), variable: value}
    done = subprocess.run(
        [sys.executable, "-m", "gateway"],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert variable in done.stderr or value in done.stderr


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
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "TAILRACE_PORT" in done.stderr


async def test_health_needs_no_credential(start: Start) -> None:
    gateway = start()
    async with httpx.AsyncClient(base_url=gateway.url) as anyone:
        assert (await anyone.get("/health")).status_code == 200


async def test_no_prompt_answer_or_credential_is_in_the_logs(start: Start, keys: gp.Keys) -> None:
    gateway = start()
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
    gateway.stop()
    said = gateway.log.read_text()
    assert "service_stopped" in said
    for secret in (canary, token, ticket):
        assert secret not in said


def with_ticket(gateway: gp.Gateway, ticket: str) -> Any:
    offered: Any = ["tailrace.v1", f"ticket.{ticket}"]
    return connect(gateway.ws, subprotocols=offered)
