"""A Redis that hangs must not slow down every request. It once added its whole timeout to each of
them, because each one asked whether its caller was revoked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from tailrace.auth.principal import Principal
from tailrace.store.redis_store import AWAY_S, PATIENCE, RedisStore, StoreUnavailable
from tailrace.store.sessions import Sessions
from tailrace.store.tickets import Tickets
from tests.support import metric

ALICE = Principal("https://issuer.test", "alice", None, frozenset(), 2_000_000_000)


class Server:
    """Answers GETEX, EXISTS and SET, hangs, or fails with `error`; counts what it is asked, and the
    pipelines it was asked in."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.hangs = False
        self.takes_s = 0.0
        self.pipelines: list[int] = []  # commands in each

    async def aclose(self) -> None:
        pass

    async def execute_command(self, name: str, *_args: Any) -> Any:
        return await self._answer({"GETEX": b"state", "EXISTS": 0, "SET": b"OK"}[name])

    def pipeline(self, *, transaction: bool) -> Pipeline:
        assert not transaction
        self.pipelines.append(0)
        return Pipeline(self)

    async def _answer(self, answer: Any) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(self.takes_s)
        return answer


class Pipeline:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *command: Any) -> None:
        self._commands.append(command)
        self._server.pipelines[-1] += 1

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        return [await self._server.execute_command(*command) for command in self._commands]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def over(server: Server, clock: Clock, timeout_s: float) -> RedisStore:
    return RedisStore("redis://nowhere:1", timeout_s, clock, client=server)  # type: ignore[arg-type]


@pytest.fixture
def parts() -> tuple[Server, Clock, RedisStore]:
    server, clock = Server(), Clock()
    return server, clock, over(server, clock, timeout_s=0.02)


@pytest.fixture
def roomy() -> tuple[Server, RedisStore]:
    """With a timeout that no test reaches."""
    server = Server()
    return server, over(server, Clock(), timeout_s=2.0)


def failures() -> float:
    return metric.value("tailrace_redis_failures_total")


@pytest.mark.parametrize("error", [None, redis.ConnectionError("refused"), OSError("reset")])
async def test_after_a_call_without_an_answer_redis_is_not_asked_for_a_moment(
    parts: tuple[Server, Clock, RedisStore],
    error: Exception | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, clock, store = parts
    server.error, server.hangs = error, True
    before = failures()
    with caplog.at_level("INFO", "tailrace"):
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await Sessions(store).get_turn("resp_0")
            with pytest.raises(StoreUnavailable):
                await Sessions(store).get_turn("resp_1")
        assert (server.asked, failures() - before) == (1, 1)
        clock.now += AWAY_S
        with pytest.raises(StoreUnavailable):
            await Sessions(store).get_turn("resp_1")
        assert server.asked == 2
        clock.now += AWAY_S
        server.error, server.hangs = None, False
        assert await Sessions(store).get_turn("resp_1") == b"state"
        assert await Sessions(store).get_turn("resp_1") == b"state"
    assert [r.getMessage() for r in caplog.records] == ["redis_away", "redis_back"]


async def test_an_answer_that_is_a_refusal_says_nothing_about_other_calls(
    parts: tuple[Server, Clock, RedisStore],
) -> None:
    server, _, store = parts
    server.error = redis.ResponseError("WRONGTYPE")
    before = failures()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await Sessions(store).get_turn("resp_1")
    assert (server.asked, failures() - before) == (3, 3)


async def test_a_caller_who_gives_up_says_nothing_about_redis(
    parts: tuple[Server, Clock, RedisStore],
) -> None:
    server, _, store = parts
    server.hangs = True
    call = asyncio.create_task(Sessions(store).get_turn("resp_1"))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    server.hangs = False
    assert await Sessions(store).get_turn("resp_1") == b"state"


async def test_what_is_asked_while_a_call_is_under_way_shares_the_next(
    roomy: tuple[Server, RedisStore],
) -> None:
    server, store = roomy
    answers = await asyncio.gather(*(Sessions(store).get_turn(f"resp_{n}") for n in range(4)))
    assert answers == [b"state"] * 4
    assert server.pipelines == [4], "asked in one turn of the loop"
    await Sessions(store).get_turn("resp_1")
    assert server.pipelines == [4], "one alone needs no pipeline"


async def test_one_of_many_who_gives_up_takes_no_answer_from_the_others(
    roomy: tuple[Server, RedisStore],
) -> None:
    _, store = roomy
    calls = [asyncio.create_task(Sessions(store).get_turn(f"resp_{n}")) for n in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [answers[0], answers[2]] == [b"state", b"state"]
    assert isinstance(answers[1], asyncio.CancelledError)


async def test_closing_ends_what_waits(parts: tuple[Server, Clock, RedisStore]) -> None:
    server, _, store = parts
    server.hangs = True
    call = asyncio.create_task(Sessions(store).get_turn("resp_1"))
    await asyncio.sleep(0)
    await store.aclose()
    with pytest.raises(StoreUnavailable):
        await call


async def test_one_batch_after_the_other_and_each_gets_its_answers(
    roomy: tuple[Server, RedisStore],
) -> None:
    """What an earlier batch leaves behind once ended the next one."""
    server, store = roomy
    server.takes_s = 0.001

    async def asks(n: int) -> list[bytes | None]:
        await asyncio.sleep(
            n * server.takes_s / 3
        )  # so that there is always one batch under way and another that waits
        return [await Sessions(store).get_turn(f"resp_{n}") for _ in range(20)]

    assert await asyncio.gather(*map(asks, range(5))) == [[b"state"] * 20] * 5


async def test_a_ticket_waits_longer_and_is_asked_for_also_after_a_slow_answer() -> None:
    """It cannot be done without, and a machine that is busy for a moment is no reason to refuse a
    browser for a second."""
    server = Server()
    store = over(server, Clock(), timeout_s=0.1)
    server.takes_s = 0.3  # longer than a call waits, shorter than a patient one
    assert 0.1 < server.takes_s < 0.1 * PATIENCE
    with pytest.raises(StoreUnavailable):
        await Sessions(store).get_turn("resp_1")
    assert await Tickets(store).mint_ticket(ALICE, None, 1_900_000_000.0)
    server.hangs = True
    with pytest.raises(StoreUnavailable):
        await Tickets(store).mint_ticket(ALICE, None, 1_900_000_000.0)


async def blocked(seconds: float) -> None:
    """What this process does too long at a time: the event loop stands still."""
    time.sleep(seconds)


async def test_an_answer_that_a_blocked_event_loop_reads_late_is_an_answer(
    parts: tuple[Server, Clock, RedisStore], caplog: pytest.LogCaptureFixture
) -> None:
    server, _, store = parts
    server.takes_s = 0.01
    with caplog.at_level("INFO", "tailrace"):
        for _ in range(3):
            asked = asyncio.create_task(Sessions(store).get_turn("resp_1"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await blocked(0.1)  # five times the timeout
            assert await asked == b"state"
    assert not caplog.records


async def test_where_the_own_loop_is_late_all_the_time_nothing_is_said_about_redis(
    parts: tuple[Server, Clock, RedisStore], caplog: pytest.LogCaptureFixture
) -> None:
    server, _, store = parts
    server.hangs = True
    asked = asyncio.create_task(Sessions(store).get_turn("resp_1"))
    with caplog.at_level("INFO", "tailrace"):
        while not asked.done():
            await blocked(0.06)
            await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="own event loop"):
            await asked
        server.hangs = False
        assert await Sessions(store).get_turn("resp_1") == b"state"  # it is asked at once
    assert not caplog.records
