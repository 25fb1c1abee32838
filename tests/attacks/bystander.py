"""An ordinary user beside an attack: short questions without a pause worth naming, each on a
connection of its own, from an address of its own.

    python -m tests.attacks.bystander ROOM < /dev/null

A process of its own, so that the attacking test does not slow its clock. ROOM is a JSON file:
`{"ask": base URL, "gateway": base URL, "push": base URL, "credentials": [...], "out": path}`. Two
ways are measured, one task each:

    gateway   ask at `gateway` and read the answer's stream there
    push      ask at `ask` and follow the answer at `push`

Each question appends one line to `out`: `way begun ended ok`, with monotonic seconds, which all
processes of a machine share. `ended` is when the first token came.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx

from tests.faults.stage import MODEL

ADDRESS: Final = "127.0.0.9"
PAUSE_S: Final = 0.1
GIVE_UP_S: Final = 20.0
FIRST_TOKEN: Final = "response.output_text.delta"
QUESTION: Final[dict[str, Any]] = {
    "model": MODEL,
    "input": "How do you do?",
    "metadata": {"script_tokens": "3", "script_pace_ms": "5"},
}


def client(base: str, credential: str) -> httpx.AsyncClient:
    """Opens a connection for each request."""
    return httpx.AsyncClient(
        base_url=base,
        headers={"Authorization": f"Bearer {credential}"},
        timeout=GIVE_UP_S,
        transport=httpx.AsyncHTTPTransport(
            local_address=ADDRESS, limits=httpx.Limits(max_keepalive_connections=0)
        ),
    )


async def at_gateway(room: dict[str, Any], credential: str) -> float:
    """When the first token came: asked and read at the same gateway."""
    async with (
        client(room["gateway"], credential) as http,
        http.stream("POST", "/v1/responses", json={**QUESTION, "stream": True}) as answer,
    ):
        return await _first_token(answer)


async def at_push(room: dict[str, Any], credential: str) -> float:
    """When the first token came: asked at another gateway, followed at push."""
    async with client(room["ask"], credential) as http:
        created = await http.post("/v1/responses", json={**QUESTION, "background": True})
        created.raise_for_status()
    path = f"/v1/responses/{created.json()['id']}"
    async with (
        client(room["push"], credential) as http,
        http.stream("GET", path, params={"stream": "true"}) as answer,
    ):
        return await _first_token(answer)


async def _first_token(answer: httpx.Response) -> float:
    answer.raise_for_status()
    first = 0.0
    async for line in answer.aiter_lines():
        if not first and line.startswith("event:") and FIRST_TOKEN in line:
            first = time.monotonic()
    if not first:
        raise ValueError("an answer without a token")
    return first


def _credentials(room: dict[str, Any]) -> AsyncIterator[str]:
    async def endless() -> AsyncIterator[str]:
        for credential in itertools.cycle(room["credentials"]):
            yield credential
            await asyncio.sleep(PAUSE_S)

    return endless()


async def ask_without_end(way: str, room: dict[str, Any]) -> None:
    """Ask one question after the other and write each down."""
    ask = {"gateway": at_gateway, "push": at_push}[way]
    with Path(room["out"]).open("a", buffering=1) as out:
        async for credential in _credentials(room):
            begun = time.monotonic()
            try:
                async with asyncio.timeout(GIVE_UP_S):
                    ended, ok = await ask(room, credential), 1
            except (httpx.HTTPError, TimeoutError, ValueError, OSError):
                ended, ok = time.monotonic(), 0
            out.write(f"{way} {begun:.6f} {ended:.6f} {ok}\n")


async def main(room: dict[str, Any]) -> None:
    """Until killed."""
    async with asyncio.TaskGroup() as tasks:
        for way in ("gateway", "push"):
            tasks.create_task(ask_without_end(way, room))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
