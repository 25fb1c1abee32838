"""The pipeline that brings a request into the log, in records (`stages`).

A client gets no answer before the broker has acknowledged the request record. From then on the
response belongs to the log, and the `StreamKeeper` follows it to its end.

The code of an error tells what happened to the request: with `outcome_unknown` it may be in the log
and is being withdrawn; with any other code nothing was or will be written.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from gateway.load import rate_limits
from gateway.parsing import command
from gateway.requests import (
    busy_turns,
    charging,
    request_writer,
    search_port,
    stages,
    stream_keeper,
)
from gateway.requests.admitting import Admitting, Intake, Recall
from gateway.requests.appending import Appending
from gateway.requests.busy_turns import BusyTurns
from gateway.requests.deciding import Deciding
from gateway.requests.earlier import EarlierRequests
from gateway.requests.following import Following
from gateway.requests.preparing import Preparing
from gateway.responses import busy, response_stream
from tailrace import log, telemetry
from tailrace.auth.principal import Principal
from tailrace.protocol import errors
from tailrace.web import access

# For all stages before the append. The append and a file search have their own deadlines.
PREPARE_DEADLINE_S: Final = 10.0


def _nothing(_rid: str) -> None:
    """The memory of a connection without one."""


class Submission:
    """Brings requests into the log.

    Attributes:
        intake: whether this process accepts requests.
        streams: streams of the responses submitted here and of those followed here.
        following: watches the responses submitted here.
    """

    def __init__(
        self,
        intake: Intake,
        admitting: Admitting,
        deciding: Deciding,
        preparing: Preparing,
        appending: Appending,
        following: Following,
        earlier: EarlierRequests,
        rates: rate_limits.RateLimiter,
        busy_turns: BusyTurns,
        writer: request_writer.RequestWriter,
        streams: stream_keeper.StreamKeeper,
    ) -> None:
        self.intake = intake
        self._admitting = admitting
        self._deciding = deciding
        self._preparing = preparing
        self._appending = appending
        self.following = following
        self._earlier = earlier
        self._rates = rates
        self._busy_turns = busy_turns
        self._writer = writer
        self.streams = streams

    @property
    def accepting(self) -> bool:
        """Whether a request could be accepted now."""
        return self._writer.ready and not self.intake.refusing

    @property
    def responsive(self) -> bool:
        """Whether the log answers queries and appends in time."""
        return self._writer.responsive

    async def submit(
        self, create: command.Create, principal: Principal, recall: Recall = _nothing
    ) -> response_stream.ResponseStream:
        """Bring a request into the log.

        Args:
            recall: the connection's memory by response id. Unlike a cache it has responses with
                `store: false`.

        Returns:
            The stream of the response. The caller must enter or release it.

        Raises:
            errors.ApiError
        """
        give_up = time.monotonic() + busy_turns.WAIT_S
        with telemetry.span("submit", pool=create.pool, priority=create.priority):
            async with self._busy_turns.line(create):
                while True:
                    try:
                        return await self._submit_once(create, principal, recall)
                    except busy.Busy as error:
                        stream = await self._earlier.find(create, principal)
                        if stream is not None:
                            return stream
                        await self._busy_turns.wait(error, create.if_busy, principal, give_up)

    async def _submit_once(
        self, create: command.Create, principal: Principal, recall: Recall
    ) -> response_stream.ResponseStream:
        """Raises busy.Busy: the turn before it is still running. Nothing was written."""
        arrival = self._admitting.receive(create, principal, recall)
        try:
            with charging.Bill(self._rates, arrival) as bill:
                async with asyncio.timeout(PREPARE_DEADLINE_S) as timeout:
                    if arrival.looks_up:
                        # The next stages may read the log. A refused principal must not cause
                        # reads.
                        await bill.check()
                    placement = await self._deciding.place(arrival)
                    decision = await self._deciding.decide(placement)
                    stream = await self._earlier.before_building(decision)
                    if stream is not None:
                        await bill.charge()
                        return stream
                    if decision.create.search is not None:
                        now = asyncio.get_running_loop().time()
                        timeout.reschedule(now + search_port.DEADLINE_S + PREPARE_DEADLINE_S)
                    draft = await self._preparing.build(decision, bill)
                    destination = await self._admitting.route(draft)
                    entry = await self._appending.append(destination, timeout)
                if isinstance(entry, response_stream.ResponseStream):
                    return entry
                bill.commit()
        except (log.LogUnavailable, TimeoutError) as error:
            telemetry.REQUESTS.labels(outcome="unavailable").inc()
            raise errors.unavailable("The log cannot be written right now.") from error
        return self.following.follow(entry)

    async def count(self, create: command.Create, principal: Principal) -> int | None:
        """The number of tokens of a request's prompt; None where a worker has to count.

        Raises:
            errors.ApiError: like `submit`; 400 if it is too long.
        """
        if create.pending is None and not self._preparing.can_count(create.pool):
            return None
        self._admitting.admit(create, principal)
        owner = access.owner_of(principal)
        arrival = stages.Arrival(create, principal, owner, None, time.monotonic())
        charge = await self._rates.charge(create, principal.key)
        try:
            async with asyncio.timeout(PREPARE_DEADLINE_S):
                placement = await self._deciding.place(arrival)
                return await self._preparing.count_tokens(await self._deciding.decide(placement))
        except busy.Busy:
            return None  # its answer is unknown while it runs
        except (log.LogUnavailable, TimeoutError) as error:
            raise errors.unavailable("The log cannot be read right now.") from error
        finally:
            self._rates.settle(charge.principal, charge.tokens, 0.0)
