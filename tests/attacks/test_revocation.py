"""Being shown out: all that a revoked user has open ends everywhere, soon, and stays shut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest
import redis
import websockets

from tailrace.protocol import records, topics
from tests.attacks import room
from tests.faults.stage import MODEL, ROOT, Service
from tests.support import gateway_process, waiting

# Sockets and streams of each kind at each instance.
EACH: Final = room.amount(50, 4)
WITHIN_S: Final = 2.0
GIVE_UP_S: Final = 20.0
ADDRESS: Final = "127.0.0.3"
LONG: Final[dict[str, Any]] = {
    "model": MODEL,
    "input": "Tell me everything.",
    "metadata": {"script_tokens": "4000", "script_pace_ms": "50"},
}
WATCH_CLOSE, RESPONSES_CLOSE = 4500, 1008


@dataclass
class Opened:
    """What the revoked user has open: when and how each of it ended (monotonic seconds)."""

    tasks: list[asyncio.Task[tuple[str, float, int]]] = field(default_factory=list)

    async def ended(self) -> list[tuple[str, float, int]]:
        async with asyncio.timeout(GIVE_UP_S):
            return await asyncio.gather(*self.tasks)


def client(service: Service, headers: dict[str, str]) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(
        local_address=ADDRESS, limits=httpx.Limits(max_connections=None)
    )
    return httpx.AsyncClient(
        base_url=service.url, headers=headers, timeout=GIVE_UP_S, transport=transport
    )


def socket(service: Service, path: str, headers: dict[str, str]) -> Any:
    return websockets.connect(
        f"ws://127.0.0.1:{service.port}{path}",
        additional_headers=headers,
        local_addr=(ADDRESS, 0),
        compression=None,
    )


async def read_socket(kind: str, opened: Any) -> tuple[str, float, int]:
    try:
        while True:
            await opened.recv()
    except websockets.ConnectionClosed as closed:
        return kind, time.monotonic(), closed.rcvd.code if closed.rcvd else 1006


async def read_body(kind: str, answer: httpx.Response) -> tuple[str, float, int]:
    code = 0
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        async for line in answer.aiter_lines():
            assert "[DONE]" not in line, "a body that is broken off must not look complete"
        code = -1  # it ended as if it were complete
    return kind, time.monotonic(), code


@contextlib.asynccontextmanager
async def everything_open(
    deployment: room.Deployment, headers: dict[str, str], rids: list[str]
) -> AsyncIterator[Opened]:
    """Sockets and streams at both gateways and both pushes. Each socket for creates runs one
    response and has three that wait behind it."""
    opened = Opened()
    gateways = [deployment.gateway(n) for n in (1, 2)]
    pushes = [deployment.push(n) for n in (1, 2)]
    async with contextlib.AsyncExitStack() as stack:

        async def streamed(service: Service, kind: str, method: str, path: str, **how: Any) -> None:
            http = await stack.enter_async_context(client(service, headers))
            answer = await stack.enter_async_context(http.stream(method, path, **how))
            answer.raise_for_status()
            opened.tasks.append(asyncio.create_task(read_body(kind, answer)))

        for service in (*gateways, *pushes):
            for number in range(EACH):
                watching = await stack.enter_async_context(socket(service, "/v1/watch", headers))
                if number % 2:  # the others follow nothing
                    command = {"type": "watch", "response_id": rids[0]}
                    await watching.send(json.dumps(command))
                opened.tasks.append(asyncio.create_task(read_socket("watch socket", watching)))
                await streamed(
                    service, "followed stream", "GET", f"/v1/responses/{rids[0]}?stream=true"
                )
        for service in gateways:
            for number in range(EACH):
                asking = await stack.enter_async_context(socket(service, "/v1/responses", headers))
                for _ in range(4 if number < 2 else 0):
                    create = {"type": "response.create", "store": False, **LONG}
                    await asking.send(json.dumps(create))
                opened.tasks.append(asyncio.create_task(read_socket("socket", asking)))
            for _ in range(2):
                body = {**LONG, "stream": True, "store": False}
                await streamed(service, "stream", "POST", "/v1/responses", json=body)
        yield opened


def revoke(deployment: room.Deployment, *words: str) -> str:
    """`tailrace revoke *words`; what it prints."""
    where = ["--issuer", gateway_process.ISS, "--kafka", deployment.kafka]
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", "revoke", *words, *where],
        cwd=ROOT,
        env={**deployment.gateway().environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def status(service: Service, headers: dict[str, str]) -> int:
    async with client(service, headers) as http:
        path = "/v1/models" if service.role == "gateway" else "/v1/responses/resp_x"
        return (await http.get(path)).status_code


def requests_of(deployment: room.Deployment, user: str) -> list[str]:
    """Ids of what the user asked for, in the log."""
    found = [
        records.decode_request(record.value)
        for record in deployment.records(topics.requests("default", "interactive"))
    ]
    return [each.rid for each in found if each is not None and each.owner.subject == user]


def cancelled_of(deployment: room.Deployment, user: str) -> set[str]:
    """Ids of the user's responses that have a CANCEL in the log."""
    found = [records.token_of(r.key, r.value) for r in deployment.records(topics.TOKENS)]
    return {r.rid for r in found if isinstance(r, records.Cancel) and r.by.subject == user}


