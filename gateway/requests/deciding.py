"""The place of a request in its conversation, and its model."""

from __future__ import annotations

import asyncio
import dataclasses

from gateway.parsing import command
from gateway.requests import request_builder, stages, turns
from gateway.requests.admitting import Admitting
from gateway.responses import context
from tailrace.auth.principal import Principal


class Deciding:
    """Places requests in conversations and chooses their model."""

    def __init__(
        self,
        admitting: Admitting,
        builder: request_builder.RequestBuilder,
        places: turns.Turns,
    ) -> None:
        self._admitting = admitting
        self._builder = builder
        self._turns = places

    async def place(self, arrival: stages.Arrival) -> stages.Placement:
        """The place of the request in its conversation. Raises like `turns.Turns.after`."""
        create = arrival.create
        if create.conversation is None:
            return stages.Placement(arrival)
        if create.fork is not None:
            sibling = await self._turns.sibling(create.conversation, create.fork.rid, arrival.owner)
            return stages.Placement(arrival, sibling)
        place, before = await self._turns.after(create.conversation, arrival.owner, create.parent)
        return stages.Placement(arrival, place if create.generate else None, before)

    async def decide(self, placement: stages.Placement) -> stages.Decision:
        """The request for one model.

        Raises:
            errors.ApiError: no rule fits, or the model's pool refuses the request. Others like
                `RequestBuilder.before`.
        """
        arrival, pending = placement.arrival, placement.arrival.create.pending
        if pending is None:
            return stages.Decision(placement, arrival.create)
        before = placement.before or await self._builder.before(
            arrival.create, arrival.principal, arrival.memory
        )
        create = await self._decide_model(arrival.create, pending, before, arrival.principal)
        return stages.Decision(dataclasses.replace(placement, before=before), create)

    async def _decide_model(
        self,
        create: command.Create,
        pending: command.Pending,
        before: context.History,
        principal: Principal,
    ) -> command.Create:
        """The request for the model that the rules of `auto` choose for this dialogue."""
        messages = context.last_turns(before.messages)
        # Another model parses the body again, which is slow for a large body.
        concrete = await asyncio.to_thread(pending.decide, messages)
        concrete = dataclasses.replace(
            concrete, idempotency_key=create.idempotency_key, body_digest=create.body_digest
        )
        self._admitting.admit(concrete, principal)
        return self._admitting.shorten(concrete, principal)
