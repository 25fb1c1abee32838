"""One response per idempotency key (log rule §10).

Redis maps (principal, key) to the first response and answers fast, but may lose entries. The log
decides: of two requests with one key the first one in the log is valid, and the other one is
withdrawn. A withdrawn request frees its key. A key identifies one request: the same key with
another body is refused, by the digests in the request records.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final

from gateway.cache import Cache
from gateway.requests import idempotency_index, stream_keeper
from gateway.requests.withdrawals import Withdrawals
from gateway.responses import response_operations, response_stream
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, records, topics
from tailrace.retry import retry_until

KEY_TTL_S: Final = 24 * 3600.0
ATTACH_DEADLINE_S: Final = 2.0
ATTACH_RETRY_S: Final = 0.2
WITHDRAWAL_S: Final = 5.0

Append = Callable[[], Awaitable[tuple[delivery.Subscription, int]]]


@dataclass(frozen=True, slots=True)
class Key:
    """A client's key, and where its request goes.

    Attributes:
        key: as the client sent it.
        digest: as the log holds it.
        body_digest: digest of the request's body.
        partition: the hash of (principal, key).
    """

    owner: records.Owner
    key: str
    digest: str
    body_digest: str | None
    pool: str
    priority: topics.PriorityClass
    partition: int
    embeddings: bool = False

    @property
    def principal(self) -> str:
        """Key of the principal."""
        return self.owner.key


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with an idempotency key."""

    request: records.Request
    key: Key

    @property
    def rid(self) -> str:
        return self.request.rid


class _OtherBody(Exception):
    """The response `rid` has this key and another body."""

    def __init__(self, rid: str) -> None:
        super().__init__(rid)
        self.rid = rid


