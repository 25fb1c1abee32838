"""The connection to Redis: commands go out in batches, and every call ends within its timeout."""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeVar

import msgspec
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tailrace import telemetry
from tailrace.store.loop_deadline import MAX_STRETCH, LoopDeadline, OwnLoopLate

CALL_TIMEOUT_S: Final = 0.25
# Patient calls wait this many times longer. A browser cannot do anything without its ticket, so a
# Redis that is slow for a moment must not refuse it.
PATIENCE: Final = 8
# After a call without an answer, Redis is not called for this time. A Redis that hangs costs one
# timeout per second, not one per request.
AWAY_S: Final = 1.0
# Batches go one after the other. An abandoned exchange may still be closing.
MAX_CONNECTIONS: Final = 4
# No service writes a larger value. A larger one is not read.
MAX_VALUE_BYTES: Final = 1 << 20

T = TypeVar("T")


class StoreUnavailable(Exception):
    """Redis is away, too slow, or refuses the command."""


_Pending = tuple[tuple[Any, ...], asyncio.Future[Any]]  # a command and its answer


class CommandBatches:
    """Sends commands in pipelines: commands that arrive while one pipeline runs form the next.

    Three commands per request cost 300 µs of CPU one by one, and 86 µs with 32 requests at once. A
    request alone pays 372 instead of 273 µs (docs/measurements/2026-11-22-two-cores.md).

    Attributes:
        _waiting: commands that are not sent yet.
        _sender: the task that sends until nothing waits; None while nothing waits.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._waiting: list[_Pending] = []
        self._sender: asyncio.Task[None] | None = None

    def call(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        """The future answer. A caller gives up by cancelling it; an exchange whose callers have all
        given up is cancelled."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return answer

    async def aclose(self) -> None:
        """Cancel the running exchanges; their callers get a connection error."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait({self._sender})

    async def _send(self) -> None:
        batch: list[_Pending] = []
        try:
            while self._waiting:
                batch = [each for each in self._waiting if not each[1].done()]
                self._waiting = []
                if batch:
                    await self._send_batch(batch)
        finally:
            self._sender = None
            # Closed while calls wait. An error, because a cancellation would end their callers.
            for _, answer in batch + self._waiting:
                _set_answer(answer, redis.ConnectionError("closed"))

    async def _send_batch(self, batch: list[_Pending]) -> None:
        commands = [command for command, _ in batch]
        exchange = asyncio.create_task(self._exchange(commands))

        def on_cancel(_: asyncio.Future[Any]) -> None:
            if all(answer.done() for _, answer in batch):
                exchange.cancel()

        for _, pending in batch:
            pending.add_done_callback(on_cancel)
        try:
            await asyncio.wait({exchange})
        finally:
            exchange.cancel()  # has an effect only when this task itself was cancelled
        error = redis.ConnectionError("cancelled") if exchange.cancelled() else exchange.exception()
        answers = [error] * len(batch) if error is not None else exchange.result()
        for (_, pending), answer in zip(batch, answers, strict=True):
            _set_answer(pending, answer)

    async def _exchange(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        answers = await self._answers(commands)
        if any(map(_is_of_replica, answers)):
            # After a failover the address leads to another server; open connections stay.
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return answers

    async def _answers(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        if len(commands) == 1:  # a pipeline of one command costs half as much again
            execute: Callable[..., Awaitable[Any]] = self._client.execute_command
            try:
                return [await execute(*commands[0])]
            except redis.ResponseError as error:
                return [error]
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute(raise_on_error=False))


def _is_of_replica(answer: Any) -> bool:
    """Whether a server refuses to write because it is a replica. Servers say so within the error of
    a script, too."""
    return isinstance(answer, redis.ResponseError) and (
        isinstance(answer, redis.ReadOnlyError) or "-READONLY" in str(answer)
    )


def _set_answer(pending: asyncio.Future[Any], answer: Any) -> None:
    if pending.done():
        return
    if isinstance(answer, BaseException):
        pending.set_exception(answer)
    else:
        pending.set_result(answer)


class RedisStore:
    """One client of Redis. It connects at the first call, and again by itself.

    `client` is for tests; without it the client of `url` is used.

    Attributes:
        _away_until: monotonic seconds; before it only patient calls reach Redis.
        _away: whether the last call that reached Redis got no answer.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = CALL_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        client: redis.asyncio.Redis | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._away_until = -math.inf
        self._away = False
        self._redis = client or _client(url, timeout_s)
        self._batches = CommandBatches(self._redis)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all calls and close the connections."""
        await self._batches.aclose()
        await self._redis.aclose()

    async def reachable(self) -> bool:
        """Whether Redis answers now; for readiness."""
        try:
            await self.execute("PING")
        except StoreUnavailable:
            return False
        return True

    async def execute(self, *command: Any, patient: bool = False) -> Any:
        """Redis' answer to one command, within the timeout (`patient`: PATIENCE times that). Time
        in which this process's event loop was late does not count.

        Raises:
            StoreUnavailable: no answer in time, an error answer, or no answer to any call a moment
                ago.
        """
        if self._clock() < self._away_until and not patient:
            raise StoreUnavailable("away a moment ago")
        reply = self._batches.call(command)
        deadline = LoopDeadline(reply, self._timeout_s * (PATIENCE if patient else 1))
        try:
            answer = await reply
        except OwnLoopLate as error:  # this process is slow, and nothing is known about Redis
            telemetry.REDIS_FAILURES.inc()
            raise StoreUnavailable("the own event loop is late") from error
        except (
            *(redis.ConnectionError, redis.TimeoutError, OSError, TimeoutError),
            redis.ReadOnlyError,
        ) as error:
            telemetry.REDIS_FAILURES.inc()
            self._away_until = self._clock() + AWAY_S
            if not self._away:
                telemetry.log(telemetry.Action.REDIS_AWAY, error=type(error).__name__)
            self._away = True
            raise StoreUnavailable(type(error).__name__) from error
        except redis.RedisError as error:  # Redis answered, but with an error
            telemetry.REDIS_FAILURES.inc()
            raise StoreUnavailable(type(error).__name__) from error
        finally:
            deadline.cancel()
        if self._away:
            telemetry.log(telemetry.Action.REDIS_BACK)
        self._away = False
        return answer


def _client(url: str, timeout_s: float) -> redis.asyncio.Redis:
    # Not the blocking pool: its locks cost half of what a command does, and exchanges go one at a
    # time anyway.
    pool = redis.asyncio.ConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        # `execute` bounds each caller. An exchange ends when its last caller has given up, so
        # these are for a caller that is late itself.
        socket_timeout=timeout_s * PATIENCE * MAX_STRETCH,
        socket_connect_timeout=timeout_s * PATIENCE * MAX_STRETCH,
        # No retries: they double the time a caller waits, and a repeated GETDEL or token bucket
        # would consume twice.
        retry=Retry(NoBackoff(), 0),
        # CLIENT SETINFO came with Redis 7.2; the services' users may not send it (`k8s/`).
        driver_info=None,
    )
    return redis.asyncio.Redis.from_pool(pool)


def decode(value: object, type_: type[T]) -> T | None:
    """A JSON value as `type_`; None when it is missing, is too large, or cannot be read as that
    type, whatever the reason (a broken cache entry counts as none)."""
    if not isinstance(value, bytes) or len(value) > MAX_VALUE_BYTES:
        return None
    try:
        return msgspec.json.decode(value, type=type_)
    # ValueError: text that is not UTF-8, and numbers that no double holds.
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def digest(*parts: str) -> str:
    """40 hex digits for the end of a key. Each part is hashed by itself first, so that two lists
    of parts never give the same text."""
    return hashlib.sha256(
        b"".join(hashlib.sha256(part.encode("utf-8", "surrogatepass")).digest() for part in parts)
    ).hexdigest()[:40]


def milliseconds(seconds: float) -> int:
    """Whole milliseconds for PX, at least 1."""
    return max(1, math.ceil(seconds * 1000))
