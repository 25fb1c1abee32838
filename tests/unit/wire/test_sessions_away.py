"""A Redis that hangs must not slow down everybody. It once added its whole time limit to every request, because each one asked whether its caller was
revoked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from wire import sessions, telemetry


class Server:
    """Answers `getex` and `exists`, hangs, or fails with `error`; counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.hangs = False

    async def getex(self, *_args: Any, **_kwargs: Any) -> bytes:
        return await self._answer(b"state")

    async def exists(self, *_args: Any) -> int:
        return await self._answer(0)

    async def _answer(self, answer: Any) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def parts() -> tuple[Server, Clock, sessions.Sessions]:
    server, clock = Server(), Clock()
    store = sessions.Sessions("redis://nowhere:1", timeout_s=0.02, clock=clock)
    store._redis = server  # type: ignore[assignment]
    return server, clock, store


def failures() -> float:
    return telemetry.REDIS_FAILURES._value.get()


@pytest.mark.parametrize("error", [None, redis.ConnectionError("refused"), OSError("reset")])
async def test_after_a_call_without_an_answer_nobody_asks_for_a_moment(
    parts: tuple[Server, Clock, sessions.Sessions], error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    server, clock, store = parts
    server.error, server.hangs = error, True
    before = failures()
    with caplog.at_level("INFO", "tailrace"):
        for _ in range(5):
            with pytest.raises(sessions.SessionsUnavailable):
                await store.is_revoked("someone")
            with pytest.raises(sessions.SessionsUnavailable):
                await store.get_turn("resp_1")
        assert (server.asked, failures() - before) == (1, 1)
        clock.now += sessions.AWAY_S
        with pytest.raises(sessions.SessionsUnavailable):
            await store.get_turn("resp_1")
        assert server.asked == 2
        clock.now += sessions.AWAY_S
        server.error, server.hangs = None, False
        assert await store.get_turn("resp_1") == b"state"
        assert await store.get_turn("resp_1") == b"state"
    assert [r.getMessage() for r in caplog.records] == ["redis_away", "redis_back"]


async def test_an_answer_that_is_a_refusal_says_nothing_about_other_calls(parts: tuple[Server, Clock, sessions.Sessions]) -> None:
    server, _, store = parts
    server.error = redis.ResponseError("WRONGTYPE")
    before = failures()
    for _ in range(3):
        with pytest.raises(sessions.SessionsUnavailable):
            await store.get_turn("resp_1")
    assert (server.asked, failures() - before) == (3, 3)


async def test_a_caller_who_gives_up_says_nothing_about_redis(parts: tuple[Server, Clock, sessions.Sessions]) -> None:
    server, _, store = parts
    server.hangs = True
    call = asyncio.create_task(store.get_turn("resp_1"))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    server.hangs = False
    assert await store.get_turn("resp_1") == b"state"
