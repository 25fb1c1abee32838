"""The gateway as one application, over a log and a Redis in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import websockets

from gateway import app
from gateway.answers import chat_completions
from gateway.requests import idempotency
from tailrace import log, settings
from tailrace.auth import revocation_list
from tailrace.auth.issuers import load_issuers
from tailrace.auth.keys import IssuersRefused
from tailrace.log import health
from tailrace.protocol import feed, ids, records, topics
from tailrace.vectors import contract
from tailrace.web import access, credential_timer, listener, middleware
from tests.support import (
    cases,
    compact_reader,
    gateway_parts,
    gateway_process,
    log_contract,
    memory_delivery,
    memory_log,
    memory_redis,
    waiting,
)
from tests.support.waiting import eventually

# Codes of failed responses, and the status that a client gets.
REFUSED = {"context_length_exceeded": 400, "invalid_image": 400, "unsupported_parameter": 400}
FAILED = {**REFUSED, "server_error": 500}
OWN_PROTOCOL = websockets.Subprotocol(access.SUBPROTOCOL)


@dataclass
class Service:
    """A running gateway."""

    gateway: app.Gateway
    broker: memory_log.MemoryLog
    redis: memory_redis.MemoryRedis
    keys: gateway_process.Keys
    port: int
    stop: asyncio.Event
    hurry: asyncio.Event
    task: asyncio.Task[None]
    revoked: int = 0

    def client(self, subject: str = "alice", **claims: Any) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.keys.token(subject, **claims)}"}
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", headers=headers)

    def socket(
        self, query: str = "", subject: str = "alice", path: str = "/v1/responses", **claims: Any
    ) -> Any:
        headers = {"authorization": f"Bearer {self.keys.token(subject, **claims)}"}
        url = f"ws://127.0.0.1:{self.port}{path}{query}"
        return websockets.connect(url, additional_headers=headers, compression=None)

    def requests(self) -> list[records.Request]:
        requests = [records.decode_request(r.value) for r in self.broker.appended]
        return [request for request in requests if request is not None]

    async def asked(self, count: int = 1) -> records.Request:
        """The request record number `count`, once it is in the log."""
        await log_contract.until(lambda: len(self.requests()) >= count, 5)
        return self.requests()[count - 1]

    def cancels(self) -> list[str]:
        log_records = [records.token_of(r.key, r.value) for r in self.broker.appended]
        return [record.rid for record in log_records if isinstance(record, records.Cancel)]

    async def cancelled(self, *rids: str) -> None:
        """Wait until these are cancelled, in this order and no other."""
        await log_contract.until(lambda: self.cancels() == [*rids], 5)

    async def revoke(self, subject: str) -> None:
        """Put a revocation into the log, and wait until the gateway has read it."""
        until = revocation_list.issued_until(time.time())
        record = records.Revoked(f"{self.revoked:016x}", gateway_process.ISS, until, subject)
        self.revoked += 1
        self.broker.put_record(topics.REVOCATIONS, 0, record, record.id)
        await self.gateway.revocations.caught_up()

    def answer(
        self,
        request: records.Request,
        *texts: str,
        end: bool = True,
        error: tuple[str, str] | None = None,
    ) -> None:
        """What a worker would write."""
        gateway_parts.put_answer(self.broker, request, *texts, end=end, error=error)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path_factory.mktemp("keys"))


class Time:
    """The gateway's clock and its timers, which a test moves."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._ahead_s

    def later(self, after_s: float, call: Callable[[], None]) -> credential_timer.Timer:
        """A timer that only `pass_by` ends."""
        waiting = (self.now() + after_s, call)
        self._timers.append(waiting)
        return _Timer(self._timers, waiting)

    def restart(self) -> None:
        """It is the time of the machine again."""
        self._ahead_s = 0.0

    def pass_by(self, seconds: float) -> None:
        """Make the calls of so many seconds, in order."""
        end = self.now() + seconds
        self._ahead_s += seconds
        while due := sorted((each for each in self._timers if each[0] <= end), key=lambda e: e[0]):
            self._timers.remove(due[0])
            due[0][1]()


@dataclass
class _Timer:
    timers: list[tuple[float, Callable[[], None]]]
    waiting: tuple[float, Callable[[], None]]

    def cancel(self) -> None:
        if self.waiting in self.timers:
            self.timers.remove(self.waiting)


def configuration(keys: gateway_process.Keys, **more: str) -> settings.GatewaySettings:
    return settings.gateway(
        {
            "TAILRACE_ISSUERS": str(keys.issuers),
            "TAILRACE_POOLS": '{"default":{"models":["m","org/n"],"max_model_len":1000}}',
            "TAILRACE_ACCEPT_MS": "0",
            "TAILRACE_CANCEL_GRACE_MS": "0",
            **more,
        }
    )


@contextlib.asynccontextmanager
async def serving(
    keys: gateway_process.Keys,
    broker: memory_log.MemoryLog | None = None,
    *,
    ready: bool = True,
    vectors: contract.VectorDatabase | None = None,
    time: Time | None = None,
    **more: str,
) -> AsyncIterator[Service]:
    """A gateway that listens on a free port, and is ready unless `ready` is False. `moved`: the
    time of its credentials."""
    broker, redis = broker or memory_log.MemoryLog("one", 1), memory_redis.MemoryRedis()
    clients = app.Clients(
        redis,
        None,
        broker.writer(),
        memory_delivery.clients(broker),
        broker.offsets(),
        broker.replays(),
        broker.reader(topics.UPLOADS),
        (vectors, broker.reader(topics.VECTOR_STORES), broker.reader(topics.PASSAGES))
        if vectors is not None
        else None,
    )
    config = configuration(keys, **more)
    times = (time.now, time.later) if time is not None else ()
    gateway = app.Gateway(config, load_issuers(config.issuers), broker.layout, clients, *times)
    stop, hurry = asyncio.Event(), asyncio.Event()
    with contextlib.closing(listener.bind("127.0.0.1", 0)) as bound:
        task = asyncio.ensure_future(gateway.run(bound, stop, hurry))
        await log_contract.until(
            lambda: (
                not ready
                or (gateway.submission.responsive and gateway.revocations.ready)
                or task.done()
            ),
            10,
        )
        port = bound.getsockname()[1]
        service = Service(gateway, broker, redis, keys, port, stop, hurry, task)
        await waiting.eventually(lambda: listening(port), "listening")
        try:
            yield service
        finally:
            stop.set()
            hurry.set()
            if not task.done():
                await asyncio.wait_for(task, 20)


async def listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def event(socket: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 5))
    return message


async def until_type(socket: Any, *kinds: str) -> dict[str, Any]:
    while (reply := await event(socket))["type"] not in kinds:
        pass
    return reply


