"""A worker that is killed in the middle of the arguments of a call. The pool is the test's own; one
client is on a socket of the gateway, a second device on push."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tailrace import log
from tests.services.gateway.conftest import events_of, opened
from tests.services.gateway.test_tools import (
    ARGUMENTS,
    SHELL,
    SLOW,
    WEATHER,
    calls_of,
    dense,
    forgotten,
    output,
    over_socket,
    text_of,
)
from tests.support import gateway_process as gp
from tests.support import waiting


@pytest.fixture(scope="module")
def own_pool(kafka: str) -> str:
    asyncio.run(log.apply_topics(kafka, ["tools-lost"]))
    return "tools-lost"


class TestLosses:
    @pytest.fixture
    def start(
        self, own_pool: str, tmp_path: Path, kafka: str, redis_url: str, keys: gp.Keys
    ) -> Iterator[tuple[gp.Gateway, gp.Listening, Callable[[str], gp.Process]]]:
        with contextlib.ExitStack() as stack:

            def worker(name: str) -> gp.Process:
                return stack.enter_context(gp.worker(tmp_path, kafka, redis_url, own_pool, name))

            yield (
                stack.enter_context(gp.gateway(tmp_path, kafka, redis_url, own_pool, keys)),
                stack.enter_context(gp.push(tmp_path, kafka, redis_url, own_pool, keys)),
                worker,
            )

    @pytest.mark.timeout(240)
    async def test_a_worker_killed_in_the_middle_of_arguments_changes_nothing(
        self,
        start: tuple[gp.Gateway, gp.Listening, Callable[[str], gp.Process]],
        redis_url: str,
    ) -> None:
        gateway, push, worker = start
        first = worker("first")
        async with (
            opened(gateway) as socket,
            httpx.AsyncClient(base_url=push.url, timeout=120.0) as device,
        ):
            await socket.send(
                "response.create",
                input="call weather 80\ncall shell 10",
                tools=[WEATHER, SHELL],
                metadata=SLOW,
            )
            created = await asyncio.wait_for(socket.ws.recv(), 90)
            seen = [json.loads(created)]
            rid = seen[0]["response"]["id"]
            watched = asyncio.create_task(
                device.get(f"/v1/responses/{rid}?stream=true", headers=gateway.headers())
            )

            async def arguments() -> bool:
                seen.append(json.loads(await asyncio.wait_for(socket.ws.recv(), 90)))
                return bool(sum(e["type"] == ARGUMENTS for e in seen) >= 5)

            await waiting.eventually(arguments, "arguments come", within_s=90)
            first.kill()
            await forgotten(redis_url)
            worker("second")
            while seen[-1]["type"] not in ("response.completed", "response.failed"):
                seen.append(json.loads(await asyncio.wait_for(socket.ws.recv(), 90)))
            assert seen[-1]["type"] == "response.completed"
            assert dense(seen)
            call, shell = calls_of(seen[-1]["response"])
            assert set(json.loads(call["arguments"])) == {"city", "days"}
            said = "".join(e["delta"] for e in seen if e["type"] == ARGUMENTS)
            assert said == call["arguments"]
            assert events_of((await watched).text) == seen, "the second device"
            outputs = [output(call, "sun"), output(shell, "ok")]
            told = await over_socket(socket, previous_response_id=rid, input=outputs)
            assert text_of(told.whole) == "The tools said: “sun” and “ok”."
            async with gateway.client() as client:
                stored = (await client.get(f"/v1/responses/{rid}")).json()
            assert stored["output"] == seen[-1]["response"]["output"]
