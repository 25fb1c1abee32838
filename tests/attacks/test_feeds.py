"""Feeds: many of one user, whose devices take nothing (attack 15, docs/protocol.md 16)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx

from tailrace.delivery import feed
from tests.attacks import room
from tests.attacks.test_after_auth import ADDRESS, client

NARROW = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]


async def test_feeds_that_take_nothing_cost_little_and_hold_up_no_other(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    """As many as there may be, live ones and ones that catch up, and much to tell them."""
    changes = room.amount(150, 20)
    large = {f"key-{n}": "v" * 512 for n in range(16)}
    mallory, push = deployment.headers("mallory-60"), deployment.push(1)
    expected = f"{feed.MOST} feeds, then 429; memory flat; another one's feed resumes at once"
    async with (
        client(deployment.gateway(1), mallory) as http,
        client(deployment.gateway(1), deployment.headers("alice-60")) as alice,
    ):
        position = await _position(push.url, mallory)
        name = (await http.post("/v1/conversations", json={})).json()["id"]

        async def change(count: int) -> None:
            for n in range(count):
                body = {"metadata": {**large, "key-0": f"{n}"}}
                answer = await http.post(f"/v1/conversations/{name}", json=body)
                assert answer.status_code == 200, answer.text

        with attack("feeds of one user that take nothing", expected) as row:
            async with contextlib.AsyncExitStack() as stack:
                statuses = [
                    await _stuck(stack, push.url, mallory, position if n % 2 else "")
                    for n in range(2 * feed.MOST)
                ]
                await change(changes)
                behind = [
                    await _stuck(stack, push.url, mallory, position) for _ in range(feed.MOST)
                ]
                # Another user's device comes back meanwhile.
                theirs = await _position(push.url, deployment.headers("alice-60"))
                made = (await alice.post("/v1/conversations", json={})).json()["id"]
                told = await _told(push.url, deployment.headers("alice-60"), theirs)
                assert made in told
            assert statuses.count(200) == feed.MOST, statuses
            assert set(statuses) | set(behind) <= {200, 429}
            row.note = f"{statuses.count(429)} refused; {changes} changes of 8 KB"


async def _stuck(
    stack: contextlib.AsyncExitStack, url: str, headers: dict[str, str], after: str
) -> int:
    """Open a feed and take nothing of it."""
    transport = httpx.AsyncHTTPTransport(local_address=ADDRESS, socket_options=NARROW)
    http = await stack.enter_async_context(
        httpx.AsyncClient(base_url=url, headers=headers, timeout=20, transport=transport)
    )
    params = {"after": after} if after else {}
    stream = await stack.enter_async_context(http.stream("GET", "/v1/feed", params=params))
    return int(stream.status_code)


async def _position(url: str, headers: dict[str, str]) -> str:
    """Where a feed begins now."""
    async for line in _lines(url, headers, ""):
        if line.startswith("id: "):
            return line.removeprefix("id: ")
    raise AssertionError("the feed ended")


async def _told(url: str, headers: dict[str, str], after: str) -> str:
    """All that a feed tells up to now."""
    found: list[str] = []
    async with asyncio.timeout(20):
        async for line in _lines(url, headers, after):
            found.append(line)
            if "feed.ready" in line:
                break
    return "\n".join(found)


async def _lines(url: str, headers: dict[str, str], after: str) -> AsyncIterator[str]:
    params = {"after": after} if after else {}
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as http,
        http.stream("GET", "/v1/feed", params=params) as stream,
    ):
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            yield line
