"""Health, readiness and metrics on an address of their own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tailrace import telemetry
from tailrace.telemetry import health


@contextlib.asynccontextmanager
async def _admin(
    ready: health.Readiness = lambda: {"ready": True},
) -> AsyncIterator[tuple[health.AdminServer, httpx.AsyncClient]]:
    admin = health.AdminServer("127.0.0.1", 0, ready)
    task = asyncio.create_task(admin.run())
    try:
        async with asyncio.timeout(5):
            await admin.listening.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin.port}") as client:
            yield admin, client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_health_metrics_and_the_rest() -> None:
    telemetry.REQUESTS.labels(outcome="accepted").inc()
    async with _admin() as (_, client):
        assert (await client.get("/health")).json() == {"status": "ok"}
        metrics = await client.get("/metrics?x=1")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert 'tailrace_requests_total{outcome="accepted"}' in metrics.text
        assert (await client.get("/other")).status_code == 404
        assert (await client.post("/health")).status_code == 405
        head = await client.head("/health")
        assert (head.status_code, head.headers["content-length"]) == (200, "15")


async def test_head_has_no_body() -> None:
    async with _admin() as (admin, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        writer.write(b"HEAD /health HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"\r\n\r\n")
        writer.close()


async def _later() -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"ready": True, "kafka": True}


async def _never() -> dict[str, Any]:
    await asyncio.sleep(60)
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
async def test_ready_says_what_it_was_told_and_whoever_cannot_say_is_not(
    monkeypatch: pytest.MonkeyPatch, ready: health.Readiness, status: int, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(health, "_READY_S", 0.1)
    async with _admin(ready) as (_, client):
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()) == (status, body)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET\r\n\r\n", b"HTTP/1.1 400"),
        (b"\x16\x03\x01\x00\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET / " + b"x" * 20_000 + b"\r\n\r\n", b""),
        (b"GET /hea", b""),
    ],
)
async def test_garbage_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: bytes, answer: bytes
) -> None:
    monkeypatch.setattr(health, "_REQUEST_S", 0.2)
    async with _admin() as (admin, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        writer.write(sent)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            got = await asyncio.wait_for(reader.read(), 5)
        assert got[:12] == answer
        writer.close()
        assert (await client.get("/health")).status_code == 200
    assert [line for line in caplog.records if line.name == "asyncio"] == []


async def test_it_ends_with_its_task_and_frees_its_port() -> None:
    async with _admin() as (admin, _):
        port = admin.port
        with pytest.raises(OSError, match="in use"):
            await health.AdminServer("127.0.0.1", port, dict).run()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_slow_client_does_not_hold_up_the_end() -> None:
    async with _admin() as (admin, _):
        _, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        writer.write(b"GET /health HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    writer.close()
