"""Finds earlier requests with the same idempotency key."""

from __future__ import annotations

import asyncio
import dataclasses

from gateway.parsing import command
from gateway.requests import idempotency, request_builder, stages
from gateway.responses import response_stream
from tailrace import log
from tailrace.auth.principal import Principal
from tailrace.protocol import errors
from tailrace.web import access


class EarlierRequests:
    """Finds an earlier request with the same idempotency key, in every topic that may hold it."""

    def __init__(
        self, keys: idempotency.Idempotency, builder: request_builder.RequestBuilder
    ) -> None:
        self._keys = keys
        self._builder = builder

    async def find(
        self, create: command.Create, principal: Principal, excluding: command.Create | None = None
    ) -> response_stream.ResponseStream | None:
        """The stream of a request with the same key, if there is one.

        It may be in the topic of each pool that may be chosen; `excluding` leaves out the topic of
        that request. A turn that seems busy may be this very request.

        Raises:
            errors.ApiError: 503, the log does not answer.
        """
        if create.idempotency_key is None:
            return None
        pending, among = create.pending, [create]
        if pending is not None:
            among = await asyncio.to_thread(pending.candidates)
        places = dict.fromkeys((each.pool, each.priority) for each in among)
        if excluding is not None:
            places.pop((excluding.pool, excluding.priority), None)
        try:
            for pool, priority in places:
                candidate = dataclasses.replace(create, pool=pool, priority=priority)
                key = self.key(candidate, principal)
                if key is not None and (stream := await self._keys.find(key)) is not None:
                    return stream
        except log.LogUnavailable as error:
            raise errors.unavailable("The log cannot be read right now.") from error
        return None

    async def before_building(
        self, decision: stages.Decision
    ) -> response_stream.ResponseStream | None:
        """Like `find`, for requests whose record depends on more than the key covers."""
        arrival = decision.placement.arrival
        if arrival.create.pending is not None and arrival.create.conversation is not None:
            # An earlier attempt saw a shorter conversation, without its own turn.
            stream = await self.find(arrival.create, arrival.principal, excluding=decision.create)
            if stream is not None:
                return stream
        if decision.create.search is not None:
            # The key does not cover the present content of the files.
            return await self.find(decision.create, arrival.principal)
        return None

    def key(self, create: command.Create, principal: Principal) -> idempotency.Key | None:
        """The key of a request; None without one."""
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
