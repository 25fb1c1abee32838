"""The way of a request into the log.

A client gets no answer before the broker has acknowledged the request record. From then on the
response belongs to the log, and the `StreamKeeper` follows it to its end.

An error says what became of the request: `outcome_unknown` that it may be in the log, and is being
withdrawn; every other one that nothing was written or will be.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from gateway.files import files
from gateway.load import (
    admission,
    breakers,
    canaries,
    hedging,
    pool_choice,
    principal_counts,
    rate_limits,
    worker_registry,
)
from gateway.parsing import command, conversation
from gateway.requests import (
    busy_turns,
    idempotency,
    request_builder,
    request_writer,
    rerouting,
    search_port,
    stream_keeper,
    token_counts,
    turns,
    withdrawals,
)
from gateway.responses import busy, context, response_stream
from gateway.responses.remembered import Remembered
from tailrace import log, settings, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery
from tailrace.protocol import errors, records, topics
from tailrace.settings.shapes import Limits
from tailrace.web import access

# For everything before the append, which has its own deadline, as a search in files has.
PREPARE_DEADLINE_S: Final = 10.0
# For a turn's request, where the broker's time is not known yet: with room for a wrong clock.
TURN_WITHIN_MS: Final = 30_000
_INGRESS_SECONDS = telemetry.STAGE_SECONDS.labels(stage="ingress")


class Submission:
    """Takes requests into the log.

    Attributes:
        streams: streams of the responses submitted here and of those followed here.
        rerouting: watches the responses submitted here.
        hedges: watches for their first tokens.
        leaving: this process is on its way out. It is not ready, but takes requests until load
            balancers have noticed.
        refusing: no new requests are taken any more.
    """

    def __init__(
        self,
        pools: settings.CurrentPools,
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
        taken: turns.Turns,
        waits: busy_turns.BusyTurns,
        tokens: token_counts.TokenCounts,
        broken: breakers.Breakers,
        weighed: canaries.Canaries,
        late: hedging.Hedges,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
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
        self._turns = taken
        self._busy = waits
        self._tokens = tokens
        self.streams = streams
        self._routes = pool_choice.Routes(pools, broken, workers, builder.wait_s)
        self.rerouting = rerouting.Rerouting(pools, broken, self._routes, writer, weighed, late)
        self.hedges = late
        streams.on_end = self.rerouting.ended
        streams.on_first_token = self.rerouting.began
        self._spawn = spawn
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
        recall: Callable[[str], Remembered | None] = lambda _rid: None,
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

    async def count(self, create: command.Create, principal: Principal) -> int | None:
        """How many tokens the prompt of a request is; None where a worker has to say.

        Raises:
            errors.ApiError: as of `submit`, and 400 where it is too long.
        """
        if create.pending is None and not self._tokens.able(create.pool):
            return None
        self._admit(create, principal)
        charge = await self._rates.charge(create, principal.key)
        try:
            async with asyncio.timeout(PREPARE_DEADLINE_S):
                _, before = await self._place(create, principal)
                if create.pending is not None:
                    before = before or await self._builder.before(create, principal)
                    create = await self._decided(create, create.pending, before, principal)
                    if not self._tokens.able(create.pool):
                        return None
                request, partition = await self._builder.build(create, principal, before=before)
                self._builder.dropped(partition, create, principal)
                return await self._tokens.count(create, request)
        except busy.Busy:
            return None  # as long as it runs, nobody knows what it will say
        except (log.LogUnavailable, TimeoutError) as error:
            raise errors.unavailable("The log cannot be read right now.") from error
        finally:
            self._rates.settle(charge.principal, charge.tokens, 0.0)

    async def _submit(
        self,
        create: command.Create,
        principal: Principal,
        recall: Callable[[str], Remembered | None],
    ) -> response_stream.ResponseStream:
        give_up = time.monotonic() + busy_turns.WAIT_S
        async with self._busy.line(create):
            while True:
                try:
                    return await self._submit_once(create, principal, recall)
                except busy.Busy as error:
                    earlier = await self._earlier(create, principal)
                    if earlier is not None:
                        return earlier
                    await self._wait(create, principal, error, give_up)

    async def _wait(
        self, create: command.Create, principal: Principal, found: busy.Busy, give_up: float
    ) -> None:
        """Return when the turn that is to be followed has ended. Raises ApiError."""
        owner = access.owner_of(principal)
        try:
            async with asyncio.timeout(give_up - time.monotonic()):
                await self._busy.over(found, create.if_busy, owner)
        except TimeoutError:
            raise found.error from None
        except log.HistoryLost:
            return  # nothing runs
        except log.LogUnavailable as error:
            raise errors.unavailable("The log cannot be read right now.") from error

    async def _submit_once(
        self,
        create: command.Create,
        principal: Principal,
        recall: Callable[[str], Remembered | None],
    ) -> response_stream.ResponseStream:
        """Raises busy.Busy: it is to follow a turn that runs still. Nothing was written."""
        started = time.monotonic()
        self._admit(create, principal)
        if create.pending is None:
            create = self._shortened(create, principal)
        looks_up = (
            create.previous is not None
            or create.fork is not None
            or create.conversation is not None
            or create.search is not None
            or bool(conversation.unresolved(create.turn))
        )
        remembered = recall(create.previous) if create.previous is not None else None
        # Rates and the look-ups of the builder reach Redis in one round trip.
        charged = asyncio.ensure_future(self._rates.charge(create, principal.key))
        charged.add_done_callback(consume_exception)
        charge: rate_limits.Charge | None = None
        appended: delivery.Subscription | response_stream.ResponseStream | None = None
        rid, placed = "", -1
        asked_ms = 0
        try:
            async with asyncio.timeout(PREPARE_DEADLINE_S) as preparing:
                if looks_up:
                    # The builder may look into the log. A refused principal must not cause that.
                    await charged
                place, before = await self._place(create, principal)
                if create.pending is not None:
                    before = before or await self._builder.before(create, principal, remembered)
                    asked, pending = create, create.pending
                    create = await self._decided(asked, pending, before, principal)
                    if asked.conversation is not None:
                        # A former try found a shorter conversation, without its own turn.
                        earlier = await self._earlier(asked, principal, but=create)
                        if earlier is not None:
                            charge, appended = await charged, earlier
                            return earlier
                if create.search is not None:
                    # What its files hold now is no part of what a key stands for.
                    earlier = await self._earlier(create, principal)
                    if earlier is not None:
                        charge, appended = await charged, earlier
                        return earlier
                    now = asyncio.get_running_loop().time()
                    preparing.reschedule(now + search_port.DEADLINE_S + PREPARE_DEADLINE_S)
                request, partition = await self._builder.build(
                    create, principal, remembered, before
                )
                placed = partition
                charge = await charged
                if looks_up:
                    await self._rates.charge_tokens(charge, admission.cost_of(request))
                await self._tokens.check(create, request)
                request = await self._files.apart(request)
                self._permit(principal)  # what came before may have taken seconds
                rid, pool = request.rid, await self._choose(create, request, principal)
                # One topic decides which request of a key is the first.
                home = pool if create.idempotency_key is None else create.pool
                appended = await self._append(
                    create, principal, request, partition, place, preparing, home
                )
        except (log.LogUnavailable, TimeoutError) as error:
            telemetry.REQUESTS.labels(outcome="unavailable").inc()
            raise errors.unavailable("The log cannot be written right now.") from error
        finally:
            charged.cancel()
            asked_ms = self._writer.taken_at(rid)
            if placed >= 0 and not isinstance(appended, delivery.Subscription):
                self._builder.dropped(placed, create, principal)
            if charge is not None and not isinstance(appended, delivery.Subscription):
                # Nothing was written, or an earlier request with the same key was charged.
                self._rates.settle(charge.principal, charge.tokens, 0.0)
        if isinstance(appended, response_stream.ResponseStream):
            return appended
        if pool != create.pool:
            self._builder.dropped(partition, create, principal)
            self._builder.placed(pool, partition, create, principal)
        seconds = time.monotonic() - started
        telemetry.REQUESTS.labels(outcome="accepted").inc()
        if create.shortened_from:
            telemetry.ANSWERS_SHORTENED.labels(pool=create.pool).inc()
        telemetry.SUBMIT_SECONDS.observe(seconds)
        _INGRESS_SECONDS.observe(seconds)
        telemetry.log(
            telemetry.Action.RESPONSE_ACCEPTED,
            response=request.rid,
            pool=pool,
            priority=create.priority,
            partition=partition,
        )
        self._watch(create, request, appended, partition, home, pool, asked_ms)
        return self.streams.open(
            request,
            appended,
            principal=principal,
            partition=partition,
            pool=pool,
            awaited_since=started,
            charge=charge,
        )

    def _watch(
        self,
        create: command.Create,
        request: records.Request,
        subscription: delivery.Subscription,
        partition: int,
        home: str,
        pool: str,
        asked_ms: int,
    ) -> None:
        """Watch a response whose request is in the topic of `home`; `pool` is to answer it."""
        others = [name for name in self._routes.others(create, request) if name != home]
        watched = rerouting.Watched(
            subscription,
            at=home,
            others=others,
            asked=create.pool,
            # Older readers would show the text of another model in the item of the one before.
            continuers=list(others) if self._builder.records_version > records.VERSION else [],
            priority=create.priority,
            partition=partition,
            asked_ms=asked_ms,
            patience_s=create.deadline_ms / 1000 / 2,
        )
        self.rerouting.add(request.rid, watched)
        self.hedges.add(request, subscription, home, create.priority, partition)
        written = records.decode_request(subscription.request)
        if pool != home and written is not None:
            self._spawn(self.rerouting.send(written, watched, pool))
        elif pool != create.pool:
            rerouting.moved(request.rid, create.pool, pool)

    async def _place(
        self, create: command.Create, principal: Principal
    ) -> tuple[turns.Place | None, context.History | None]:
        """The place of a turn in its conversation, and what comes before it; None and None for a
        request of no conversation. Raises like `turns.Turns.following`."""
        if create.conversation is None:
            return None, None
        owner = access.owner_of(principal)
        if create.fork is not None:
            return await self._turns.beside(create.conversation, create.fork.rid, owner), None
        place, before = await self._turns.following(create.conversation, owner, create.behind)
        return (place if create.generate else None), before

    async def _decided(
        self,
        create: command.Create,
        pending: command.Pending,
        before: context.History,
        principal: Principal,
    ) -> command.Create:
        """The request for the model that the rules of `auto` choose behind this dialogue. Raises
        ApiError: none may be chosen, or its pool refuses the request."""
        messages = context.last_turns(before.messages)
        # Another model reads the body again, which takes long for a large one.
        decided = await asyncio.to_thread(pending.decide, messages)
        decided = dataclasses.replace(
            decided, idempotency_key=create.idempotency_key, body_digest=create.body_digest
        )
        self._admit(decided, principal)
        return self._shortened(decided, principal)

    def _shortened(self, create: command.Create, principal: Principal) -> command.Create:
        """The request, with a shorter answer where its pool is busy."""
        if not self._builder.continues(create.pool):
            return create
        return self._routes.shortened(create, principal.key)

    def _admit(self, create: command.Create, principal: Principal) -> None:
        """Raises ApiError, if it is refused."""
        if create.pending is not None:
            # Asked again once the pool is chosen: of what this one may be, nothing is refused yet.
            create = dataclasses.replace(create, priority="interactive", generate=False)
        refused = admission.check(
            create,
            principal.key,
            self.streams.running,
            self._limits,
            refusing=self.refusing,
            writable=self._writer.ready,
            wait_s=self._routes.wait_s(create, principal.key),
            elsewhere=self._counts.elsewhere(principal.key),
            drawn=self._routes.draw(),
        )
        if refused is not None:
            telemetry.REQUESTS.labels(outcome="refused").inc()
            raise refused

    async def _choose(
        self, create: command.Create, request: records.Request, principal: Principal
    ) -> str:
        """The pool that a request goes to. Raises ApiError, unless a former answer needs no place
        in any."""
        try:
            return self._routes.choose(create, request, principal.key)
        except errors.ApiError as refused:
            if refused.status == 429 and await self._answered(create, request):
                return create.pool
            telemetry.REQUESTS.labels(outcome="refused").inc()
            raise

    async def _answered(self, create: command.Create, request: records.Request) -> bool:
        """Whether the pool's workers have a former answer, which needs no place in an engine."""
        return self._routes.gives_again(create) and await self._builder.answered(create, request)

    async def _append(
        self,
        create: command.Create,
        principal: Principal,
        request: records.Request,
        partition: int,
        place: turns.Place | None,
        preparing: asyncio.Timeout,
        home: str,
    ) -> delivery.Subscription | response_stream.ResponseStream:
        """A subscription to the new response; or the stream of an earlier one with the same key."""
        try:
            return await self._append_once(
                create, principal, request, partition, place, preparing, home
            )
        except log.NotAppended:
            raise
        except log.AppendFailed as error:
            telemetry.REQUESTS.labels(outcome="unknown").inc()
            key = self._key(create, principal)
            stands = None
            if key is not None and request.store:
                # The next try finds it by its key, so it may run, and is paid once.
                asked = idempotency.KeyedRequest(request, key)
                stands = functools.partial(self._keys.stands, asked)
            self._withdrawals.begin(request, unless=stands)
            raise errors.outcome_unknown(request.rid) from error

    async def _append_once(
        self,
        create: command.Create,
        principal: Principal,
        request: records.Request,
        partition: int,
        place: turns.Place | None,
        preparing: asyncio.Timeout,
        home: str,
    ) -> delivery.Subscription | response_stream.ResponseStream:
        topic = topics.requests(home, create.priority)
        taken: turns.Place | None = None

        async def append() -> tuple[delivery.Subscription, int]:
            nonlocal taken
            # A cancelled append would not say what became of the record.
            preparing.reschedule(None)
            if place is None:
                return await self._writer.append(request, topic, partition)
            appended = await self._append_turn(place, request, topic, partition)
            taken = place
            return appended

        key = self._key(create, principal)
        if key is None:
            subscription, _ = await append()
            return subscription
        try:
            found = await self._keys.append_once(idempotency.KeyedRequest(request, key), append)
        except errors.ApiError:
            if taken is not None:
                await self._stand_down(taken, request.rid)
            raise
        if taken is None or isinstance(found, delivery.Subscription):
            return found
        try:
            await self._stand_down(taken, request.rid, found.rid)
        except BaseException:
            found.release()
            raise
        return found

    async def _stand_down(self, place: turns.Place, rid: str, first: str | None = None) -> None:
        """Give the place of a turn back. Without this a branch that is withdrawn, because `first`
        has its key, would stay the head."""
        with contextlib.suppress(log.LogUnavailable):
            await self._turns.give_back(place, rid, first)

    async def _append_turn(
        self, place: turns.Place, request: records.Request, topic: str, partition: int
    ) -> tuple[delivery.Subscription, int]:
        """Take the place of a turn, then append its request."""
        until = self._writer.append_by() or int(time.time() * 1000) + TURN_WITHIN_MS
        request = msgspec.structs.replace(request, append_by=until)
        taken = False

        async def take() -> None:
            nonlocal taken
            await self._turns.take(place, request.rid, until)
            taken = True

        try:
            return await self._writer.append(request, topic, partition, take)
        except log.NotAppended:
            if taken:  # else the next turn would wait until the time is over
                await self._stand_down(place, request.rid)
            raise

    async def _earlier(
        self, create: command.Create, principal: Principal, but: command.Create | None = None
    ) -> response_stream.ResponseStream | None:
        """The stream of a request with the same key, where the turn that is to be followed may be
        just that one. It may be in the topic of each pool that may be chosen, `but` for this one's.
        """
        if create.idempotency_key is None:
            return None
        pending, among = create.pending, [create]
        if pending is not None:
            among = await asyncio.to_thread(pending.candidates)
        places = dict.fromkeys((each.pool, each.priority) for each in among)
        if but is not None:
            places.pop((but.pool, but.priority), None)
        try:
            for pool, priority in places:
                asked = dataclasses.replace(create, pool=pool, priority=priority)
                key = self._key(asked, principal)
                if key is not None and (found := await self._keys.find(key)) is not None:
                    return found
        except log.LogUnavailable as error:
            raise errors.unavailable("The log cannot be read right now.") from error
        return None

    def _key(self, create: command.Create, principal: Principal) -> idempotency.Key | None:
        digest = request_builder.key_digest(create.idempotency_key)
        if create.idempotency_key is None or digest is None:
            return None
        return idempotency.Key(
            access.owner_of(principal),
            create.idempotency_key,
            digest,
            create.body_digest,
            create.pool,
            create.priority,
            self._builder.partition_of_key(principal, create.idempotency_key),
            embeddings=create.embed is not None,
        )


def consume_exception(task: asyncio.Future[Any]) -> None:
    """Mark the task's exception as seen: another failure may come first and be raised instead."""
    if not task.cancelled():
        task.exception()
