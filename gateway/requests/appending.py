"""Appends a request to the log, once for each key, at its place in the conversation."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Final

import msgspec

from gateway.requests import idempotency, request_writer, stages, turns
from gateway.requests.earlier import EarlierRequests
from gateway.requests.withdrawals import Withdrawals
from gateway.responses import response_stream
from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import errors, records, topics

# Append deadline of a turn's request while the broker's time is unknown. It allows for a wrong
# clock.
TURN_WITHIN_MS: Final = 30_000


class Appending:
    """Appends requests."""

    def __init__(
        self,
        writer: request_writer.RequestWriter,
        keys: idempotency.Idempotency,
        earlier: EarlierRequests,
        places: turns.Turns,
        withdrawals: Withdrawals,
    ) -> None:
        self._writer = writer
        self._keys = keys
        self._earlier = earlier
        self._turns = places
        self._withdrawals = withdrawals

    async def append(
        self, destination: stages.Destination, deadline: asyncio.Timeout
    ) -> stages.LogEntry | response_stream.ResponseStream:
        """The request in the log, or the stream of an earlier request with the same key. The append
        has a deadline of its own, so it disables `deadline`.

        Raises:
            errors.ApiError: `outcome_unknown`: the request may be in the log, and is withdrawn;
                others: nothing was written.
            log.LogUnavailable, busy.Busy
        """
        request = destination.draft.request
        appended_ms = 0
        try:
            outcome = await self._append_once(destination, deadline)
        except log.NotAppended:
            raise
        except log.AppendFailed as error:
            telemetry.REQUESTS.labels(outcome="unknown").inc()
            self._withdraw(destination)
            raise errors.outcome_unknown(request.rid) from error
        finally:
            appended_ms = self._writer.append_time_ms(request.rid)
        if isinstance(outcome, response_stream.ResponseStream):
            return outcome
        return stages.LogEntry(destination, outcome, appended_ms)

    def _withdraw(self, destination: stages.Destination) -> None:
        key, request = self._key(destination), destination.draft.request
        is_first = None
        if key is not None and request.store:
            # The next attempt finds it by its key. So it may run, and is charged once.
            attempt = idempotency.KeyedRequest(request, key)
            is_first = functools.partial(self._keys.is_first, attempt)
        self._withdrawals.begin(request, unless=is_first)

    async def _append_once(
        self, destination: stages.Destination, deadline: asyncio.Timeout
    ) -> delivery.Subscription | response_stream.ResponseStream:
        draft = destination.draft
        request, place = draft.request, draft.decision.placement.turn
        topic = topics.requests(destination.home, draft.decision.create.priority)
        own_place: turns.Place | None = None

        async def append() -> tuple[delivery.Subscription, int]:
            nonlocal own_place
            # A cancelled append does not report whether the record is in the log.
            deadline.reschedule(None)
            if place is None:
                return await self._writer.append(request, topic, draft.partition)
            entry = await self._append_turn(place, request, topic, draft.partition)
            own_place = place
            return entry

        key = self._key(destination)
        if key is None:
            subscription, _ = await append()
            return subscription
        try:
            outcome = await self._keys.append_once(idempotency.KeyedRequest(request, key), append)
        except errors.ApiError:
            if own_place is not None:
                await self._release_turn(own_place, request.rid)
            raise
        if own_place is None or isinstance(outcome, delivery.Subscription):
            return outcome
        try:
            await self._release_turn(own_place, request.rid, outcome.rid)
        except BaseException:
            outcome.release()
            raise
        return outcome

    def _key(self, destination: stages.Destination) -> idempotency.Key | None:
        decision = destination.draft.decision
        return self._earlier.key(decision.create, decision.placement.arrival.principal)

    async def _release_turn(self, place: turns.Place, rid: str, first: str | None = None) -> None:
        """Release the place of a turn. Otherwise a branch that is withdrawn because `first` has its
        key stays the head."""
        with contextlib.suppress(log.LogUnavailable):
            await self._turns.release(place, rid, first)

    async def _append_turn(
        self, place: turns.Place, request: records.Request, topic: str, partition: int
    ) -> tuple[delivery.Subscription, int]:
        """Acquire the place of a turn, then append its request."""
        until = self._writer.append_by() or int(time.time() * 1000) + TURN_WITHIN_MS
        request = msgspec.structs.replace(request, append_by=until)
        acquired = False

        async def acquire() -> None:
            nonlocal acquired
            await self._turns.acquire(place, request.rid, until)
            acquired = True

        try:
            return await self._writer.append(request, topic, partition, acquire)
        except log.NotAppended:
            if acquired:  # otherwise the next turn waits until `until`
                await self._release_turn(place, request.rid)
            raise
