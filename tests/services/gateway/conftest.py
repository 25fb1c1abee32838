"""One gateway and one worker (scripted engine) on the run's broker and Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tailrace.protocol.events import TERMINAL_TYPES
from tests.support import gateway_process as gp
from tests.support import local

PAGE = "<!doctype html><title>page</title>"


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> gp.Keys:
    return gp.Keys.make(tmp_path_factory.mktemp("issuers"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="session")
def pool(kafka: str, process_name: str) -> str:
    name = f"gateway-tests-{process_name}"
    local.apply_topics(kafka, [name])
    return name


@pytest.fixture(scope="session")
def page_folder(folder: Path) -> Path:
    page = folder / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text(PAGE)
    (page / "assets" / "app-1234.js").write_text("export {}")
    (folder / "secret.txt").write_text("not the page's")
    (page / "link.txt").symlink_to(folder / "secret.txt")
    return page


@pytest.fixture(scope="package")
def engine(folder: Path, kafka: str, redis_url: str, pool: str) -> Iterator[gp.Process]:
    with gp.worker(folder, kafka, redis_url, pool) as running:
        yield running


@pytest.fixture(scope="package")
def gateway(
    folder: Path,
    kafka: str,
    redis_url: str,
    pool: str,
    keys: gp.Keys,
    page_folder: Path,
    engine: gp.Process,
) -> Iterator[gp.Gateway]:
    credential = folder / "credential"
    credential.write_text(keys.token("dev"))
    more = {
        "TAILRACE_PAGE": str(page_folder),
        "TAILRACE_PUSH_URL": "http://127.0.0.1:1",
        "TAILRACE_DEV_CREDENTIAL": str(credential),
        "TAILRACE_CANCEL_GRACE_MS": "300",
    }
    with gp.gateway(folder, kafka, redis_url, pool, keys, **more) as running:
        yield running


def vectors(folder: Path) -> dict[str, str]:
    return {"TAILRACE_VECTORS": str(folder / "vectors"), "TAILRACE_VECTORS_MODEL": gp.MODEL}


@pytest.fixture(scope="package")
def searching(
    folder: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys, engine: gp.Process
) -> Iterator[gp.Gateway]:
    """Has a vector database. The files that ask for it are one group."""
    with gp.gateway(
        folder, kafka, redis_url, pool, keys, name="searching", **vectors(folder)
    ) as running:
        yield running


@pytest.fixture
async def client(gateway: gp.Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as alice:
        yield alice


@pytest.fixture
async def bob(gateway: gp.Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client("bob") as other:
        yield other


@pytest.fixture
async def stranger(gateway: gp.Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Without a credential."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30.0) as without:
        yield without


class Socket:
    """A raw WebSocket client that thinks in events."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws

    async def send(self, kind: str, **fields: Any) -> None:
        await self.ws.send(json.dumps({"type": kind, **fields}))

    async def create(
        self, text: str | None = "hi", tokens: int = 5, pace_ms: int = 2, **fields: Any
    ) -> None:
        given = {} if text is None else {"input": text}
        await self.send("response.create", metadata=gp.cues(tokens, pace_ms), **{**given, **fields})

    async def event(self) -> dict[str, Any]:
        message = await asyncio.wait_for(self.ws.recv(), 15)
        assert isinstance(message, str)
        found: dict[str, Any] = json.loads(message)
        return found

    async def until(self, *kinds: str) -> list[dict[str, Any]]:
        """Events up to one of these types."""
        seen = [await self.event()]
        while seen[-1]["type"] not in kinds:
            assert seen[-1]["type"] != "error", seen[-1]
            seen.append(await self.event())
        return seen

    async def end(self) -> list[dict[str, Any]]:
        return await self.until(*TERMINAL_TYPES)

    async def error(self) -> dict[str, Any]:
        found = await self.event()
        assert found["type"] == "error", found
        return found

    async def closed(self, within_s: float = 15) -> tuple[int, str]:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(within_s):
                while True:
                    await self.ws.recv()
        assert self.ws.close_code is not None, "still open"
        return self.ws.close_code, self.ws.close_reason or ""


@contextlib.asynccontextmanager
async def opened(
    gateway: gp.Gateway, query: str = "", subject: str = "alice", ttl: int = 3600, **options: Any
) -> AsyncIterator[Socket]:
    headers = {**gateway.headers(subject, ttl), **options.pop("headers", {})}
    async with connect(
        gateway.ws + query, additional_headers=headers, compression=None, **options
    ) as ws:
        yield Socket(ws)


@pytest.fixture
async def socket(gateway: gp.Gateway) -> AsyncIterator[Socket]:
    async with opened(gateway) as sock:
        yield sock


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


def events_of(body: str) -> list[dict[str, Any]]:
    """Events of an SSE body; checks the framing and that it ends as it must."""
    blocks = [b for b in body.split("\n\n") if b and not b.startswith(":")]
    assert blocks[-1] == "data: [DONE]"
    found = []
    for block in blocks[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found
