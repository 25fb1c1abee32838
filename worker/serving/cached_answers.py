"""Cached answers: a request whose answer depends on it alone is not generated twice (log rule §24).

Redis holds the ids for the time that the pool sets. The worker that uses them writes them to the
log as the response's own, so the log has every answer whole, and Redis may lose any.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable

import msgspec

from tailrace import telemetry
from tailrace.protocol import equal_requests, fold, history, records
from tailrace.store.answers import MAX_IDS, Answer, Answers
from tailrace.store.redis_store import StoreUnavailable
from worker.engines import base


def answer_maker(request: records.Request, engine: base.Engine) -> str | None:
    """A digest of everything except the request that decides the answer's ids, text and items.
    None where the engine does not know it."""
    engine_inputs = engine.repeatable(request)
    if engine_inputs is None:
        return None
    inputs = [
        [engine.model_rev, engine.tokenizer_digest, engine.parser_name(request)],
        [engine_inputs, engine.max_model_len],
    ]
    return hashlib.blake2b(msgspec.json.encode(inputs), digest_size=20).hexdigest()


class CachedAnswers:
    """Finds and stores answers. While Redis is away there are none.

    Attributes:
        _pending: writes to Redis. The set keeps their tasks alive, and `stop` waits for them.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        pool: str = "",
        ttl_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`ttl_s`: gives for how long an answer may be used again now; 0: none is used."""
        self._answers = answers
        self._pool = pool
        self._ttl_s = ttl_s
        self._pending: set[asyncio.Task[None]] = set()

    async def find(self, request: records.Request, engine: base.Engine) -> Answer | None:
        """A former answer to this request, or None. Takes no longer than one call to Redis."""
        if self._answers is None or not self._ttl_s():
            return None
        digest, maker = equal_requests.digest(request), answer_maker(request, engine)
        if digest is None or maker is None:
            return None
        answer = None
        with contextlib.suppress(StoreUnavailable):
            answer = await self._answers.find(self._pool, digest)
        if answer is not None and (
            answer.made_by != maker or len(answer.ids) >= request.sampling.max_tokens
        ):
            answer = None  # another model's, or longer than this client allows
        telemetry.CACHED_ANSWERS.labels(outcome="miss" if answer is None else "hit").inc()
        return answer

    def store(
        self,
        request: records.Request,
        engine: base.Engine,
        state: fold.Fold,
        draft: history.Draft | None,
    ) -> None:
        """Store the answer of a response that this worker has ended, if it may be used again. Only
        responses that their clients store have a `draft`. Best effort."""
        if self._answers is None or not self._ttl_s() or draft is None:
            return
        own_model = (engine.model_rev, engine.tokenizer_digest, engine.parser_name(request))
        if (
            state.ended is None
            or state.ended.reason != "stop"
            or state.answer_of
            or state.served
            or state.former
            or state.dropped
            or state.model != own_model
            or len(draft.ids) != state.next
            or not 0 < state.next <= MAX_IDS
        ):
            return
        digest, maker = equal_requests.digest(request), answer_maker(request, engine)
        if digest is None or maker is None:
            return
        answer = Answer(request.rid, list(draft.ids), state.prompt, maker)
        task = asyncio.create_task(self._store(digest, answer))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _store(self, digest: str, answer: Answer) -> None:
        assert self._answers is not None
        with contextlib.suppress(StoreUnavailable):
            await self._answers.store(self._pool, digest, answer, self._ttl_s())
            telemetry.CACHED_ANSWERS.labels(outcome="kept").inc()

    async def stop(self) -> None:
        """Wait for pending writes; the Redis client bounds each call."""
        if self._pending:
            await asyncio.wait(self._pending)
