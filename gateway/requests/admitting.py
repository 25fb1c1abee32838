"""Admission of a request, the length of its answer, and the choice of its pool."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.load import admission, pool_choice, principal_counts
from gateway.parsing import command
from gateway.requests import request_builder, request_writer, stages, stream_keeper
from gateway.responses.memory import ResponseMemory
from tailrace import telemetry
from tailrace.auth.principal import Principal
from tailrace.protocol import errors, records
from tailrace.settings.shapes import Limits
from tailrace.web import access

Recall = Callable[[str], ResponseMemory | None]


@dataclass(slots=True)
class Intake:
    """Whether this process accepts requests.

    Attributes:
        leaving: the drain has begun. The process is not ready, but accepts requests until load
            balancers have noticed.
        refusing: no new requests are accepted.
    """

    leaving: bool = False
    refusing: bool = False


class Admitting:
    """Admits commands and chooses pools."""

    def __init__(
        self,
        bounds: Limits,
        intake: Intake,
        builder: request_builder.RequestBuilder,
        writer: request_writer.RequestWriter,
        routes: pool_choice.Routes,
        counts: principal_counts.PrincipalCounts,
        streams: stream_keeper.StreamKeeper,
    ) -> None:
        self._limits = bounds
        self._intake = intake
        self._builder = builder
        self._writer = writer
        self._routes = routes
        self._counts = counts
        self._streams = streams

    def receive(
        self, create: command.Create, principal: Principal, recall: Recall
    ) -> stages.Arrival:
        """The admitted request.

        Raises:
            errors.ApiError: the request is refused.
        """
        since = time.monotonic()
        self.admit(create, principal)
        if create.pending is None:
            create = self.shorten(create, principal)
        memory = recall(create.previous) if create.previous is not None else None
        return stages.Arrival(create, principal, access.owner_of(principal), memory, since)

    def admit(self, create: command.Create, principal: Principal) -> None:
        """Check the limits and the state of this process.

        Raises:
            errors.ApiError: the request is refused.
        """
        if create.pending is not None:
            # `admit` runs again once the model is chosen, so nothing of this candidate's is refused
            # yet.
            create = dataclasses.replace(create, priority="interactive", generate=False)
        refusal = admission.check(
            create,
            principal.key,
            self._streams.running,
            self._limits,
            refusing=self._intake.refusing,
            writable=self._writer.ready,
            wait_s=self._routes.wait_s(create, principal.key),
            elsewhere=self._counts.elsewhere(principal.key),
            luck=self._routes.draw(),
        )
        if refusal is not None:
            telemetry.REQUESTS.labels(outcome="refused").inc()
            raise refusal

    def shorten(self, create: command.Create, principal: Principal) -> command.Create:
        """The request, with a shorter answer where its pool is busy."""
        if not self._builder.continues(create.pool):
            return create
        return self._routes.shorten(create, principal.key)

    async def route(self, draft: stages.Draft) -> stages.Destination:
        """The pool that answers, and the topic of the record.

        Raises:
            errors.ApiError: no pool accepts the request now.
        """
        create = draft.decision.create
        pool = await self._pool(create, draft.request, draft.decision.placement.arrival.principal)
        # One topic decides which request of a key is the first.
        return stages.Destination(
            draft, pool, pool if create.idempotency_key is None else create.pool
        )

    async def _pool(
        self, create: command.Create, request: records.Request, principal: Principal
    ) -> str:
        """The pool that a request goes to.

        Raises:
            errors.ApiError: no pool accepts it, and no cached answer serves it.
        """
        try:
            return self._routes.choose(create, request, principal.key)
        except errors.ApiError as error:
            if error.status == 429 and await self._has_answer(create, request):
                return create.pool
            telemetry.REQUESTS.labels(outcome="refused").inc()
            raise

    async def _has_answer(self, create: command.Create, request: records.Request) -> bool:
        """Whether the pool's workers have a cached answer, which needs no engine slot."""
        return self._routes.reuses_answers(create) and await self._builder.has_answer(
            create, request
        )
