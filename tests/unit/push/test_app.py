"""The push service as one application, over a log in memory and without Redis."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest
import websockets

from push import app
from tailrace import settings
from tailrace.auth.issuers import Issuers
from tailrace.store.redis_store import RedisStore
from tailrace.web import listener, middleware, runner
from tests.support import log_contract, memory_delivery, memory_log

ORIGIN = "https://page.example"
NO_REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture
def config(tmp_path: Path) -> settings.PushSettings:
    issuers = tmp_path / "issuers.json"
    issuers.write_text("{}")
    return settings.push(
        {
            "TAILRACE_ISSUERS": str(issuers),
            "TAILRACE_REDIS": NO_REDIS,
            "TAILRACE_ORIGINS": ORIGIN,
            "TAILRACE_DRAIN_S": "1",
        }
    )


@pytest.fixture
def push(config: settings.PushSettings) -> app.Push:
    broker = memory_log.MemoryLog()
    clients = memory_delivery.clients(broker)
    issuers = Issuers(MappingProxyType({}))
    return app.Push(config, issuers, broker.layout, clients, RedisStore(NO_REDIS))


@pytest.fixture
async def http(push: app.Push) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(push.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://push") as client:
        yield client
    await push.redis.aclose()


@pytest.mark.parametrize("path", ["/health", "/ready", "/no/such", "/v1/responses/resp_x"])
async def test_every_answer_has_an_id_and_the_security_headers(
    http: httpx.AsyncClient, path: str
) -> None:
    answer = await http.get(path)
    assert answer.headers["x-request-id"].startswith("req_")
    for name, value in middleware.SECURITY_HEADERS.items():
        assert answer.headers[name] == value


async def test_a_listed_origin_may_read_the_answers(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/responses/resp_x", headers={"origin": ORIGIN})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    asked = {"origin": ORIGIN, "access-control-request-method": "GET"}
    assert (await http.options("/v1/responses/resp_x", headers=asked)).status_code == 204


@pytest.mark.parametrize("path", ["/health/", "/ready/", "/v1/responses/resp_x/"])
async def test_a_forged_host_gets_no_redirect_to_itself(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path, headers={"host": "evil.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert "evil.example" not in answer.text


async def test_errors_have_the_shape_of_the_api(http: httpx.AsyncClient) -> None:
    unknown = await http.get("/no/such")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "invalid_request_error")
    wrong = await http.post("/health")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "GET" in wrong.headers["allow"]


async def test_it_is_not_ready_before_the_log_was_read(http: httpx.AsyncClient) -> None:
    answer = await http.get("/ready")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "kafka": False, "redis": False, "draining": False}


@contextlib.asynccontextmanager
async def running(push: app.Push) -> AsyncIterator[tuple[int, asyncio.Event, asyncio.Task[None]]]:
    bound = listener.bind("127.0.0.1", 0)
    stop = asyncio.Event()
    task = asyncio.create_task(push.run(bound, stop, asyncio.Event()))
    port: int = bound.getsockname()[1]
    try:
        await log_contract.until(
            lambda: (push.delivery.answered and push.revocations.ready) or task.done(), 10
        )
        yield port, stop, task
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await task


async def test_without_redis_it_serves_until_it_is_told_to_stop(push: app.Push) -> None:
    async with running(push) as (port, stop, task):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["redis"]) == (200, False)
        stop.set()
        async with asyncio.timeout(20):
            await task
    with pytest.raises(ConnectionRefusedError), socket.socket() as client_socket:
        client_socket.connect(("127.0.0.1", port))


async def test_a_refused_watch_socket_has_an_id_and_the_security_headers(push: app.Push) -> None:
    async with running(push) as (port, _, _):
        with pytest.raises(websockets.InvalidStatus) as error:
            await websockets.connect(f"ws://127.0.0.1:{port}/v1/watch")
        response = error.value.response
        assert response.status_code == 401
        assert response.headers["x-request-id"].startswith("req_")
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_an_admin_address_that_is_taken_is_one_line_and_no_traceback(
    tmp_path: Path, config: settings.PushSettings
) -> None:
    broker = memory_log.MemoryLog()
    with listener.bind("127.0.0.1", 0) as taken:
        taken.listen()
        environ = {
            "TAILRACE_ISSUERS": str(config.issuers),
            "TAILRACE_ADMIN_PORT": str(taken.getsockname()[1]),
        }
        push = app.Push(
            settings.push(environ),
            Issuers(MappingProxyType({})),
            broker.layout,
            memory_delivery.clients(broker),
            RedisStore(NO_REDIS),
        )
        with (
            listener.bind("127.0.0.1", 0) as bound,
            pytest.raises(settings.Misconfigured, match="TAILRACE_ADMIN_PORT"),
        ):
            await push.run(bound, asyncio.Event(), asyncio.Event())


@pytest.mark.parametrize(
    ("environ", "name"),
    [({}, "TAILRACE_ISSUERS"), ({"TAILRACE_ISSUERS": "x", "TAILRACE_PORT": "no"}, "TAILRACE_PORT")],
)
def test_a_misconfiguration_is_named_and_exits_2(
    environ: dict[str, str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.run("push", lambda: settings.push(environ), app.serve) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"push: {name}")
