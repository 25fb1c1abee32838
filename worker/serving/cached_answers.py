"""Answers that are given again: a request whose answer follows from it alone is not generated twice
(log rule §24).

Redis holds the ids, for as long as the pool says. The worker that gives them writes them to the log
as the response's own, so the log has every answer whole, and Redis may lose any.
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


def made_by(request: records.Request, engine: base.Engine) -> str | None:
    """A digest of what the answer's ids, text and items follow from beside the request. None where
    the engine does not say."""
    of_engine = engine.repeatable(request)
    if of_engine is None:
        return None
    followed = [
        [engine.model_rev, engine.tokenizer_digest, engine.parser_name(request)],
        [of_engine, engine.max_model_len],
    ]
    return hashlib.blake2b(msgspec.json.encode(followed), digest_size=20).hexdigest()


class CachedAnswers:
    """Looks answers up and keeps them. While Redis is away there are none.

    Attributes:
        _keeping: answers on their way to Redis. The set keeps their tasks alive, and `stop` waits
            for them.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        pool: str = "",
        ttl_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`ttl_s`: gives for how long an answer may be given again now; 0: none is."""
        self._answers = answers
        self._pool = pool
        self._ttl_s = ttl_s
        self._keeping: set[asyncio.Task[None]] = set()

    async def find(self, request: records.Request, engine: base.Engine) -> Answer | None:
        """A former answer to this request, or None. Takes no longer than one call to Redis."""
        if self._answers is None or not self._ttl_s():
            return None
        digest, made = equal_requests.digest(request), made_by(request, engine)
        if digest is None or made is None:
            return None
        found = None
        with contextlib.suppress(StoreUnavailable):
            found = await self._answers.find(self._pool, digest)
        if found is not None and (
            found.made_by != made or len(found.ids) >= request.sampling.max_tokens
        ):
            found = None  # another model's, or more than this client wants
        telemetry.CACHED_ANSWERS.labels(outcome="miss" if found is None else "hit").inc()
        return found

    def keep(
        self,
        request: records.Request,
        engine: base.Engine,
        state: fold.Fold,
        draft: history.Draft | None,
    ) -> None:
        """Keep the answer of a response that this worker has ended, if it may be given again. Only
        of a response that its client has stored: others have no `draft`. Best effort."""
        if self._answers is None or not self._ttl_s() or draft is None:
            return
        made_here = (engine.model_rev, engine.tokenizer_digest, engine.parser_name(request))
        if (
            state.ended is None
            or state.ended.reason != "stop"
            or state.answer_of
            or state.served
            or state.former
            or state.dropped
            or state.model != made_here
            or len(draft.ids) != state.next
            or not 0 < state.next <= MAX_IDS
        ):
            return
        digest, made = equal_requests.digest(request), made_by(request, engine)
        if digest is None or made is None:
            return
        answer = Answer(request.rid, list(draft.ids), state.prompt, made)
        task = asyncio.create_task(self._keep(digest, answer))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _keep(self, digest: str, answer: Answer) -> None:
        assert self._answers is not None
        with contextlib.suppress(StoreUnavailable):
            await self._answers.keep(self._pool, digest, answer, self._ttl_s())
            telemetry.CACHED_ANSWERS.labels(outcome="kept").inc()

    async def stop(self) -> None:
        """Wait for what is on its way; the Redis client bounds each call."""
        if self._keeping:
            await asyncio.wait(self._keeping)