async def test_what_is_open_for_a_revoked_user_ends_everywhere(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    mallory = deployment.headers("mallory-open")
    admin = deployment.headers("root", scopes=("admin",))
    everywhere = [deployment.gateway(n) for n in (1, 2)] + [deployment.push(n) for n in (1, 2)]
    async with client(deployment.gateway(1), mallory) as http:
        made = await http.post("/v1/responses", json={**LONG, "background": True})
        rid = made.json()["id"]
    async with everything_open(deployment, mallory, [rid]) as opened:
        with attack("a revoked user's sockets and streams", "all closed within 2 s") as row:
            async with client(deployment.gateway(1), admin) as http:
                begun = time.monotonic()
                done = await http.post("/v1/admin/revocations", json={"subject": "mallory-open"})
                assert done.status_code == 201, done.text
            ended = await opened.ended()
            longest = max(at - begun for _, at, _ in ended)
            row.note = f"{len(ended)} ended, the last after {1000 * longest:.0f} ms"
            if room.FULL:
                assert longest <= WITHIN_S
    assert {(kind, code) for kind, _, code in ended} == {
        ("watch socket", WATCH_CLOSE),
        ("followed stream", 0),
        ("socket", RESPONSES_CLOSE),
        ("stream", 0),
    }
    for service in everywhere:
        assert await status(service, mallory) == 401, service.name
        assert await status(service, deployment.headers("bob")) in (200, 404), service.name
    # Those that were not stored were cancelled, and those that waited were never begun.
    created = requests_of(deployment, "mallory-open")
    assert len(created) == 1 + 2 * 2 + 2 * 2, "one stored, and one of each socket and stream"
    await waiting.eventually(
        lambda: cancelled_of(deployment, "mallory-open") == set(created) - {rid},
        "those that are not stored are cancelled",
        every_s=1.0,
    )
    revoke(deployment, "mallory-open", "--undo")
    async with client(deployment.gateway(1), mallory) as http:

        async def cancelled() -> bool:
            return (await http.post(f"/v1/responses/{rid}/cancel")).status_code == 200

        await waiting.eventually(cancelled, "it is let in again once the revocation is lifted")


async def test_redis_decides_nothing(deployment: room.Deployment, attack: room.Attacks) -> None:
    mallory = deployment.headers("mallory-redis")
    everywhere = [deployment.gateway(n) for n in (1, 2)] + [deployment.push(n) for n in (1, 2)]
    with attack("FLUSHALL to be let in again", "401 everywhere") as row:
        printed = revoke(deployment, "mallory-redis")
        assert "mallory-redis" in printed

        async def refused() -> bool:
            return {await status(each, mallory) for each in everywhere} == {401}

        await waiting.eventually(refused, "refused everywhere")
        with contextlib.closing(redis.Redis.from_url(deployment.redis)) as store:
            store.flushall()
        assert await refused()
        row.note = "401 on both gateways and both pushes"
    assert printed.split()[0] in revoke(deployment, "--list")


async def test_one_credential_of_a_user_and_a_whole_tenant(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    keys = {name: f"{name}-1" for name in ("lost", "kept")}
    lost, kept = (deployment.headers("carol", credential=each) for each in keys.values())
    theirs = deployment.headers("dave", tenant="acme")
    others = deployment.headers("dave", tenant="other")
    gateway, push = deployment.gateway(2), deployment.push(2)
    with attack("one credential, one tenant", "only what is named is refused"):
        revoke(deployment, "--credential", keys["lost"])
        revoke(deployment, "--tenant", "acme")
        for service, fine in ((gateway, 200), (push, 404)):

            async def named(service: Service = service) -> bool:
                return [await status(service, each) for each in (lost, theirs)] == [401, 401]

            await waiting.eventually(named, "what is named is refused")
            assert [await status(service, each) for each in (kept, others)] == [fine, fine]


@pytest.mark.parametrize("role", ["gateway", "push"])
async def test_an_instance_that_starts_lets_no_revoked_user_in(
    deployment: room.Deployment, role: str
) -> None:
    mallory = deployment.headers(f"mallory-{role}")
    revoke(deployment, f"mallory-{role}")
    seen = set()
    with starting(deployment, role) as service:

        async def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                seen.add(await status(service, mallory))
            return service.ready()

        await waiting.eventually(ready, f"{service.name} is ready", within_s=60, every_s=0.01)
        assert await status(service, mallory) == 401
        assert seen <= {401, 503}


@contextlib.contextmanager
def starting(deployment: room.Deployment, role: str) -> Iterator[Service]:
    """One more instance, which is gone afterwards. It is not ready yet."""
    service = deployment.start_another(role)
    try:
        yield service
    finally:
        deployment.end(service)
