"""Appended: a request in the log, once for each key, in its place of a conversation."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Final

import msgspec

from gateway.requests import earlier, idempotency, request_writer, stages, turns, withdrawals
from gateway.responses import response_stream
from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import errors, records, topics

# For a turn's request, where the broker's time is not known yet: with room for a wrong clock.
TURN_WITHIN_MS: Final = 30_000


class Appending:
    """Appends requests."""

    def __init__(
        self,
        writer: request_writer.RequestWriter,
        keys: idempotency.Idempotency,
        known: earlier.Earlier,
        places: turns.Turns,
        withdrawn: withdrawals.Withdrawals,
    ) -> None:
        self._writer = writer
        self._keys = keys
        self._earlier = known
        self._turns = places
        self._withdrawals = withdrawn

    async def appended(
        self, routed: stages.Routed, preparing: asyncio.Timeout
    ) -> stages.Appended | response_stream.ResponseStream:
        """A request that is in the log; or the stream of an earlier one with the same key.
        `preparing` ends with the append, which has a deadline of its own.

        Raises:
            errors.ApiError: `outcome_unknown`: it may be in the log, and is withdrawn; others:
                nothing was written.
            log.LogUnavailable, busy.Busy
        """
        request = routed.built.request
        asked_ms = 0
        try:
            found = await self._append_once(routed, preparing)
        except log.NotAppended:
            raise
        except log.AppendFailed as error:
            telemetry.REQUESTS.labels(outcome="unknown").inc()
            self._withdraw(routed)
            raise errors.outcome_unknown(request.rid) from error
        finally:
            asked_ms = self._writer.taken_at(request.rid)
        if isinstance(found, response_stream.ResponseStream):
            return found
        return stages.Appended(routed, found, asked_ms)

    def _withdraw(self, routed: stages.Routed) -> None:
        key, request = self._key(routed), routed.built.request
        stands = None
        if key is not None and request.store:
            # The next try finds it by its key, so it may run, and is paid once.
            asked = idempotency.KeyedRequest(request, key)
            stands = functools.partial(self._keys.stands, asked)
        self._withdrawals.begin(request, unless=stands)

    async def _append_once(
        self, routed: stages.Routed, preparing: asyncio.Timeout
    ) -> delivery.Subscription | response_stream.ResponseStream:
        built = routed.built
        request, place = built.request, built.decided.placed.turn
        topic = topics.requests(routed.home, built.decided.create.priority)
        taken: turns.Place | None = None

        async def append() -> tuple[delivery.Subscription, int]:
            nonlocal taken
            # A cancelled append would not say what became of the record.
            preparing.reschedule(None)
            if place is None:
                return await self._writer.append(request, topic, built.partition)
            appended = await self._append_turn(place, request, topic, built.partition)
            taken = place
            return appended

        key = self._key(routed)
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

    def _key(self, routed: stages.Routed) -> idempotency.Key | None:
        decided = routed.built.decided
        return self._earlier.key(decided.create, decided.placed.asked.principal)

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
