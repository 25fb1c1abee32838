"""Health, readiness and metrics on an address of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tailrace import admin, settings, telemetry
from tests.support import cases


@contextlib.asynccontextmanager
async def serving(
    ready: admin.Readiness = lambda: {"ready": True},
) -> AsyncIterator[tuple[admin.AdminServer, httpx.AsyncClient]]:
    server = admin.AdminServer("127.0.0.1", 0, ready)
    task = asyncio.create_task(server.run())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            yield server, client
    finally:
        task.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(task, return_exceptions=True)


async def test_health_metrics_and_the_rest() -> None:
    telemetry.REQUESTS.labels(outcome="accepted").inc()
    async with serving() as (_, client):
        assert (await client.get("/health")).json() == {"status": "ok"}
        metrics = await client.get("/metrics?x=1")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert 'tailrace_requests_total{outcome="accepted"}' in metrics.text
        other = await client.get("/other")
        assert (other.status_code, other.text) == (404, "")
        assert (await client.post("/health")).status_code == 405
        head = await client.head("/health")
        assert (head.status_code, head.headers["content-length"]) == (200, "15")
        assert head.content == b""


async def test_a_slash_too_many_is_no_redirect_to_the_host_that_the_client_names() -> None:
    async with serving() as (_, client):
        answer = await client.get("/health/", headers={"host": "evil.example"})
        assert answer.status_code == 404
        assert "location" not in answer.headers


async def _later() -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"ready": True, "kafka": True}


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {"ready": True}


def _broken() -> dict[str, Any]:
    raise ValueError("the prompt of a person")


@pytest.mark.parametrize(
    ("ready", "status", "body"),
    [
        (lambda: {"ready": True, "state": "ready"}, 200, {"ready": True, "state": "ready"}),
        (lambda: {"ready": False, "state": "loading"}, 503, {"ready": False, "state": "loading"}),
        (lambda: {}, 503, {}),
        (lambda: {"ready": "yes"}, 503, {"ready": "yes"}),
        (_later, 200, {"ready": True, "kafka": True}),
        (_never, 503, {"ready": False, "detail": "TimeoutError"}),
        (_broken, 503, {"ready": False, "detail": "ValueError"}),
    ],
)
async def test_ready_says_what_it_was_told_and_a_service_that_cannot_say_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, ready: admin.Readiness, status: int, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(admin, "READY_S", 0.1)
    async with serving(ready) as (_, client):
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()) == (status, body)


@cases.each(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x00\r\n\r\n",
        b"GET / " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /hea",
    ],
)
async def test_garbage_does_not_disturb_the_others(sent: bytes) -> None:
    async with serving() as (server, client):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        await writer.drain()
        assert (await client.get("/health")).status_code == 200
        writer.close()


async def test_it_ends_with_its_task_and_frees_its_port() -> None:
    async with serving() as (server, client):
        assert (await client.get("/health")).status_code == 200
        with pytest.raises(settings.Misconfigured, match="TAILRACE_ADMIN_PORT"):
            admin.AdminServer("127.0.0.1", server.port, dict)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_it_ends_while_a_client_has_not_finished_its_request() -> None:
    async with serving() as (server, client):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\n")
        await writer.drain()
        assert (await client.get("/health")).status_code == 200
    writer.close()


async def test_it_ends_when_it_is_cancelled_before_it_serves() -> None:
    server = admin.AdminServer("127.0.0.1", 0, dict)
    task = asyncio.create_task(server.run())
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
