"""The WebSocket protocol as Autobahn's cases have it (`kosoku` runs them), on the server that
gateway and push run, with an application that sends back what it gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from push import app as push
from tailrace.protocol import close_codes
from tailrace.web import listener, server
from tests.support import gateway_parts, waiting

kosoku = pytest.importorskip("kosoku", reason="the cases need kosoku (make install)")

# Large messages and many fragments; 9.7 and 9.8 are as many messages as a second may have.
BOUNDS: Final = [f"9.{group}.*" for group in range(1, 7)]
OTHERS: Final = ["9.*", "12.*", "13.*"]  # the last two are of compression, which is not agreed on
CASES: Final = 247
PARALLEL: Final = 16
REFUSED: Final = {close_codes.CloseCode.TOO_BIG, close_codes.CloseCode.POLICY}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Accept, and send every message back."""
    assert scope["type"] == "websocket"
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        found = {key: message[key] for key in ("text", "bytes") if key in message}
        await send({"type": "websocket.send", **found})


@contextlib.asynccontextmanager
async def served(max_bytes: int) -> AsyncIterator[str]:
    """The URL of a server as gateway and push run it."""
    made = server.make(echo, gateway_parts.configuration(), ws_max_bytes=max_bytes, drain_s=1.0)
    with contextlib.closing(listener.bind("127.0.0.1", 0)) as bound:
        task = asyncio.ensure_future(made.serve(sockets=[bound]))
        await waiting.eventually(lambda: made.started, "it listens")
        try:
            yield f"ws://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            made.should_exit = True
            await asyncio.wait_for(task, 20)


async def run(max_bytes: int, **chosen: list[str]) -> list[Any]:
    """The result of each case; `chosen`: `cases` or `exclude_cases`."""
    async with served(max_bytes) as url:
        try:
            found = await kosoku.run_fuzzingclient(url, concurrency=PARALLEL, **chosen)
        except kosoku.FailureError as failed:
            found = failed.results
    return list(found)


def said(results: list[Any]) -> list[str]:
    """One line for each case that did not pass."""
    return [
        f"{one.case_id}: {one.result} {one.result_close} (closed with {one.remote_close_code})"
        for one in results
        if not one.passed
    ]


async def test_the_protocol_is_kept_by_the_socket_that_creates() -> None:
    """uvicorn's class over websockets 15 fails one: it answers a close in the middle of a message
    with 1002."""
    found = await run(gateway_parts.configuration().max_ws_bytes, exclude_cases=OTHERS)
    assert len(found) == CASES
    assert said(found) == []


async def test_the_watch_socket_breaks_off_only_where_a_message_is_too_long() -> None:
    found = await run(push.WS_MAX_BYTES, exclude_cases=OTHERS)
    assert len(found) == CASES
    failed = [one for one in found if not one.passed]
    assert failed
    assert {one.remote_close_code for one in failed} == {close_codes.CloseCode.TOO_BIG}, said(found)


async def test_what_is_above_a_bound_is_closed_with_its_code_and_nothing_else_is() -> None:
    """36 of these cases have a message that is too long, and four one of too many fragments."""
    found = await run(gateway_parts.configuration().max_ws_bytes, cases=BOUNDS)
    failed = [one for one in found if not one.passed]
    assert len(failed) == 40, said(found)
    assert {one.remote_close_code for one in failed} == REFUSED, said(found)
