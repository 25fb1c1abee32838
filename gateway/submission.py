"""The way of a request into the log.

A client gets no answer before the broker has acknowledged the request record. From then on the
response belongs to the log, and the `StreamKeeper` follows it to its end.

An error says what became of the request: `outcome_unknown` that it may be in the log, and is being
withdrawn; every other one that nothing was written or will be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from gateway import (
    admission,
    files,
    idempotency,
    lanes,
    principal_counts,
    rate_limits,
    request_builder,
    request_writer,
    response_stream,
    stream_keeper,
    withdrawals,
    worker_registry,
)
from gateway.parsing import command, conversation
from tailrace import log, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery
from tailrace.protocol import errors, records, topics
from tailrace.settings.shapes import Limits

PREPARE_DEADLINE_S: Final = 10.0  # for everything before the append, which has its own deadline
_INGRESS_SECONDS = telemetry.STAGE_SECONDS.labels(stage="ingress")


class Submission:
    """Takes requests into the log.

    Attributes:
        streams: streams of the responses submitted here and of those followed here.
        leaving: this process is on its way out. It is not ready, but takes requests until load
            balancers have noticed.
        refusing: no new requests are taken any more.
    """

    def __init__(
        self,
        bounds: Limits,
        builder: request_builder.RequestBuilder,
        writer: request_writer.RequestWriter,
        rates: rate_limits.RateLimiter,
        keys: idempotency.Idempotency,
        streams: stream_keeper.StreamKeeper,
        workers: worker_registry.WorkerRegistry,
        counts: principal_counts.PrincipalCounts,
        permit: Callable[[Principal], None],
        withdrawn: withdrawals.Withdrawals,
        kept_files: files.Files,
    ) -> None:
        """`permit` raises ApiError when the principal's credential was revoked."""
        self._limits = bounds
        self._builder = builder
        self._writer = writer
        self._rates = rates
        self._keys = keys
        self._workers = workers
        self._counts = counts
        self._permit = permit
        self._withdrawals = withdrawn
        self._files = kept_files
        self.streams = streams
        self.leaving = False
        self.refusing = False

    @property
    def accepting(self) -> bool:
        """Whether a request could be taken now."""
        return self._writer.ready and not self.refusing

    @property
    def answered(self) -> bool:
        """Whether the log took and answered what it was last asked."""
        return self._writer.answered

    async def submit(
        self,
        create: command.Create,
        principal: Principal,
        recall: Callable[[str], lanes.Remembered | None] = lambda _rid: None,
    ) -> response_stream.ResponseStream:
        """Take a request into the log.

        Args:
            recall: the connection's memory by response id. It also knows responses with
                `store: false`, which no cache does.

        Returns:
            The stream of the response. The caller must enter or release it.

        Raises:
            errors.ApiError
        """
        with telemetry.span("submit", pool=create.pool, priority=create.priority):
            return await self._submit(create, principal, recall)

    async def _submit(
        self,
        create: command.Create,
        principal: Principal,
        recall: Callable[[str], lanes.Remembered | None],
    ) -> response_stream.ResponseStream:
        started = time.monotonic()
        self._admit(create, principal)
        looks_up = (
            create.previous is not None
            or create.fork is not None
            or bool(conversation.unresolved(create.turn))
        )
        remembered = recall(create.previous) if create.previous is not None else None
        # Rates and the look-ups of the builder reach Redis in one round trip.
        charged = asyncio.ensure_future(self._rates.charge(create, principal.key))
        charged.add_done_callback(consume_exception)
        charge: rate_limits.Charge | None = None
        appended: delivery.Subscription | response_stream.ResponseStream | None = None
        try:
            async with asyncio.timeout(PREPARE_DEADLINE_S) as preparing:
                if looks_up:
                    # The builder may look into the log. A refused principal must not cause that.
                    await charged
                request, partition = await self._builder.build(create, principal, remembered)
                charge = await charged
                if looks_up:
                    await self._rates.charge_tokens(charge, admission.cost_of(request))
                request = await self._files.apart(request)
                self._permit(principal)  # what came before may have taken seconds
                appended = await self._append(create, principal, request, partition, preparing)
        except (log.LogUnavailable, TimeoutError) as error:
            telemetry.REQUESTS.labels(outcome="unavailable").inc()
            raise errors.unavailable("The log cannot be written right now.") from error
        finally:
            charged.cancel()
            if charge is not None and not isinstance(appended, delivery.Subscription):
                # Nothing was written, or an earlier request with the same key was charged.
                self._rates.settle(charge.principal, charge.tokens, 0.0)
        if isinstance(appended, response_stream.ResponseStream):
            return appended
        seconds = time.monotonic() - started
        telemetry.REQUESTS.labels(outcome="accepted").inc()
        telemetry.SUBMIT_SECONDS.observe(seconds)
        _INGRESS_SECONDS.observe(seconds)
        telemetry.log(
            telemetry.Action.RESPONSE_ACCEPTED,
            response=request.rid,
            pool=create.pool,
            priority=create.priority,
            partition=partition,
        )
        return self.streams.open(
            request,
            appended,
            principal=principal,
            partition=partition,
            pool=create.pool,
            awaited_since=started,
            charge=charge,
        )

    def _admit(self, create: command.Create, principal: Principal) -> None:
        refused = admission.check(
            create,
            principal.key,
            self.streams.running,
            self._limits,
            refusing=self.refusing,
            writable=self._writer.ready,
            workers=self._workers.workers(create.pool),
            deadline_s=request_builder.TTL_MS / 1000,
            elsewhere=self._counts.elsewhere(principal.key),
        )
        if refused is not None:
            telemetry.REQUESTS.labels(outcome="refused").inc()
            raise refused

    async def _append(
        self,
        create: command.Create,
        principal: Principal,
        request: records.Request,
        partition: int,
        preparing: asyncio.Timeout,
    ) -> delivery.Subscription | response_stream.ResponseStream:
        """A subscription to the new response; or the stream of an earlier one with the same key."""
        try:
            return await self._append_once(create, principal, request, partition, preparing)
        except log.NotAppended:
            raise
        except log.AppendFailed as error:
            telemetry.REQUESTS.labels(outcome="unknown").inc()
            self._withdrawals.begin(request)
            raise errors.outcome_unknown(request.rid) from error

    async def _append_once(
        self,
        create: command.Create,
        principal: Principal,
        request: records.Request,
        partition: int,
        preparing: asyncio.Timeout,
    ) -> delivery.Subscription | response_stream.ResponseStream:
        topic = topics.requests(create.pool, create.priority)

        async def append() -> tuple[delivery.Subscription, int]:
            # A cancelled append would not say what became of the record.
            preparing.reschedule(None)
            return await self._writer.append(request, topic, partition)

        if create.idempotency_key is None or request.idempotency_key is None:
            subscription, _ = await append()
            return subscription
        keyed = idempotency.KeyedRequest(
            request,
            principal.key,
            create.idempotency_key,
            request.idempotency_key,
            create.pool,
            create.priority,
            partition,
        )
        return await self._keys.append_once(keyed, append)


def consume_exception(task: asyncio.Future[Any]) -> None:
    """Mark the task's exception as seen: another failure may come first and be raised instead."""
    if not task.cancelled():
        task.exception()