class Idempotency:
    """Appends a request, unless the log has one with the same key.

    Attributes:
        _pending: rid -> whether its request reached the log, for pending submissions. A retry with
            the same key waits for it.
    """

    def __init__(
        self,
        cache: Cache,
        index: idempotency_index.IdempotencyIndex,
        streams: stream_keeper.StreamKeeper,
        operations: response_operations.ResponseOperations,
        withdrawals: Withdrawals,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cache = cache
        self._index = index
        self._streams = streams
        self._operations = operations
        self._withdrawals = withdrawals
        self._spawn = spawn
        self._clock = clock
        self._sleep = sleep
        self._pending: dict[str, asyncio.Future[bool]] = {}

    async def append_once(
        self, attempt: KeyedRequest, append: Append
    ) -> delivery.Subscription | response_stream.ResponseStream:
        """Call `append`, unless the log has an earlier request with this key.

        Returns:
            The subscription that `append` returned, or the stream of the earlier response.

        Raises:
            errors.ApiError: 409, the earlier request had another body. Nothing runs for this one.
            log.LogUnavailable: nothing was appended.
            log.AppendFailed: like `append`; also when the request is in the log, but whether
                another one precedes it is unknown.
        """
        try:
            return await self._append_once(attempt, append)
        except _OtherBody as error:
            raise errors.idempotency_key_reused() from error

    async def is_first(self, attempt: KeyedRequest) -> bool:
        """Whether the log has this request, and no valid one with its key before it.

        Raises:
            log.LogUnavailable
        """
        for rid in await self._response_ids(attempt.key, end=-1):
            if rid == attempt.rid:
                return True
            try:
                stream = await self._attach(attempt.key, rid, logged=True)
            except (_OtherBody, errors.ApiError):
                return False
            if stream is not None:
                stream.release()
                return False
        return False

    async def find(self, key: Key) -> response_stream.ResponseStream | None:
        """The stream of the logged request with this key, if there is one.

        Raises:
            errors.ApiError: 409, it had another body.
            log.LogUnavailable
        """
        try:
            for rid in await self._response_ids(key, end=-1):
                stream = await self._attach(key, rid, logged=True)
                if stream is not None:
                    return stream
        except _OtherBody as error:
            raise errors.idempotency_key_reused() from error
        return None

    async def _append_once(
        self, attempt: KeyedRequest, append: Append
    ) -> delivery.Subscription | response_stream.ResponseStream:
        with self._submitting(attempt.rid) as outcome:
            earlier = await self._earlier(attempt)
            if earlier is not None:
                return earlier
            subscription, end = await append()
            outcome.set_result(True)
            try:
                earlier = await self._ahead_in_log(attempt, end)
            except _OtherBody as error:
                subscription.close()
                # Before the answer: a refused request must not run.
                await self._withdraw(attempt, error.rid)
                raise
            except (log.LogUnavailable, errors.ApiError) as error:
                subscription.close()
                raise log.AppendFailed(str(error)) from error
            except BaseException:
                subscription.close()
                raise
            if earlier is None:
                return subscription
            subscription.close()
            self._spawn(self._withdraw(attempt, earlier.rid))
            return earlier

    @contextlib.contextmanager
    def _submitting(self, rid: str) -> Iterator[asyncio.Future[bool]]:
        """Hold the rid from before it becomes visible in Redis until the append has succeeded or
        failed. In between, a look-up in the log does not find it."""
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending[rid] = outcome
        try:
            yield outcome
        finally:
            del self._pending[rid]
            if not outcome.done():
                outcome.set_result(False)

    async def _earlier(self, attempt: KeyedRequest) -> response_stream.ResponseStream | None:
        """The stream of an earlier request with this key."""
        key = attempt.key
        first = await self._cache.claim_key(key.principal, key.key, attempt.rid, KEY_TTL_S)
        if first != attempt.rid:
            stream = await self._attach(key, first)
            if stream is not None:
                return stream
            # Its submission failed before the append, so the key is free again.
            await self._remap(attempt, first, attempt.rid)
        # The key is new to Redis, which may have lost it or never got it.
        for rid in await self._response_ids(key, end=-1):
            try:
                stream = await self._attach(key, rid, logged=True)
            except _OtherBody:
                await self._remap(attempt, attempt.rid, rid)
                raise
            if stream is not None:
                try:
                    await self._remap(attempt, attempt.rid, rid)
                except BaseException:
                    stream.release()
                    raise
                return stream
        return None

    async def _ahead_in_log(
        self, attempt: KeyedRequest, end: int
    ) -> response_stream.ResponseStream | None:
        """The stream of a request with this key that precedes this one in the log.

        Args:
            end: offset after this request's record; -1: unknown.
        """
        for rid in await self._response_ids(attempt.key, end):
            if rid == attempt.rid:
                return None
            stream = await self._attach(attempt.key, rid, logged=True)
            if stream is not None:
                return stream
        return None

    async def _response_ids(self, key: Key, end: int) -> list[str]:
        index_key = (key.owner, key.digest)
        return await self._index.rids(key.pool, key.priority, key.partition, index_key, end)

    async def _withdraw(self, attempt: KeyedRequest, first: str) -> None:
        """Withdraw this request, because `first` precedes it. Return when its CANCEL is in the log,
        or after `WITHDRAWAL_S`; the withdrawal continues in the background."""
        self._withdrawals.begin(attempt.request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHDRAWAL_S):
                await self._withdrawals.wait_for(attempt.rid)
        await self._remap(attempt, attempt.rid, first)

    async def _remap(self, attempt: KeyedRequest, old: str, new: str) -> None:
        """Replace `old` by `new` in the cache."""
        key = attempt.key
        await self._cache.release_key(key.principal, key.key, old)
        await self._cache.claim_key(key.principal, key.key, new, KEY_TTL_S)

    async def _attach(
        self, key: Key, rid: str, *, logged: bool = False
    ) -> response_stream.ResponseStream | None:
        """The stream of the earlier response `rid`; None if it cannot be followed or was withdrawn.

        Args:
            logged: its request is in the log.

        Raises:
            _OtherBody: it has another body.
        """
        pending = self._pending.get(rid)
        if pending is not None and not await asyncio.shield(pending) and not logged:
            return None
        await self._withdrawals.wait_for(rid)
        try:
            # Another gateway may have claimed the key and not yet appended.
            return await retry_until(
                lambda: self._follow(key, rid),
                on=delivery.NotFound,
                pause_s=ATTACH_RETRY_S,
                deadline_s=0.0 if logged else ATTACH_DEADLINE_S,
                clock=self._clock,
                sleep=self._sleep,
            )
        except (delivery.NotFound, log.HistoryLost, response_operations.Withdrawn):
            return None

    async def _follow(self, key: Key, rid: str) -> response_stream.ResponseStream:
        # This check precedes the open: releasing a stream can end its response.
        digest = await self._operations.body_digest(rid, key.owner)
        if digest is not None and digest != key.body_digest:
            raise _OtherBody(rid)
        return await self._streams.follow(rid, key.owner, embeddings=key.embeddings)
