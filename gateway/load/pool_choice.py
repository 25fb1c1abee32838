"""Chooses the pool of a request (docs/design/fallback.md)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from gateway.load import admission, breaker, shortening, worker_registry
from gateway.load.breakers import Breakers
from gateway.parsing import command, conversation
from tailrace import settings
from tailrace.protocol import engine_fields, equal_requests, errors, features, records
from tailrace.settings.shapes import Pool

UNAVAILABLE_S: Final = 1.0


def allowed(request: records.Request) -> bool:
    """Whether another model may answer. Not a fork, embeddings or logit biases, because they depend
    on the model's token ids or vector space; and not a warm-up."""
    parts = request.fork, request.embed
    return request.generate and parts == (None, None) and not request.sampling.logit_bias


def fits(create: command.Create, request: records.Request, primary: Pool, pool: Pool) -> bool:
    """Whether the pool accepts the class, and the request fits the model's length, by estimate. A
    truncated prompt must leave out the same messages on each pool, so the length must not be
    less."""
    if create.priority not in pool.classes:
        return False
    if request.truncate:
        return pool.max_model_len >= primary.max_model_len
    prompt = conversation.characters(request.messages) / admission.CHARS_PER_TOKEN_GUESS
    return prompt < pool.max_model_len and (create.max_output_tokens or 0) <= pool.longest_answer


class Routes:
    """Chooses pools by their breakers, their workers and their backlog."""

    def __init__(
        self,
        pools: settings.CurrentPools,
        breakers: Breakers,
        workers: worker_registry.WorkerRegistry,
        wait_s: Callable[[str, command.Create, str], float | None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`wait_s`: returns the estimated seconds until a pool starts a request of a principal;
        None: unknown. `draw`: returns a random number from 0 to 1."""
        self._pools = pools
        self._breakers = breakers
        self._workers = workers
        self._wait_s = wait_s
        self.draw = draw

    def reuses_answers(self, create: command.Create) -> bool:
        """Whether the requested pool may answer with a cached answer, and its workers are
        available."""
        pool = self._pools.catalog.pool(create.pool)
        plain = create.generate and create.fork is None and create.embed is None
        return (
            pool is not None
            and pool.cached_answers is not None
            and plain
            and create.cached_answers
            and equal_requests.repeatable(create.sampling)
            and not self._is_open(pool.name)
        )

    def wait_s(self, create: command.Create, principal: str) -> float | None:
        """Estimated seconds until a request starts, for an early refusal. None if another pool or a
        cached answer may serve it. `principal`: like in `choose`."""
        name = create.pool
        chain = self._pools.catalog.chain(name)
        elsewhere = chain[0].fallback_when_busy and create.degrade if chain else False
        if len(chain) > 1 and (self._is_open(name) or elsewhere):
            return None
        return None if self.reuses_answers(create) else self._wait_s(name, create, principal)

    def shorten(self, create: command.Create, principal: str) -> command.Create:
        """The request, with a shorter answer if its pool is too busy for the whole one.
        `principal`: like in `choose`."""
        chain = self._pools.catalog.chain(create.pool)
        rule = chain[0].shorter_when_busy if chain else None
        if rule is None or not shortening.allowed(create, rule):
            return create
        if len(chain) > 1 and self._is_open(create.pool):
            return create  # another pool answers
        wait_s = self._wait_s(create.pool, create, principal)
        return create if (wait_s or 0.0) <= rule.backlog_s else shortening.shorten(create, rule)

    def _is_open(self, name: str) -> bool:
        return self._breakers.state(name) is breaker.State.OPEN

    def others(self, create: command.Create, request: records.Request) -> list[str]:
        """The pools that may answer instead of the requested one, by the request's contents."""
        chain = self._pools.catalog.chain(create.pool)
        if len(chain) < 2 or not allowed(request):
            return []
        primary, *others = chain
        return [pool.name for pool in others if fits(create, request, primary, pool)]

    def choose(self, create: command.Create, request: records.Request, principal: str) -> str:
        """The pool that a request goes to. A pool without `fallback` gets all its requests.

        Args:
            principal: the key of the principal.

        Raises:
            errors.ApiError: 429, every pool that can answer starts it after its deadline; 503, none
                can answer.
        """
        chain = self._pools.catalog.chain(create.pool)
        deadline_s = create.deadline_ms / 1000
        if len(chain) < 2 or not (chain[0].fallback_when_busy and create.degrade):
            late_s = (
                self._late_s(create.pool, create, principal)
                if self.reuses_answers(create)
                else None
            )
            if late_s is not None:
                raise self._too_late(late_s, deadline_s)
        if len(chain) < 2:
            return create.pool
        primary, late_s = chain[0], None
        if primary.fallback_when_busy and create.degrade:
            late_s = self._late_s(primary.name, create, principal)
        if not allowed(request):
            if late_s is not None:
                raise self._too_late(late_s, deadline_s)
            return create.pool
        if late_s is None and self._breakers.admits(primary.name):
            return primary.name
        others = self.others(create, request)
        other = self.next(request, others, create, principal)
        if other is not None:
            return other
        able = [name for name in others if self._able(name, request)]
        waits = [late_s, *(self._late_s(name, create, principal) for name in able)]
        if late_waits := [each for each in waits if each is not None]:
            raise self._too_late(min(late_waits), deadline_s)
        raise errors.no_pool(
            create.model,
            [(pool.name, self._breakers.reason(pool.name)) for pool in chain],
            max(UNAVAILABLE_S, self._breakers.wait_s(primary.name)),
        )

    def next(
        self,
        request: records.Request,
        others: Sequence[str],
        create: command.Create | None = None,
        principal: str = "",
    ) -> str | None:
        """The first of `others` that can answer; None if none can. With `create` it must also start
        in time."""
        for name in others:
            suits = stands_in(self._workers.standing(name), request)
            in_time = create is None or self._late_s(name, create, principal) is None
            if suits and in_time and self._breakers.admits(name):
                return name
        return None

    def _too_late(self, wait_s: float, deadline_s: float) -> errors.ApiError:
        return errors.deadline_not_met(wait_s, deadline_s, self.draw())

    def _able(self, name: str, request: records.Request) -> bool:
        """Whether the pool can answer, perhaps too late."""
        suits = stands_in(self._workers.standing(name), request)
        return suits and not self._is_open(name)

    def _late_s(self, name: str, create: command.Create, principal: str) -> float | None:
        """Estimated seconds until the pool starts it, if that is after its deadline; else None."""
        if not create.generate:
            return None
        wait_s = self._wait_s(name, create, principal)
        deadline_s = create.deadline_ms / 1000
        return None if wait_s is None or not admission.too_late(wait_s, deadline_s) else wait_s


def stands_in(workers: Sequence[worker_registry.Beat], request: records.Request) -> bool:
    """Whether all ready workers of a pool answer for the model and have the request's features. All
    must, because any of them may own its partition."""
    needs = {need.feature for need in features.needs_of(request)}
    fields = {row.name for row in engine_fields.rows_for(request)}
    return bool(workers) and all(
        request.model in _list(worker, "stands_in_for")
        and needs <= set(_list(worker, "features"))
        and fields.isdisjoint(_list(worker, "not_offered"))
        for worker in workers
    )


def _list(worker: worker_registry.Beat, name: str) -> list[str]:
    values = worker.get(name)
    return values if isinstance(values, list) else []
