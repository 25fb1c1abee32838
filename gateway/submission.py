"""The way of a request into the log.

Nothing is answered before the broker has the record. From then on the response belongs to the log:
every run is pumped to its end by someone (the connection that asked, or a keeper after it left), so
that its turn is remembered and its place is freed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from gateway import (
    admission,
    cache,
    context,
    idempotency_index,
    lanes,
    placement,
    request_parsing,
    response_operations,
    response_stream,
    worker_registry,
)
from tailrace import log, settings, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery, outbox
from tailrace.protocol import errors, events, ids, records, topics
from tailrace.web import access

TTL_MS: Final = 600_000  # a request that was not started by then never is
SUBMIT_DEADLINE_S: Final = 10.0
KEEP_S: Final = (
    3600.0  # a response that nobody waits for and no worker takes is left to the log after that
)
ATTACH_DEADLINE_S: Final = 2.0
ATTACH_RETRY_S: Final = 0.2
IDEMPOTENCY_TTL_S: Final = 24 * 3600.0
MAX_BODY_BYTES: Final = (
    records.MAX_RECORD_BYTES - 65_536
)  # the rest is for keys, headers and the batch around it


class Submission:
    """
    Attributes:
        running: unfinished responses submitted here.
        active_streams: runs that somebody follows on a connection of this process.
        leaving: this process is on its way out; it is not ready, but takes requests until balancers
            have noticed.
        refusing: no new requests are taken any more.
        _pending: rid -> whether it got into the log, for submissions under way; a retry with the
            same key waits for it.
        _turn: counts placements, so that equal partitions take turns.
    """

    def __init__(
        self,
        config: settings.GatewaySettings,
        layout: log.Layout,
        deliver: delivery.Delivery,
        writer: log.Writer,
        cached: cache.Cache,
        index: idempotency_index.IdempotencyIndex,
        operations: response_operations.ResponseOperations,
        workers: worker_registry.WorkerRegistry,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._layout = layout
        self._delivery = deliver
        self._writer = writer
        self._cache = cached
        self._index = index
        self._operations = operations
        self._workers = workers
        self._spawn = spawn
        self._clock = clock
        self._resolver = context.Resolver(deliver, cached, layout.partitions)
        self._pending: dict[str, asyncio.Future[bool]] = {}
        self._turn = itertools.count()
        self.running = admission.Running()
        self.active_streams = 0
        self.leaving = False
        self.refusing = False

    @property
    def accepting(self) -> bool:
        """Whether a request could be taken now."""
        return self._writer.connected and self._delivery.ready and not self.refusing

    # ---- in
    # ------------------------------------------------------------------------------------------

    async def submit(
        self,
        create: request_parsing.Create,
        principal: Principal,
        recall: Callable[[str], lanes.Remembered | None] = lambda _rid: None,
        permitted: Awaitable[None] | None = None,
    ) -> response_stream.ResponseStream:
        """Take a request into the log.

        Args:
            recall: the memory of the connection, which knows more than any cache (`store: false`).
            permitted: raises when the principal may do nothing after all; nothing is written
                before.

        Raises:
            errors.ApiError
        """
        with telemetry.span("submit", pool=create.pool, priority=create.priority):
            return await self._submit(create, principal, recall, permitted)

    async def _submit(
        self,
        create: request_parsing.Create,
        principal: Principal,
        recall: Callable[[str], lanes.Remembered | None],
        permitted: Awaitable[None] | None,
    ) -> response_stream.ResponseStream:
        started = time.monotonic()
        self._admit(create, principal)
        owner = access.owner_of(principal)
        remembered = recall(create.previous) if create.previous is not None else None
        # What these three ask of Redis goes out in one round trip.
        allowed = asyncio.ensure_future(self._take_rate(create, principal))
        allowed.add_done_callback(consume_exception)
        try:
            async with asyncio.timeout(SUBMIT_DEADLINE_S):
                if (
                    create.previous is not None
                ):  # a look-up in the log is not for those who have asked too much, or may not ask
                    await _all(allowed, permitted)
                history = await self._resolver.resolve(create.previous, owner, remembered)
                request, partition = await self._request(create, principal, owner, history)
                await _all(allowed, permitted)
                headers = allowed.result()
                with self._announced(request.rid) as outcome:
                    first, refused = await self._first_of_key(create, principal, request, partition)
                    if first is not None:
                        return first
                    run, end = await self._append(create, request, partition)
                    outcome.set_result(True)
                    if (
                        first := await self._ahead(create, principal, request, run, end, refused)
                    ) is not None:
                        return first
        except (log.LogUnavailable, TimeoutError) as error:
            telemetry.REQUESTS.labels(outcome="unavailable").inc()
            raise errors.unavailable("The log cannot be written right now.") from error
        finally:
            allowed.cancel()
        self._count(run, principal, partition)
        run.headers = {**headers, "x-tailrace-response-id": run.rid}
        telemetry.REQUESTS.labels(outcome="accepted").inc()
        telemetry.SUBMIT_SECONDS.observe(time.monotonic() - started)
        telemetry.log(
            telemetry.Action.RESPONSE_ACCEPTED,
            response=run.rid,
            pool=create.pool,
            priority=create.priority,
            partition=partition,
        )
        run.pool, run.awaited_since = create.pool, started
        return run

    def _admit(self, create: request_parsing.Create, principal: Principal) -> None:
        refused = admission.check(
            create,
            principal.key,
            self.running,
            self._config.limits,
            refusing=self.refusing,
            writable=self._writer.connected and self._delivery.ready,
            workers=self._workers.workers(create.pool),
            deadline_s=TTL_MS / 1000,
        )
        if refused is not None:
            telemetry.REQUESTS.labels(outcome="refused").inc()
            raise refused

    async def _take_rate(
        self, create: request_parsing.Create, principal: Principal
    ) -> dict[str, str]:
        limits = self._config.limits
        headers: dict[str, str] = {}
        if limits.requests_rate:
            taken = await self._cache.consume_tokens(
                principal.key, 1.0, limits.requests_rate, limits.requests_burst, "requests"
            )
            if taken is not None:
                headers = admission.headers(limits, taken.remaining)
                if not taken.allowed:
                    telemetry.REQUESTS.labels(outcome="limited").inc()
                    raise errors.rate_limit_exceeded(taken.retry_after_s, "requests", headers)
        if limits.tokens_rate:
            taken = await self._cache.consume_tokens(
                principal.key,
                admission.cost(create),
                limits.tokens_rate,
                limits.tokens_burst,
                "tokens",
            )
            if taken is not None and not taken.allowed:
                telemetry.REQUESTS.labels(outcome="limited").inc()
                raise errors.rate_limit_exceeded(taken.retry_after_s, "tokens", headers)
        return headers

    async def _request(
        self,
        create: request_parsing.Create,
        principal: Principal,
        owner: records.Owner,
        history: context.History,
    ) -> tuple[records.Request, int]:
        past = context.last_turns(history.messages)
        head = (
            [{"role": "system", "content": create.instructions}]
            if create.instructions is not None
            else []
        )
        messages = [*head, *past, *create.input]
        if not messages:
            raise errors.missing_required_parameter("input")
        prefix = placement.prefix(owner.tenant or owner.key, create.model, messages)
        partition = await self._place(create, principal, history, prefix)
        rid = await self._delivery.mint(partition)
        request = records.Request(
            rid=rid,
            owner=owner,
            model=create.model,
            messages=messages,
            sampling=create.sampling,
            echo=self._echo(rid, create),
            input=create.items,
            previous=create.previous,
            store=create.store,
            generate=create.generate,
            ttl_ms=TTL_MS,
            idempotency_key=_digest(create.idempotency_key),
            prefix=prefix,
        )
        return request, partition

    async def _place(
        self,
        create: request_parsing.Create,
        principal: Principal,
        history: context.History,
        prefix: Sequence[str],
    ) -> int:
        if create.idempotency_key is not None:
            return placement.of_key(principal.key, create.idempotency_key, self._layout.partitions)
        warm = await self._cache.warm_partition(create.pool, prefix)
        chosen = placement.choose(
            self._delivery.preferred,
            self._layout.partitions,
            self.running.on,
            warm=warm,
            sticky=history.partition,
            turn=next(self._turn),
        )
        telemetry.PREFIX_LOOKUPS.labels(
            outcome="miss" if warm is None else "hit" if chosen == warm else "overridden"
        ).inc()
        return chosen

    def _echo(self, rid: str, create: request_parsing.Create) -> dict[str, Any]:
        echo = events.echo(
            rid,
            int(self._clock()),
            create.model,
            instructions=create.instructions,
            previous_response_id=create.previous,
            max_output_tokens=create.max_output_tokens,
            temperature=create.sampling.temperature,
            top_p=create.sampling.top_p,
            presence_penalty=create.sampling.presence_penalty,
            frequency_penalty=create.sampling.frequency_penalty,
            store=create.store,
            background=create.background,
            metadata=create.metadata,
            user=create.user,
            safety_identifier=create.safety_identifier,
            prompt_cache_key=create.prompt_cache_key,
            parallel_tool_calls=create.parallel_tool_calls,
        )
        return {**echo, "service_tier": "flex"} if create.priority == "batch" else echo

    async def _append(
        self, create: request_parsing.Create, request: records.Request, partition: int
    ) -> tuple[response_stream.ResponseStream, int]:
        """The run, and the offset after its request (-1: not known)."""
        value = records.encode(request)
        if len(value) > MAX_BODY_BYTES:
            raise errors.record_too_large()
        topic = topics.requests(create.pool, create.priority)
        self._delivery.open(request)
        try:
            subscription = await self._delivery.watch(request.rid, request.owner)
            appended = await self._write(topic, partition, request.rid, value)
        except BaseException:
            self._delivery.discard(request.rid)
            raise
        self._delivery.acknowledged(request.rid)
        run = response_stream.ResponseStream(
            request.rid,
            request.owner,
            request.echo,
            subscription,
            create.store,
            context.without_instructions(request),
            create.previous,
        )
        return (
            run,
            appended.offset + 1 or -1,
        )  # aiokafka tells no offset of a retry that the broker had already taken

    async def _write(self, topic: str, partition: int, rid: str, value: bytes) -> log.Appended:
        """Append with acks=all. After a failure the same record is tried once more: should the
        first be in the log after all, it is one response all the same, because both have one id and
        one claim wins."""
        headers = telemetry.trace_headers()
        try:
            return await self._writer.append(topic, partition, rid, value, headers)
        except log.TooLarge as error:
            raise errors.record_too_large() from error
        except log.AppendFailed:
            return await self._writer.append(topic, partition, rid, value, headers)

    def _count(
        self, run: response_stream.ResponseStream, principal: Principal, partition: int
    ) -> None:
        self.running.add(run.rid, principal.key, partition)
        run.counted = True
        self.active_streams += 1
        telemetry.RUNNING_RESPONSES.set(len(self.running))

    # ---- idempotency
    # ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _announced(self, rid: str) -> Iterator[asyncio.Future[bool]]:
        """From before its key can lead anyone here until its outcome is known: a look-up in the log
        would find nothing meanwhile."""
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending[rid] = outcome
        try:
            yield outcome
        finally:
            del self._pending[rid]
            if not outcome.done():
                outcome.set_result(False)

    async def _first_of_key(
        self,
        create: request_parsing.Create,
        principal: Principal,
        request: records.Request,
        partition: int,
    ) -> tuple[response_stream.ResponseStream | None, list[str]]:
        """The run of an earlier request with the same key, if there is one; and earlier ones that
        cannot be attached to (deleted, out of the log)."""
        if create.idempotency_key is None or request.idempotency_key is None:
            return None, []
        first = await self._cache.claim_key(
            principal.key, create.idempotency_key, request.rid, IDEMPOTENCY_TTL_S
        )
        if first != request.rid:
            run = await self._attach(first, request.owner)
            if run is not None:
                return run, []
            # Its submission failed or died before the append: the key is free again.
            await self._remap(create, principal, first, request.rid)
        # To Redis the key is new. Redis may have lost it, or never have been told.
        known = await self._index.rids(
            create.pool, create.priority, partition, (request.owner, request.idempotency_key)
        )
        for rid in known:
            run = await self._attach(rid, request.owner, logged=True)
            if run is not None:
                await self._remap(create, principal, request.rid, rid)
                return run, []
        return None, known

    async def _ahead(
        self,
        create: request_parsing.Create,
        principal: Principal,
        request: records.Request,
        run: response_stream.ResponseStream,
        end: int,
        refused: Sequence[str],
    ) -> response_stream.ResponseStream | None:
        """The run of a request with the same key that got into the log just before this one, when
        nothing but the log could tell: the earlier one stands, as with claims, and this one is
        cancelled."""
        if create.idempotency_key is None or request.idempotency_key is None:
            return None
        key = (request.owner, request.idempotency_key)
        try:
            for rid in await self._index.rids(
                create.pool, create.priority, ids.parse(run.rid).partition, key, end
            ):
                if rid == run.rid:
                    return None
                first = (
                    await self._attach(rid, request.owner, logged=True)
                    if rid not in refused
                    else None
                )
                if first is not None:
                    run.subscription.close()
                    self._spawn(self._stand_down(create, principal, run, rid))
                    return first
        except BaseException:
            run.subscription.close()
            raise
        return None

    async def _stand_down(
        self,
        create: request_parsing.Create,
        principal: Principal,
        run: response_stream.ResponseStream,
        first: str,
    ) -> None:
        with contextlib.suppress(
            log.LogUnavailable
        ):  # then it costs compute, but nobody is shown it
            await self._operations.append_cancel(run.rid, run.owner, run.echo)
        await self._remap(create, principal, run.rid, first)

    async def _remap(
        self, create: request_parsing.Create, principal: Principal, old: str, new: str
    ) -> None:
        """Have the cache say `new` where it says `old`."""
        assert create.idempotency_key is not None
        await self._cache.release_key(principal.key, create.idempotency_key, old)
        await self._cache.claim_key(principal.key, create.idempotency_key, new, IDEMPOTENCY_TTL_S)

    async def _attach(
        self, rid: str, owner: records.Owner, *, logged: bool = False
    ) -> response_stream.ResponseStream | None:
        """`logged`: its request is known to be in the log."""
        pending = self._pending.get(rid)
        if pending is not None and not await asyncio.shield(pending) and not logged:
            return None
        give_up = time.monotonic() + (0.0 if logged else ATTACH_DEADLINE_S)
        while True:
            try:
                return await self.follow(rid, owner)
            except delivery.NotFound:
                if time.monotonic() > give_up:
                    return None
            except log.HistoryLost:
                return None
            await asyncio.sleep(
                ATTACH_RETRY_S
            )  # another gateway may be between the key and the append

    async def follow(
        self, rid: str, owner: records.Owner, starting_after: int = -1
    ) -> response_stream.ResponseStream:
        """Follow a response that exists; raises like `Delivery.watch`."""
        found = await self._delivery.find(rid, owner)
        subscription = await self._delivery.watch(rid, owner, starting_after)
        run = response_stream.ResponseStream(
            rid, owner, found.echo, subscription, bool(found.response["store"])
        )
        run.headers = {"x-tailrace-response-id": rid}
        self.active_streams += 1
        return run

    # ---- to the end
    # ----------------------------------------------------------------------------------

    def finished(self, run: response_stream.ResponseStream) -> None:
        """The run's terminal event was taken, or the log lost it."""
        self.active_streams -= 1
        self._end(run)

    def _end(self, run: response_stream.ResponseStream) -> None:
        run.subscription.close()
        if run.counted:
            self.running.end(run.rid)
            telemetry.RUNNING_RESPONSES.set(len(self.running))
        remembered = run.remembered
        if remembered is not None and run.store:
            self._spawn(
                self._cache.put_turn(run.rid, context.encode(run.owner, remembered.messages))
            )

    def continue_in_background(self, run: response_stream.ResponseStream) -> None:
        """The connection that asked is gone: a keeper goes on. What nobody can come back for is
        cancelled after a grace."""
        self.active_streams -= 1
        self._spawn(self._keep(run, cancel=not run.store))

    def keep(self, run: response_stream.ResponseStream) -> None:
        """Nobody waits for this one on a connection (background)."""
        self.active_streams -= 1
        self._spawn(self._keep(run, cancel=False))

    async def _keep(self, run: response_stream.ResponseStream, *, cancel: bool) -> None:
        try:
            async with asyncio.timeout(KEEP_S):
                if cancel:
                    await self._cancel_after_grace(run)
                while await run.next_events():
                    pass
        except (outbox.Slow, log.HistoryLost, log.LogUnavailable, delivery.NotFound, TimeoutError):
            pass  # the log has it, or nobody has: either way there is nothing left to do here
        finally:
            self._end(run)

    async def _cancel_after_grace(self, run: response_stream.ResponseStream) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.cancel_grace_s):
                while await run.next_events():
                    pass
                return
        if (
            self._delivery.watchers(run.rid) <= 1
        ):  # the keeper itself; someone else means that the client came back
            await self._operations.append_cancel(run.rid, run.owner, run.echo)


async def _all(allowed: Awaitable[Any], permitted: Awaitable[None] | None) -> None:
    """Whether the caller may ask at all goes first."""
    if permitted is not None:
        await permitted
    await allowed


def consume_exception(task: asyncio.Future[Any]) -> None:
    """For a task whose failure may come when something else has failed already."""
    if not task.cancelled():
        task.exception()


def _digest(key: str | None) -> str | None:
    """The log keeps a client's key only as a digest: it may be anything, also something private."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key is not None else None


def preferred_partitions(layout: log.Layout) -> list[int]:
    """Drawn once per process."""
    return placement.preferred_partitions(layout.partitions, int.from_bytes(os.urandom(2), "big"))