class TestPools:
    async def test_a_changed_file_of_pools_holds_for_the_next_requests(
        self, keys: gateway_process.Keys, tmp_path: Path
    ) -> None:
        file = tmp_path / "pools.yaml"
        file.write_text("pools: {default: {models: [m]}}")
        async with (
            serving(keys, TAILRACE_POOLS=str(file)) as service,
            service.client() as client,
        ):

            async def listed() -> list[str]:
                data = (await client.get("/v1/models")).json()["data"]
                return [each["id"] for each in data]

            assert await listed() == ["m"]
            running = asyncio.ensure_future(client.post("/v1/responses", json={"input": "hi"}))
            request = await service.asked()
            file.write_text(
                "pools: {b: {models: [n], aliases: [o]}}\nauto: [{model: o, features: [tools]}]"
            )
            await service.gateway.pools.poll()
            assert await listed() == ["m"], "the topics of b are missing"
            for priority in topics.CLASSES:
                service.broker.create_topic(topics.requests("b", priority), 1)
            await service.gateway.pools.poll()
            assert await listed() == ["n", "o", "auto"]
            assert (await client.get("/v1/models/auto")).status_code == 200
            assert (await client.get("/v1/models/m")).status_code == 404
            answer = await client.post("/v1/responses", json={"model": "m", "input": "hi"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            service.answer(request, "yes")
            assert (await running).json()["output"][0]["content"][0]["text"] == "yes"
            body = {"model": "o", "input": "hi", "background": True}
            http_answer = await client.post("/v1/responses", json=body)
            assert http_answer.json().get("model") == "n", http_answer.text
            refusal_answer = await client.post("/v1/responses", json={**body, "model": "auto"})
            assert (refusal_answer.status_code, refusal_answer.json()["error"]["param"]) == (
                400,
                "model",
            )


class TestHttp:
    async def test_a_response_is_answered_whole_with_its_id_in_the_headers(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            task = asyncio.ensure_future(client.post("/v1/responses", json={"input": "hi"}))
            request = await service.asked()
            service.answer(request, "he", "llo")
            answer = await task
            assert answer.json()["output"][0]["content"][0]["text"] == "hello"
            assert answer.headers["x-tailrace-response-id"] == request.rid
            assert answer.headers["x-request-id"].startswith("req_")
            for name, value in middleware.SECURITY_HEADERS.items():
                assert answer.headers[name] == value

    async def test_a_stream_ends_with_done_and_chat_completions_spell_it_their_way(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            bodies: list[tuple[str, dict[str, Any]]] = [
                ("/v1/responses", {"input": "hi", "stream": True}),
                (
                    "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": "hi"}], "stream": True},
                ),
            ]
            for number, (path, body) in enumerate(bodies, 1):
                task = asyncio.ensure_future(client.post(path, json=body))
                service.answer(await service.asked(number), "one ", "two")
                text = (await task).text
                assert text.endswith("data: [DONE]\n\n")
                assert "one " in text
                assert ("response.completed" in text) == (path == "/v1/responses")

    async def test_a_background_response_is_answered_at_once_and_goes_on(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            body = {"input": "hi", "background": True}
            answer = await client.post("/v1/responses", json=body)
            assert answer.json()["status"] == "queued"
            streams = service.gateway.submission.streams
            assert (streams.active_streams, len(streams.running)) == (0, 1)
            service.answer(await service.asked(), "x")
            await log_contract.until(lambda: len(streams.running) == 0, 5)

    async def test_cancel_answers_the_final_object_and_delete_forgets_it(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            rid = (
                await client.post("/v1/responses", json={"input": "hi", "background": True})
            ).json()["id"]
            cancelled = await client.post(f"/v1/responses/{rid}/cancel")
            assert cancelled.json()["status"] == "cancelled"
            items = (await client.get(f"/v1/responses/{rid}/input_items")).json()["data"]
            assert items[0]["content"][0]["text"] == "hi"
            assert (await client.delete(f"/v1/responses/{rid}")).json()["deleted"]
            assert (await client.post(f"/v1/responses/{rid}/cancel")).status_code == 404

    async def test_refusals_have_the_one_shape(self, keys: gateway_process.Keys) -> None:
        async with serving(keys) as service, service.client() as client:
            for call, status, code in (
                (client.post("/v1/responses", content=b"{"), 400, "invalid_json"),
                (client.post("/v1/responses", content=b" " * 600_000), 413, "payload_too_large"),
                (client.post("/v1/responses/compact"), 404, None),
                (client.put("/v1/chat/completions"), 405, "method_not_allowed"),
                (client.get("/v1/models/gpt-9"), 404, "model_not_found"),
                (client.get("/dev/credential"), 404, None),
            ):
                answer = await call
                assert answer.status_code == status
                assert code is None or answer.json()["error"]["code"] == code
            http_answer = await client.post("/v1/responses", headers={"authorization": "Bearer x"})
            assert http_answer.status_code == 401
            assert service.requests() == []

    async def test_a_method_that_a_path_does_not_have_is_told_all_it_has(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            for path, methods in (
                ("/v1/responses", "GET, HEAD, POST"),
                ("/v1/responses/resp_x", "DELETE, GET, HEAD"),
                ("/v1/chat/completions/x", "DELETE, GET, HEAD, POST"),
                ("/v1/conversations/x/items", "GET, HEAD, POST"),
                ("/v1/embeddings", "POST"),
                ("/v1/feed", "GET, HEAD"),
                ("/health", "GET, HEAD"),
            ):
                answer = await client.patch(path)
                assert (answer.status_code, answer.headers["allow"]) == (405, methods), path

    async def test_head_is_answered_wherever_get_is(self, keys: gateway_process.Keys) -> None:
        async with serving(keys) as service, service.client() as client:
            created = await client.post("/v1/responses", json={"input": "hi", "background": True})
            one = f"/v1/responses/{created.json()['id']}"
            for path in ("/v1/models", "/health", "/config.json", one, f"{one}?stream=true", "/x"):
                head = await client.head(path)
                async with client.stream("GET", path) as get:
                    assert (head.status_code, head.content) == (get.status_code, b"")
                    assert head.headers["content-type"] == get.headers["content-type"]

    async def test_a_compressed_body_and_parameters_in_the_body_of_a_get(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            packed = gzip.compress(b'{"input": "hi", "background": true}')
            headers = {"content-type": "application/json", "content-encoding": "gzip"}
            created = await client.post("/v1/responses", content=packed, headers=headers)
            assert created.status_code == 200, created.text
            path = f"/v1/responses/{created.json()['id']}"
            service.answer(await service.asked(), "x")
            answer = await client.request("GET", path, json={"stream": True})
            assert answer.headers["content-type"].startswith("text/event-stream")
            refused = await client.post(
                "/v1/responses", content=packed, headers=headers | {"content-encoding": "lzma"}
            )
            assert refused.status_code == 415
            assert "zstd" in refused.headers["accept-encoding"]

    async def test_a_revoked_principal_gets_401_before_anything_else(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            await service.revoke("alice")
            answer = await client.post("/v1/responses", json={"input": 5})
            assert (answer.status_code, service.requests()) == (401, [])

    async def test_models_readiness_and_what_the_page_reads(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            listing = (await client.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listing] == ["m", "org/n"]
            assert (await client.get("/v1/models/org/n")).json()["id"] == "org/n"
            body = (await client.get("/config.json")).json()
            assert body["default_model"] == "m"
            assert (set(body["takes"]), body["takes"]["m"]["files"]) == ({"m", "org/n"}, True)
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()["redis"]) == (200, True)
            service.redis.away = True
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()["redis"]) == (200, False)
            service.broker.go_away()
            assert (await client.get("/ready")).status_code == 503

    async def test_readiness_follows_what_the_broker_last_answered_and_recovers_by_itself(
        self, keys: gateway_process.Keys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found with a broker that was dead for 25 s: every create failed, and the gateway said
        that Kafka was there."""
        monkeypatch.setattr(health, "QUERY_INTERVAL_S", 0.02)
        async with serving(keys) as service, service.client() as client:

            async def kafka() -> bool:
                state = (await client.get("/ready")).json()
                assert state["ready"] == state["kafka"]
                return bool(state["kafka"])

            async def not_kafka() -> bool:
                return not await kafka()

            assert await kafka()
            service.broker.hold_acknowledgements()  # an append without an answer
            task = asyncio.ensure_future(
                client.post("/v1/responses", json={"model": "m", "input": "x", "background": True})
            )
            await eventually(not_kafka, "an overdue append shows", within_s=5)
            service.broker.release_acknowledgements()
            assert (await task).status_code == 200
            await eventually(kafka, "its acknowledgement shows", within_s=5)
            ends = service.broker.unanswered()  # nothing is asked of the log but by readiness
            await eventually(not_kafka, "a question without an answer shows", within_s=5)
            ends()
            await eventually(kafka, "its answer shows", within_s=5)
            topics_ = (topics.TOKENS, topics.DELETIONS, topics.REVOCATIONS, topics.UPLOADS)
            for topic in (*topics_, *feed.TOPICS):
                responsive = service.broker.deafen(topic)  # other clients are answered
                assert await not_kafka(), f"a reader of {topic} that hears nothing shows"
                responsive()
                assert await kafka(), f"it hears of {topic} again"


UNKNOWN = {"input": "x", "background": True}, {"input": "x", "stream": True}, {"input": "x"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


class TestCompletions:
    async def test_two_choices_are_two_responses_and_one_completion(
        self, keys: gateway_process.Keys
    ) -> None:
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "n": 2}
        async with serving(keys) as service, service.client() as client:
            for number, streaming in enumerate((False, True)):
                body = {**fields, "stream": streaming}
                answering = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
                requests = [await service.asked(2 * number + i) for i in (1, 2)]
                service.answer(requests[0], "one")
                service.answer(requests[1], "two")
                answer = await answering
                assert set(answer.headers["x-tailrace-response-id"].split(", ")) == {
                    request.rid for request in requests
                }
                if streaming:
                    assert answer.text.endswith("data: [DONE]\n\n")
                    assert answer.text.count('"finish_reason":"stop"') == 2
                    continue
                whole = answer.json()
                texts = [choice["message"]["content"] for choice in whole["choices"]]
                assert sorted(texts) == ["one", "two"]
            path = f"/v1/chat/completions/{whole['id']}"
            assert (await client.get(path)).json() == whole
            messages = (await client.get(f"{path}/messages")).json()["data"]
            assert [(m["role"], m["content"]) for m in messages] == [("user", "hi")]
            async with service.client("bob") as other:
                assert (await other.get(path)).status_code == 404
                assert (await other.delete(path)).json()["error"]["code"] == "completion_not_found"
            assert (await client.delete(path)).json()["deleted"]
            assert (await client.get(path)).json()["error"]["code"] == "completion_not_found"

    async def test_a_completion_that_failed_has_no_object_and_is_no_failure_of_ours(
        self, keys: gateway_process.Keys
    ) -> None:
        """Symptom: every look at a completion with a failed choice was a 500, which SDKs repeat and
        operators are called for."""
        fields = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "stream": True}
        async with serving(keys) as service, service.client() as client:
            answering = asyncio.ensure_future(client.post("/v1/chat/completions", json=fields))
            requests = [await service.asked(i) for i in (1, 2)]
            service.answer(requests[0], "fine")
            service.answer(requests[1], error=("engine_error", "It broke."))
            failed = await answering
            assert '"message":"It broke."' in failed.text
            rids = failed.headers["x-tailrace-response-id"].split(", ")
            path = f"/v1/chat/completions/{chat_completions.completion_id(*rids)}"
            answer = await client.get(path)
            assert (answer.status_code, code(answer)) == (404, "completion_failed")
            assert requests[1].rid in answer.json()["error"]["message"]
            assert requests[0].rid not in answer.json()["error"]["message"]
            assert (await client.get(f"{path}/messages")).status_code == 200
            async with service.client("bob") as other:
                assert code(await other.get(path)) == "completion_not_found"
            assert (await client.delete(path)).json()["deleted"]
            assert code(await client.get(path)) == "completion_not_found"

    async def test_a_repeated_deletion_deletes_the_choices_that_are_left(
        self, keys: gateway_process.Keys
    ) -> None:
        """A deletion can fail between two choices, and clients repeat it."""
        fields = {"messages": [{"role": "user", "content": "hi"}], "n": 2}
        async with serving(keys) as service, service.client() as client:
            answering = asyncio.ensure_future(client.post("/v1/chat/completions", json=fields))
            requests = [await service.asked(i) for i in (1, 2)]
            for request in requests:
                service.answer(request, "x")
            path = f"/v1/chat/completions/{(await answering).json()['id']}"
            deletion, remaining = (f"/v1/responses/{request.rid}" for request in requests)
            assert (await client.delete(deletion)).json()["deleted"]
            assert (await client.get(path)).status_code == 404
            assert (await client.delete(path)).json()["deleted"]
            assert (await client.get(remaining)).status_code == 404
            assert code(await client.delete(path)) == "completion_not_found"

    async def test_completions_that_are_not_stored_are_not_deleted_nor_cancelled(
        self, keys: gateway_process.Keys
    ) -> None:
        fields = {"messages": [{"role": "user", "content": "hi"}], "store": False}
        async with serving(keys) as service, service.client() as client:
            answering = asyncio.ensure_future(client.post("/v1/chat/completions", json=fields))
            request = await service.asked()
            path = f"/v1/chat/completions/chatcmpl-{request.rid[5:]}"
            assert code(await client.delete(path)) == "completion_not_found"
            assert service.cancels() == []
            service.answer(request, "x")
            assert (await answering).json()["choices"][0]["finish_reason"] == "stop"

    async def test_completions_of_text_are_prompts_without_a_template(
        self, keys: gateway_process.Keys
    ) -> None:
        body = {"prompt": ["Once", "Twice"], "echo": True}
        async with (
            serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
            service.client() as client,
        ):
            for number, streaming in enumerate((False, True)):
                query = {**body, "stream": streaming}
                answering = asyncio.ensure_future(client.post("/v1/completions", json=query))
                for i in (1, 2):
                    request = await service.asked(2 * number + i)
                    assert request.raw
                    service.answer(request, f" upon {request.messages[0]['content']}")
                answer = await answering
                if streaming:
                    assert "Once upon Once" in answer.text
                    assert answer.text.endswith("data: [DONE]\n\n")
                else:
                    texts = [choice["text"] for choice in answer.json()["choices"]]
                    assert texts == ["Once upon Once", "Twice upon Twice"]
        async with serving(keys) as service, service.client() as client:
            http_answer = await client.post("/v1/completions", json=body)
            assert (http_answer.status_code, http_answer.json()["error"]["param"]) == (
                400,
                "prompt",
            )

    async def test_embeddings_of_several_parts_are_one_answer(
        self, keys: gateway_process.Keys
    ) -> None:
        body = {"input": [f"text {i}" for i in range(40)], "dimensions": 1}
        async with (
            serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
            service.client() as client,
        ):
            answering = asyncio.ensure_future(client.post("/v1/embeddings", json=body))
            requests = [await service.asked(i) for i in (1, 2)]
            requests.sort(key=lambda r: r.embed.first if r.embed else 0)
            for request in reversed(requests):  # in whatever order they end
                assert request.embed is not None
                assert (request.store, request.messages) == (False, [])
                numbers = range(
                    request.embed.first, request.embed.first + len(request.embed.inputs)
                )
                vectors = [struct.pack("<f", n) for n in numbers]
                gateway_parts.put_vectors(service.broker, request, *vectors)
            answer = await answering
            answer_body = answer.json()
            assert [each["embedding"] for each in answer_body["data"]] == [
                [float(n)] for n in range(40)
            ]
            assert answer_body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
            rids = answer.headers["x-tailrace-response-id"].split(", ")
            assert sorted(rids) == sorted(request.rid for request in requests)
            for rid in rids:
                for method, path in (
                    ("GET", f"/v1/responses/{rid}"),
                    ("GET", f"/v1/responses/{rid}?stream=true"),
                    ("GET", f"/v1/responses/{rid}/input_items"),
                    ("POST", f"/v1/responses/{rid}/cancel"),
                    ("DELETE", f"/v1/responses/{rid}"),
                    ("GET", f"/v1/chat/completions/chatcmpl-{rid[5:]}"),
                ):
                    http_answer = await client.request(method, path)
                    assert http_answer.status_code == 404, (method, path)
            more = {"input": "go on", "previous_response_id": rids[0]}
            refusal_answer = await client.post("/v1/responses", json=more)
            assert code(refusal_answer) == "previous_response_not_found"
        async with serving(keys) as service, service.client() as client:
            refusal_answer = await client.post("/v1/embeddings", json=body)
            assert (refusal_answer.status_code, refusal_answer.json()["error"]["param"]) == (
                400,
                "input",
            )

    async def test_an_input_that_is_too_long_is_named(self, keys: gateway_process.Keys) -> None:
        async with (
            serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
            service.client() as client,
        ):
            body = {"input": ["a", "b"]}
            answering = asyncio.ensure_future(client.post("/v1/embeddings", json=body))
            error = ("context_length_exceeded", "'input[1]' has 9 tokens.")
            gateway_parts.put_vectors(service.broker, await service.asked(), error=error)
            answer = await answering
            assert answer.status_code == 400
            assert answer.json()["error"] == {
                "message": error[1],
                "type": "invalid_request_error",
                "param": "input",
                "code": error[0],
            }

    async def test_what_a_worker_refuses_is_the_clients_to_repair(
        self, keys: gateway_process.Keys
    ) -> None:
        messages = [{"role": "user", "content": "hi"}]
        cases: list[tuple[str, dict[str, Any], str, dict[str, int]]] = [
            ("/v1/responses", {"input": "hi"}, "input", REFUSED),
            ("/v1/chat/completions", {"messages": messages}, "messages", FAILED),
            ("/v1/completions", {"prompt": "hi"}, "prompt", FAILED),
        ]
        rows = [(*row[:3], *each) for row in cases for each in row[3].items()]
        async with (
            serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
            service.client() as client,
        ):
            for number, (path, body, param, code, status) in enumerate(rows, 1):
                task = asyncio.ensure_future(client.post(path, json=body))
                request = await service.asked(number)
                service.answer(request, error=(code, "Why."))
                answer = await task
                assert answer.status_code == status
                field = param if code in ("context_length_exceeded", "invalid_image") else None
                assert answer.json()["error"] == {
                    "message": "Why.",
                    "type": "invalid_request_error" if status == 400 else "server_error",
                    "param": field,
                    "code": code,
                }
                if status == 400:
                    assert answer.headers["x-tailrace-response-id"] == request.rid

    async def test_tokens_are_counted_by_a_worker_that_generates_nothing(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            body = {"input": "hi", "stream": True, "background": True, "store": True}
            task = asyncio.ensure_future(client.post("/v1/responses/input_tokens", json=body))
            request = await service.asked()
            assert (request.generate, request.store) == (False, False)
            service.answer(request)
            assert (await task).json() == {"object": "response.input_tokens", "input_tokens": 1}

    async def test_openais_client_asks_once_for_what_is_too_long(
        self, keys: gateway_process.Keys
    ) -> None:
        async with (
            serving(keys) as service,
            openai.AsyncOpenAI(
                api_key=keys.token("alice"), base_url=f"http://127.0.0.1:{service.port}/v1"
            ) as client,
        ):

            async def ask() -> None:
                with pytest.raises(openai.BadRequestError) as error:
                    await client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "hi"}]
                    )
                assert error.value.code == "context_length_exceeded"
                assert error.value.param == "messages"

            task = asyncio.ensure_future(ask())
            service.answer(await service.asked(), error=("context_length_exceeded", "Too long."))
            await task
            assert len(service.requests()) == 1

    async def test_embeddings_are_cancelled_with_their_client(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys, TAILRACE_RECORDS_VERSION="2") as service:
            client = service.client()
            body = {"input": ["a"] * 33}
            answering = asyncio.ensure_future(client.post("/v1/embeddings", json=body))
            rids = sorted([(await service.asked(i)).rid for i in (1, 2)])
            answering.cancel()
            await client.aclose()
            await eventually(lambda: sorted(service.cancels()) == rids, "both are cancelled")

    async def test_an_idempotency_key_leads_to_the_same_vectors(
        self, keys: gateway_process.Keys
    ) -> None:
        async with (
            serving(keys, TAILRACE_RECORDS_VERSION="2") as service,
            service.client() as client,
        ):
            headers = {"idempotency-key": "k"}

            async def ask(path: str = "/v1/embeddings", text: str = "a") -> httpx.Response:
                return await client.post(path, json={"input": text}, headers=headers)

            first = asyncio.ensure_future(ask())
            gateway_parts.put_vectors(service.broker, await service.asked(), b"\0\0\x80?")
            actual = await first
            again = await ask()
            assert again.json() == actual.json()
            assert actual.json()["data"][0]["embedding"] == [1.0]
            assert len(service.requests()) == 1
            for other in (ask(text="b"), ask("/v1/responses")):
                assert code(await other) == "idempotency_key_reused"

    async def test_one_that_runs_has_no_object_yet_and_others_are_not_found(
        self, keys: gateway_process.Keys
    ) -> None:
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        async with serving(keys) as service, service.client() as client:
            for number, more in enumerate(({}, {"store": False})):
                body = {**fields, **more}
                answering = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
                request = await service.asked(number + 1)
                path = f"/v1/chat/completions/chatcmpl-{request.rid[5:]}"
                early = await client.get(path)
                assert early.status_code == (404 if more else 409)
                service.answer(request, "x")
                await answering
            for name in ("chatcmpl-x", "resp_x", request.rid, f"chatcmpl-{'a.' * 9}a"):
                answer = await client.get(f"/v1/chat/completions/{name}")
                assert answer.json()["error"]["code"] == "completion_not_found"

    async def test_what_is_not_offered_says_so_and_what_is(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            with cases.collected() as case:
                for method, path in (
                    ("GET", "/v1/uploads/upload_1"),
                    ("POST", "/v1/images/generations"),
                    ("POST", "/v1/audio/speech"),
                    ("DELETE", "/v1/threads/t"),
                    ("GET", "/v1/organization/usage/completions"),
                    ("POST", "/v1/chatkit/sessions"),
                    ("POST", "/v1/skills"),
                    ("POST", "/v1/responses/compact"),
                ):
                    with case(path):
                        answer = await client.request(method, path)
                        error = answer.json()["error"]
                        assert (answer.status_code, error["code"]) == (404, "not_offered")
                        assert error["message"].startswith(
                            f"{path} is not offered by this server. "
                        )
            assert code(await client.get("/v1/nothing")) == "not_found"

    async def test_lists_need_an_archive_and_changes_of_metadata_are_checked(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            for path in ("/v1/chat/completions", "/v1/responses"):
                answer = await client.get(path)
                assert answer.status_code == 503
                assert "archive" in answer.json()["error"]["message"]
                for query in ("limit=0", "limit=x", "order=up", f"metadata[{'n' * 65}]=v"):
                    assert (await client.get(f"{path}?{query}")).status_code == 400, query
            path = "/v1/chat/completions/chatcmpl-x"
            for body, param in (
                ({"metadata": {"a": 1}}, "metadata"),
                ({}, "metadata"),
                ({"metadata": {}, "model": "m"}, "model"),
            ):
                answer = await client.post(path, json=body)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
            answer = await client.post(path, json={"metadata": {"a": "b"}})
            assert answer.json()["error"]["code"] == "completion_not_found"

    async def test_realtime_sockets_are_told_the_same(self, keys: gateway_process.Keys) -> None:
        async with serving(keys) as service:
            with pytest.raises(websockets.InvalidStatus) as error:
                await service.socket(path="/v1/realtime")
            assert error.value.response.status_code == 404
            assert b"not_offered" in (error.value.response.body or b"")


class TestRefusals:
    """A create that fails says on every way whether the request may be in the log."""

    @pytest.mark.parametrize(
        ("path", "bodies"),
        [
            ("/v1/responses", UNKNOWN),
            ("/v1/chat/completions", (CHAT, {**CHAT, "stream": True})),
        ],
    )
    @pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
    async def test_over_http(
        self,
        keys: gateway_process.Keys,
        path: str,
        bodies: tuple[dict[str, Any], ...],
        keyed: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(idempotency, "ATTACH_DEADLINE_S", 0.0)
        async with serving(keys) as service, service.client() as client:
            for number, body in enumerate(bodies):
                headers = {"idempotency-key": f"k{number}"} if keyed else {}
                before, ended = service.requests(), service.cancels()
                for _ in range(2):
                    service.broker.fail_next_append(log.NotAppended("never sent"))
                answer = await client.post(path, json=body, headers=headers)
                assert (answer.status_code, code(answer)) == (503, "service_unavailable")
                assert (service.requests(), service.cancels()) == (before, ended)
                for _ in range(2):
                    service.broker.fail_next_append(log.AppendFailed("no answer"), landed=True)
                answer = await client.post(path, json=body, headers=headers)
                assert (answer.status_code, code(answer)) == (503, "outcome_unknown")
                rid = answer.headers["x-tailrace-response-id"]
                assert {request.rid for request in service.requests()[len(before) :]} == {rid}
                if not keyed:  # else whoever sends it again finds it
                    await service.cancelled(*ended, rid)

    async def test_over_a_socket(self, keys: gateway_process.Keys) -> None:
        async with serving(keys) as service, service.socket() as socket:
            for error in (log.NotAppended("never sent"), log.AppendFailed("no answer")):
                for _ in range(2):
                    service.broker.fail_next_append(error)
                await socket.send(json.dumps({"type": "response.create", "input": "x"}))
                reply = await event(socket)
                assert (reply["type"], reply["status"]) == ("error", 503)
                unknown = reply["error"]["code"] == "outcome_unknown"
                assert unknown == (type(error) is log.AppendFailed)
            rid = reply["error"]["headers"]["x-tailrace-response-id"]
            await service.cancelled(rid)

    async def test_a_client_that_leaves_before_the_answer_is_one_that_leaves_after_it(
        self, keys: gateway_process.Keys
    ) -> None:
        """A response that no client can ask for later is cancelled."""
        async with serving(keys) as service:
            service.broker.hold_acknowledgements()
            async with service.socket() as socket:
                create = {"type": "response.create", "input": "x", "store": False}
                await socket.send(json.dumps(create))
                request = await service.asked()
            service.broker.release_acknowledgements()
            await service.cancelled(request.rid)


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


class TestSocket:
    async def test_two_responses_on_one_connection_the_second_continues_the_first(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.socket() as socket:
            create = {"type": "response.create", "input": "one", "store": False}
            await socket.send(json.dumps(create))
            first = await service.asked(1)
            service.answer(first, "two")
            done = await until_type(socket, "response.completed")
            assert done["response"]["id"] == first.rid
            again = {**create, "input": "three", "previous_response_id": first.rid}
            await socket.send(json.dumps(again))
            second = await service.asked(2)
            assert [m["content"] for m in second.messages] == ["one", "two", "three"]
            service.answer(second)
            await until_type(socket, "response.completed")

    async def test_an_own_cancel_is_one_record_and_its_subscription_brings_the_end(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.socket() as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "x"}))
            request = await service.asked()
            service.answer(request, "half", end=False)
            await until_type(socket, "response.output_text.delta")
            await socket.send(json.dumps({"type": "response.cancel"}))
            ended = await until_type(socket, "response.incomplete", "response.cancelled")
            assert ended["response"]["status"] == "cancelled"
            assert service.cancels() == [request.rid]
            assert service.broker.reads == [], "no look-up in the log"

    async def test_an_own_cancel_that_cannot_be_written_is_told_and_may_be_repeated(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.socket() as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "x"}))
            service.answer(await service.asked(), "half", end=False)
            await until_type(socket, "response.output_text.delta")
            service.broker.fail_next_append(log.AppendFailed("no"))
            await socket.send(json.dumps({"type": "response.cancel"}))
            assert (await until_type(socket, "error"))["status"] == 503
            await socket.send(json.dumps({"type": "response.cancel"}))
            await until_type(socket, "response.incomplete", "response.cancelled")

    async def test_another_principals_response_cannot_be_cancelled(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.client() as client:
            rid = (
                await client.post("/v1/responses", json={"input": "hi", "background": True})
            ).json()["id"]
            async with service.socket(subject="bob") as socket:
                await socket.send(json.dumps({"type": "response.cancel", "response_id": rid}))
                assert (await event(socket))["error"]["code"] == "response_not_found"
            assert service.cancels() == []
            service.answer(await service.asked())

    async def test_a_response_is_resumed_on_a_new_socket_from_its_cursor(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service:
            async with service.socket() as socket:
                await socket.send(json.dumps({"type": "response.create", "input": "x"}))
                request = await service.asked()
                first = await event(socket)
            query = f"?resume={request.rid}&starting_after={first['sequence_number']}"
            async with service.socket(query) as socket:
                service.answer(request, "rest")
                assert (await event(socket))["sequence_number"] == first["sequence_number"] + 1
                await until_type(socket, "response.completed")

    async def test_what_is_not_stored_is_cancelled_when_its_socket_goes(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service:
            async with service.socket() as socket:
                create = {"type": "response.create", "input": "x", "store": False}
                await socket.send(json.dumps(create))
                await event(socket)
            await service.cancelled(service.requests()[0].rid)

    async def test_bad_frames_are_answered_and_the_socket_stays(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.socket() as socket:
            for frame, code in (
                ("{", "invalid_json"),
                ('{"type":"no.such"}', "unknown_event"),
                (b"bytes", None),
                ('{"type":"response.create","input":5}', "invalid_type"),
            ):
                await socket.send(frame)
                reply = await event(socket)
                assert reply["type"] == "error"
                assert code is None or reply["error"]["code"] == code

    @pytest.mark.parametrize(
        ("limits", "sockets"), [('{"sockets":1}', 1), ('{"sockets_per_principal":1}', 1)]
    )
    async def test_above_the_bound_a_handshake_is_refused_with_429(
        self, keys: gateway_process.Keys, limits: str, sockets: int
    ) -> None:
        async with serving(keys, TAILRACE_LIMITS=limits) as service, service.socket():
            assert len(service.gateway.sockets) == sockets
            with pytest.raises(websockets.InvalidStatus) as error:
                await service.socket()
            assert error.value.response.status_code == 429

    async def test_watch_sockets_and_event_streams_count_like_other_sockets(
        self, keys: gateway_process.Keys
    ) -> None:
        """2,000 watch sockets of one user were open where 1,024 were documented."""
        limits = '{"sockets_per_principal":3}'
        async with (
            serving(keys, TAILRACE_LIMITS=limits) as service,
            service.client() as client,
            service.socket(),
            service.socket(path="/v1/watch"),
        ):
            body = {"input": "x", "stream": True}
            async with client.stream("POST", "/v1/responses", json=body) as stream:
                request = await service.asked()
                for path in ("/v1/watch", "/v1/responses"):
                    with pytest.raises(websockets.InvalidStatus) as error:
                        await service.socket(path=path)
                    assert error.value.response.status_code == 429
                query = {"stream": "true"}
                answer = await client.get(f"/v1/responses/{request.rid}", params=query)
                assert answer.status_code == 429
                async with service.socket(subject="bob", path="/v1/watch"):
                    service.answer(request, "done")
                    await stream.aread()
            async with service.socket(path="/v1/watch"):
                pass

    async def test_refused_credentials_have_a_rate_and_those_that_are_known_are_served(
        self, keys: gateway_process.Keys
    ) -> None:
        limits = '{"refusals_rate":0.001,"refusals_burst":3}'
        async with serving(keys, TAILRACE_LIMITS=limits) as service, service.client() as client:
            assert (await client.get("/v1/models")).status_code == 200
            headers = {"authorization": "Bearer a.b.c"}
            http_answer = [(await client.get("/v1/models", headers=headers)) for _ in range(4)]
            assert [answer.status_code for answer in http_answer] == [401, 401, 401, 429]
            assert int(http_answer[-1].headers["retry-after"]) > 1
            assert (await client.get("/v1/models")).status_code == 200

    async def test_what_is_done_to_conversations_has_the_rates_of_requests(
        self, keys: gateway_process.Keys
    ) -> None:
        limits = (
            '{"requests_burst":3,"requests_rate":0.001,"tokens_burst":2000,"tokens_rate":0.001}'
        )
        async with serving(keys, TAILRACE_LIMITS=limits) as service, service.client() as client:
            small: dict[str, object] = {"title": "x"}
            large = {"items": [{"role": "user", "content": "x" * 9_000}]}
            actual = [
                (await client.post("/v1/conversations", json=body)).status_code
                for body in (small, large, small, small)
            ]
            assert actual == [503, 429, 503, 429]  # this one has no archive

    async def test_reads_and_tickets_have_rates(self, keys: gateway_process.Keys) -> None:
        limits = '{"reads_burst":3,"reads_rate":0.001,"tickets_burst":1,"tickets_rate":0.001}'
        async with serving(keys, TAILRACE_LIMITS=limits) as service, service.client() as client:
            statuses = [(await client.post("/v1/tickets")).status_code for _ in range(2)]
            assert statuses[1] == 429
            assert (await client.get("/v1/models")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 429
            assert (await client.get("/v1/responses/resp_1")).status_code == 429

    async def test_a_socket_without_a_valid_credential_is_refused_with_401(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service:
            url = f"ws://127.0.0.1:{service.port}/v1/responses"
            with pytest.raises(websockets.InvalidStatus) as error:
                await websockets.connect(url, additional_headers={"authorization": "Bearer x"})
            assert error.value.response.status_code == 401


class TestLife:
    async def test_a_drain_refuses_new_work_lets_running_responses_end_and_closes(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.socket() as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "x"}))
            request = await service.asked()
            await event(socket)
            service.stop.set()
            await log_contract.until(lambda: service.gateway.submission.intake.refusing, 5)
            await socket.send(json.dumps({"type": "response.create", "input": "y"}))
            assert (await until_type(socket, "error"))["status"] == 503
            service.answer(request, "to the end")
            await until_type(socket, "response.completed")
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await asyncio.wait_for(socket.recv(), 5)
            assert closed.value.rcvd is not None
            await asyncio.wait_for(service.task, 10)

    async def test_a_hurried_drain_leaves_running_responses_to_the_log(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, service.socket() as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "x"}))
            await event(socket)
            service.stop.set()
            service.hurry.set()
            with pytest.raises(websockets.ConnectionClosed):
                await until_type(socket, "no such event")
            await asyncio.wait_for(service.task, 10)
            assert service.cancels() == []

    async def test_a_part_that_fails_for_good_ends_the_process(
        self, keys: gateway_process.Keys
    ) -> None:
        async with contextlib.AsyncExitStack() as stack:
            service = await stack.enter_async_context(serving(keys))
            service.broker.replace("two")
            other = ids.mint(ids.Address(service.broker.layout.tag, 0, 0), bytes(ids.RANDOM_BYTES))
            async with service.client() as client:
                assert (await client.post(f"/v1/responses/{other}/cancel")).status_code == 503
            with pytest.raises(ExceptionGroup) as failed:
                await asyncio.wait_for(asyncio.shield(service.task), 10)
            assert failed.group_contains(log.LogChanged)


class TestMisconfigured:
    async def test_issuers_that_cannot_be_read_are_refused_before_anything_starts(
        self, tmp_path: Path, keys: gateway_process.Keys
    ) -> None:
        unreadable = gateway_process.Keys(tmp_path, keys.private)
        unreadable.issuers.write_text("not json")
        with pytest.raises(IssuersRefused):
            await app.serve(configuration(unreadable))

    async def test_a_port_that_is_taken_is_one_line(self, keys: gateway_process.Keys) -> None:
        with contextlib.closing(listener.bind("127.0.0.1", 0)) as bound_socket:
            bound_socket.listen()
            port = str(bound_socket.getsockname()[1])
            with pytest.raises(settings.Misconfigured, match="cannot listen"):
                await app.serve(configuration(keys, TAILRACE_PORT=port))


class TestWatch:
    async def test_the_first_known_one_of_the_offered_subprotocols_is_taken(
        self, keys: gateway_process.Keys
    ) -> None:
        one, two, three = (websockets.Subprotocol(f"tailrace.v{n}") for n in (1, 2, 3))
        rows: list[tuple[list[websockets.Subprotocol], str | None]] = [
            ([], None),
            ([one], one),
            ([two], two),
            ([two, one], two),
            ([one, two], one),
            ([three, two], two),
            ([three], None),
        ]
        async with serving(keys) as service, service.client() as client:
            body = {"input": "hi", "background": True}
            rid = (await client.post("/v1/responses", json=body)).json()["id"]
            service.answer(await service.asked(), "one ", "two ", "three")
            stream = await client.get(f"/v1/responses/{rid}", params={"stream": "true"})
            lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
            with cases.collected() as case:
                for by_ticket in (False, True):
                    for protocols, protocol in rows:
                        with case((protocols, by_ticket)):
                            await self.watch(
                                service, client, rid, lines, protocols, protocol, by_ticket
                            )

    async def watch(
        self,
        service: Service,
        client: httpx.AsyncClient,
        rid: str,
        lines: list[str],
        protocols: list[websockets.Subprotocol],
        protocol: str | None,
        by_ticket: bool,
    ) -> None:
        """Watch one response of which `lines` are the events."""
        headers = {"authorization": client.headers["authorization"]}
        if by_ticket:
            ticket = (await client.post("/v1/tickets")).json()["ticket"]
            protocols, headers = [*protocols, websockets.Subprotocol(f"ticket.{ticket}")], {}
        async with websockets.connect(
            f"ws://127.0.0.1:{service.port}/v1/watch",
            additional_headers=headers,
            subprotocols=protocols or None,
        ) as socket:
            assert socket.subprotocol == protocol
            await socket.send(json.dumps({"type": "watch", "response_id": rid}))
            frames = [str(await asyncio.wait_for(socket.recv(), 5)) for _ in range(2)]
        head = f'{{"type":"watch.events","response_id":"{rid}",'
        if protocol == "tailrace.v2":
            assert frames[0].startswith(head + '"number":0,"events":[')
            assert '"logprobs":[]},"two ","three",{' in frames[0]
            actual = compact_reader.Reader().read(frames[0])["events"]
            assert actual == [json.loads(line) for line in lines]
        else:  # to the byte what it always was
            assert frames[0] == f'{head}"events":[{",".join(lines)}]}}'
        assert json.loads(frames[1])["type"] == "watch.done"

    async def test_responses_over_websocket_have_the_first_version_alone(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service:
            headers = {"authorization": f"Bearer {service.keys.token()}"}
            url = f"ws://127.0.0.1:{service.port}/v1/responses"
            both = [websockets.Subprotocol(access.COMPACT_SUBPROTOCOL), OWN_PROTOCOL]
            for protocols, protocol in ((both, OWN_PROTOCOL), (both[:1], None)):
                async with websockets.connect(
                    url, additional_headers=headers, subprotocols=protocols
                ) as socket:
                    assert socket.subprotocol == protocol


class TestRevoked:
    async def test_sockets_streams_and_waiting_requests_end_and_nothing_that_waits_is_run(
        self, keys: gateway_process.Keys
    ) -> None:
        async with (
            serving(keys) as service,
            service.client() as client,
            service.client("bob") as bob,
            service.socket() as asking,
            service.socket(path="/v1/watch") as watching,
            service.socket(subject="bob") as bystander,
        ):
            await asking.send(json.dumps({"type": "response.create", "input": "1", "store": False}))
            unstored = await service.asked(1)
            for text in ("2", "3"):
                await asking.send(json.dumps({"type": "response.create", "input": text}))
            streaming = asyncio.create_task(
                client.post("/v1/responses", json={"input": "4", "stream": True})
            )
            await service.asked(2)
            waiting_one = asyncio.create_task(client.post("/v1/responses", json={"input": "5"}))
            whole = await service.asked(3)
            service.answer(whole, "begun", end=False)

            await service.revoke("alice")

            with pytest.raises(websockets.ConnectionClosed) as closed:
                await until_type(asking, "response.completed")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await asyncio.wait_for(watching.recv(), 5)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4500
            with pytest.raises(httpx.RemoteProtocolError):
                await streaming
            assert (await waiting_one).status_code == 401
            await service.cancelled(unstored.rid)  # stored ones go on
            assert [r.messages[0]["content"] for r in service.requests()] == ["1", "4", "5"]
            assert (await client.get("/v1/models")).status_code == 401
            assert (await bob.get("/v1/models")).status_code == 200
            await bystander.send(json.dumps({"type": "response.create", "input": "6"}))
            service.answer(await service.asked(4), "fine")
            assert (await until_type(bystander, "response.completed"))["type"]

    async def test_nobody_is_let_in_before_all_revocations_are_known(
        self, keys: gateway_process.Keys
    ) -> None:
        broker = memory_log.MemoryLog("one", 1)
        record = records.Revoked("0" * 16, gateway_process.ISS, 2**52, "alice")
        broker.put_record(topics.REVOCATIONS, 0, record, record.id)
        broker.lag(topics.REVOCATIONS, 0, 0)
        async with serving(keys, broker, ready=False) as service, service.client() as client:
            await log_contract.until(lambda: service.gateway.submission.responsive, 5)
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/v1/models")).status_code == 503
            broker.catch_up(topics.REVOCATIONS, 0)
            await log_contract.until(lambda: service.gateway.revocations.ready, 5)
            assert (await client.get("/ready")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 401

    async def test_redis_decides_nothing(self, keys: gateway_process.Keys) -> None:
        async with serving(keys) as service, service.client() as client:
            await service.revoke("alice")
            service.redis.values.clear()
            assert (await client.get("/v1/models")).status_code == 401
            service.redis.away = True
            assert (await client.get("/v1/models")).status_code == 401


ROWS = "/v1/admin/revocations"


class TestAdmin:
    async def test_an_administrator_revokes_lists_and_lifts(
        self, keys: gateway_process.Keys
    ) -> None:
        async with (
            serving(keys) as service,
            service.client("root", scopes=["admin"]) as admin,
            service.client() as alice,
            service.client(credential="c2") as other,
        ):
            assert (await alice.get("/v1/models")).status_code == 200
            done = await admin.post(ROWS, json={"subject": "alice"})
            assert (done.status_code, done.json()["subject"]) == (201, "alice")
            assert (await alice.get("/v1/models")).status_code == 401
            assert (await admin.get(ROWS)).json()["data"] == [done.json()]
            row = f"{ROWS}/{done.json()['id']}"
            assert (await admin.delete(row)).status_code == 200
            assert (await admin.delete(row)).status_code == 404
            assert (await admin.get(ROWS)).json()["data"] == []
            assert (await alice.get("/v1/models")).status_code == 200
            assert (await admin.post(ROWS, json={"credential": "c2"})).status_code == 201
            assert (await other.get("/v1/models")).status_code == 401
            assert (await alice.get("/v1/models")).status_code == 200

    async def test_without_the_scope_nobody_is_one(self, keys: gateway_process.Keys) -> None:
        async with (
            serving(keys) as service,
            service.client(scopes=()) as no_scope,
            service.client(scopes=("create", "read")) as other,
        ):
            for call in (
                each
                for client in (no_scope, other)
                for each in (
                    client.post(ROWS, json={"subject": "bob"}),
                    client.get(ROWS),
                    client.delete(f"{ROWS}/{'0' * 16}"),
                )
            ):
                answer = await call
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    403,
                    "insufficient_scope",
                )

    async def test_an_administrator_of_a_tenant_acts_within_it(
        self, keys: gateway_process.Keys
    ) -> None:
        async with (
            serving(keys) as service,
            service.client("root", scopes=["admin"]) as root,
            service.client("chief", scopes=["admin"], tenant="acme") as chief,
            service.client("alice", tenant="acme") as inside,
            service.client("alice", tenant="other") as outside,
        ):
            theirs = (await root.post(ROWS, json={"tenant": "third"})).json()
            answer = await chief.post(ROWS, json={"subject": "alice", "tenant": "other"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                403,
                "forbidden_tenant",
            )
            done = (await chief.post(ROWS, json={"subject": "alice"})).json()
            assert done["tenant"] == "acme"
            assert (await chief.get(ROWS)).json()["data"] == [done]
            assert (await chief.delete(f"{ROWS}/{theirs['id']}")).status_code == 404
            assert (await inside.get("/v1/models")).status_code == 401
            assert (await outside.get("/v1/models")).status_code == 200

    async def test_a_body_that_says_something_else_is_refused(
        self, keys: gateway_process.Keys
    ) -> None:
        bodies: list[Any] = [
            {},
            {"subject": ""},
            {"subject": 1},
            {"subject": "x" * 256},
            {"subject": "a", "issuer": "https://other"},
            {"subject": "a", "for_s": -1},
            {"subject": "a", "for_s": True},
            {"subject": "a", "for_s": 366 * 86_400},
            [],
        ]
        async with serving(keys) as service, service.client("root", scopes=["admin"]) as admin:
            with cases.collected() as case:
                for body in bodies:
                    with case(body):
                        assert (await admin.post(ROWS, json=body)).status_code == 400
            assert service.broker.records(topics.REVOCATIONS, 0) == []


class TestScopes:
    async def test_whoever_may_only_read_creates_nothing(self, keys: gateway_process.Keys) -> None:
        async with (
            serving(keys) as service,
            service.client() as owner,
            service.client(scopes=["read"]) as reader,
            service.client(scopes=["create"]) as creator,
        ):
            http_answer = await owner.post("/v1/responses", json={"input": "1", "background": True})
            rid = http_answer.json()["id"]
            for call in (
                reader.post("/v1/responses", json={"input": "1"}),
                reader.post("/v1/chat/completions", json={"messages": []}),
                reader.post(f"/v1/responses/{rid}/cancel"),
                reader.delete(f"/v1/responses/{rid}"),
                creator.get(f"/v1/responses/{rid}"),
                creator.get(f"/v1/responses/{rid}?stream=true"),
                creator.get(f"/v1/responses/{rid}/input_items"),
            ):
                answer = await call
                assert answer.status_code == 403, answer.request.url
                assert answer.json()["error"]["code"] == "insufficient_scope"
            assert (await reader.get(f"/v1/responses/{rid}")).status_code == 200
            again = await creator.post("/v1/responses", json={"input": "2", "background": True})
            assert again.status_code == 200
            assert len(service.requests()) == 2

    async def test_a_socket_asks_for_the_scope_of_its_commands(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service:
            for path, scope in (("/v1/responses", "read"), ("/v1/watch", "create")):
                with pytest.raises(websockets.InvalidStatus) as error:
                    await service.socket(path=path, scopes=[scope])
                assert error.value.response.status_code == 403, path


class TestCredentialsThatExpire:
    """On connections that are open when the credential ends."""

    SHORT_S = 300
    WARNED_S = SHORT_S - credential_timer.WARNED_S + 1

    def speaking(self, service: Service, path: str) -> Any:
        """A socket of a client that speaks our own protocol, with a credential of a short life."""
        headers = {"authorization": f"Bearer {service.keys.token(ttl=self.SHORT_S)}"}
        url = f"ws://127.0.0.1:{service.port}{path}"
        return websockets.connect(
            url, additional_headers=headers, compression=None, subprotocols=[OWN_PROTOCOL]
        )

    async def opened(self, service: Service, socket: Any) -> None:
        """Wait until the gateway serves the socket: it has answered a message."""
        await socket.send(json.dumps({"type": "no such thing"}))
        assert (await event(socket))["status"] == 400

    @pytest.mark.parametrize("path", ["/v1/responses", "/v1/watch"])
    async def test_a_new_one_is_shown_on_the_open_socket_and_it_stays(
        self, keys: gateway_process.Keys, path: str
    ) -> None:
        time = Time()
        async with serving(keys, time=time) as service, service.client() as client:
            for how in ("credential", "ticket"):
                time.restart()
                async with self.speaking(service, path) as socket:
                    await self.opened(service, socket)
                    time.pass_by(self.WARNED_S)
                    reply = await event(socket)
                    assert reply["type"] == "auth_expiring"
                    assert 0 < reply["after_ms"] <= credential_timer.WARNED_S * 1000
                    message = (
                        keys.token()
                        if how == "credential"
                        else (await client.post("/v1/tickets")).json()["ticket"]
                    )
                    await socket.send(json.dumps({"type": "auth", how: message}))
                    first_reply = await event(socket)
                    assert first_reply["type"] == "auth_renewed"
                    assert first_reply["expires_at"] > time.now() + self.SHORT_S
                    time.pass_by(self.SHORT_S)
                    await self.opened(service, socket)

    @pytest.mark.parametrize("path", ["/v1/responses", "/v1/watch"])
    async def test_without_a_new_one_it_closes_for_a_client_to_come_back(
        self, keys: gateway_process.Keys, path: str
    ) -> None:
        """What is not this principal's is refused, and the former one holds to its end."""
        time = Time()
        async with (
            serving(keys, time=time) as service,
            service.client("bob") as bob,
            self.speaking(service, path) as socket,
        ):
            await self.opened(service, socket)
            time.pass_by(self.WARNED_S)
            assert (await event(socket))["type"] == "auth_expiring"
            listing = (await bob.post("/v1/tickets")).json()["ticket"]
            for message in (
                {"credential": keys.token("bob")},
                {"ticket": listing},
                {"ticket": "x" * 22},
                {"credential": keys.token()[:-2]},
                {"credential": keys.token(age_s=100, ttl=10)},
            ):
                await socket.send(json.dumps({"type": "auth", **message}))
                reply = await event(socket)
                assert (reply["type"], reply["status"]) == ("auth_refused", 401)
                assert reply["error"]["code"] == "invalid_api_key"
            time.pass_by(credential_timer.WARNED_S)
            await asyncio.wait_for(socket.wait_closed(), 10)
            assert socket.close_code == (4003 if path == "/v1/watch" else 1012)
            assert "credential" in socket.close_reason

    async def test_a_client_of_openais_protocol_is_told_nothing_new(
        self, keys: gateway_process.Keys
    ) -> None:
        time = Time()
        async with (
            serving(keys, time=time) as service,
            service.socket(ttl=self.SHORT_S) as socket,
        ):
            await socket.send(json.dumps({"type": "auth", "credential": keys.token()}))
            assert (await event(socket))["error"]["code"] == "unknown_event"
            time.pass_by(self.SHORT_S)
            await asyncio.wait_for(socket.wait_closed(), 10)
            assert socket.close_code == 1012

    @pytest.mark.parametrize("create", [True, False], ids=["of a create", "of a retrieve"])
    async def test_an_event_stream_ends_with_it_and_a_new_one_resumes(
        self, keys: gateway_process.Keys, create: bool
    ) -> None:
        time = Time()
        async with serving(keys, time=time) as service, service.client() as whole:
            async with service.client(ttl=self.SHORT_S) as client:
                body = {"input": "hi", "stream": True}
                if create:
                    stream = client.stream("POST", "/v1/responses", json=body)
                else:
                    http_answer = await whole.post(
                        "/v1/responses", json={"input": "hi", "background": True}
                    )
                    rid = http_answer.json()["id"]
                    stream = client.stream("GET", f"/v1/responses/{rid}?stream=true")
                received_bytes = b""
                async with asyncio.timeout(20), stream as answer:
                    service.answer(await service.asked(), "one ", end=False)
                    with contextlib.suppress(httpx.RemoteProtocolError):  # it is broken off
                        async for part in answer.aiter_raw():
                            received_bytes += part
                            if b"one " in received_bytes:
                                time.pass_by(self.SHORT_S)
                assert b"one " in received_bytes
                assert b"[DONE]" not in received_bytes
                rid = service.requests()[0].rid
                refusal_answer = await client.get(f"/v1/responses/{rid}?stream=true")
                assert refusal_answer.status_code == 401
            last = max(
                json.loads(line[6:])["sequence_number"]
                for line in received_bytes.decode().splitlines()
                if line.startswith("data: ")
            )
            await whole.post(f"/v1/responses/{rid}/cancel")
            rest = await whole.get(f"/v1/responses/{rid}?stream=true&starting_after={last}")
            assert rest.text.endswith("data: [DONE]\n\n")


class TestSession:
    """A browser's session, as the page uses it."""

    @contextlib.asynccontextmanager
    async def browser(self, service: Service) -> AsyncIterator[httpx.AsyncClient]:
        """Keeps cookies. The names of its headers are those of a page of this gateway."""
        base = f"http://127.0.0.1:{service.port}"
        headers = {"sec-fetch-site": "same-origin"}
        async with httpx.AsyncClient(base_url=base, headers=headers) as client:
            yield client

    async def signed_in(
        self, client: httpx.AsyncClient, service: Service, subject: str = "alice", **claims: Any
    ) -> dict[str, str]:
        """The header with the session's token."""
        credential = service.keys.token(subject, **claims)
        own = {"origin": str(client.base_url).rstrip("/")}
        answer = await client.post("/v1/session", json={"credential": credential}, headers=own)
        assert answer.status_code == 200, answer.text
        assert credential not in str(answer.headers)
        return {"x-tailrace-session": answer.json()["token"]}

    async def test_a_page_signs_in_asks_and_signs_out(self, keys: gateway_process.Keys) -> None:
        async with serving(keys) as service, self.browser(service) as page:
            assert (await page.get("/v1/session")).json()["subject"] is None
            token = await self.signed_in(page, service)
            who = (await page.get("/v1/session")).json()
            assert (who["subject"], who["token"]) == ("alice", token["x-tailrace-session"])
            body = {"input": "hi", "background": True}
            answer = await page.post("/v1/responses", json=body, headers=token)
            assert answer.status_code == 200
            rid = answer.json()["id"]
            assert (await page.get(f"/v1/responses/{rid}")).status_code == 200
            async with service.client() as alice:
                assert (await alice.get(f"/v1/responses/{rid}")).status_code == 200
            assert (await page.post("/v1/tickets", json={}, headers=token)).status_code == 200
            assert (await page.delete("/v1/session", headers=token)).status_code == 200
            assert (await page.get("/v1/session")).json()["subject"] is None
            assert (await page.get(f"/v1/responses/{rid}")).status_code == 401

    async def test_a_cookie_alone_changes_nothing(self, keys: gateway_process.Keys) -> None:
        async with serving(keys) as service, self.browser(service) as page:
            await self.signed_in(page, service)
            for headers in ({}, {"x-tailrace-session": "0" * 64}):
                for call in (
                    page.post("/v1/responses", json={"input": "hi"}, headers=headers),
                    page.post("/v1/chat/completions", json={"messages": []}, headers=headers),
                    page.post("/v1/tickets", headers=headers),
                    page.post("/v1/responses/resp_x/cancel", headers=headers),
                    page.delete("/v1/responses/resp_x", headers=headers),
                    page.post("/v1/admin/revocations", json={}, headers=headers),
                    page.delete("/v1/session", headers=headers),
                ):
                    answer = await call
                    assert answer.status_code == 403, answer.request.url
                    assert answer.json()["error"]["code"] == "session_token_missing"
            assert service.requests() == []

    async def test_no_other_site_signs_in_or_out_or_learns_who_one_is(
        self, keys: gateway_process.Keys
    ) -> None:
        listing = "https://evil.example"  # listed ones get no session either
        async with (
            serving(keys, TAILRACE_ORIGINS=listing) as service,
            self.browser(service) as page,
        ):
            token = await self.signed_in(page, service)
            body = {"credential": service.keys.token("mallory")}
            with cases.collected() as case:
                for headers in (
                    {"origin": "https://evil.example"},
                    {"origin": "null"},
                    {"sec-fetch-site": "same-site"},
                    {"sec-fetch-site": "cross-site"},
                ):
                    all_headers = {**token, **headers}
                    for method, payload in (("POST", body), ("GET", None), ("DELETE", None)):
                        with case((method, headers)):
                            answer = await page.request(
                                method, "/v1/session", headers=all_headers, json=payload
                            )
                            assert answer.status_code == 403
                            assert "set-cookie" not in answer.headers
            assert (await page.get("/v1/session")).json()["subject"] == "alice"

    async def test_neither_a_form_nor_a_bad_credential_makes_a_session(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, self.browser(service) as page:
            body = {"credential": service.keys.token("mallory")}
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                content, form = json.dumps(body), {"content-type": kind}
                answer = await page.post("/v1/session", content=content, headers=form)
                assert (answer.status_code, "set-cookie" in answer.headers) == (400, False), kind
            for credential, status in (("x.y.z", 401), (None, 400), (5, 400)):
                answer = await page.post("/v1/session", json={"credential": credential})
                assert (answer.status_code, "set-cookie" in answer.headers) == (status, False)
            large = await page.post("/v1/session", json={"credential": "x" * 20_000})
            assert large.status_code == 413

    async def test_a_revoked_session_is_over_and_its_scopes_are_the_credentials(
        self, keys: gateway_process.Keys
    ) -> None:
        async with serving(keys) as service, self.browser(service) as page:
            token = await self.signed_in(page, service, scopes=["read"])
            answer = await page.post("/v1/responses", json={"input": "hi"}, headers=token)
            assert answer.json()["error"]["code"] == "insufficient_scope"
            await service.revoke("alice")
            assert (await page.get("/v1/session")).json()["subject"] is None
            assert (await page.get("/v1/responses/resp_x")).status_code == 401
            again = await page.post("/v1/session", json={"credential": service.keys.token("alice")})
            assert again.status_code == 401

    async def test_a_cookie_opens_no_socket(self, keys: gateway_process.Keys) -> None:
        """Only a one-time ticket does, which another site's page cannot get."""
        async with serving(keys) as service, self.browser(service) as page:
            await self.signed_in(page, service)
            cookie = "; ".join(f"{name}={value}" for name, value in page.cookies.items())
            for path in ("/v1/responses", "/v1/watch"):
                with pytest.raises(websockets.InvalidStatus) as error:
                    await websockets.connect(
                        f"ws://127.0.0.1:{service.port}{path}",
                        additional_headers={"cookie": cookie},
                    )
                assert error.value.response.status_code == 401
