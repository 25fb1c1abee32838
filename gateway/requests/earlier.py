"""Earlier requests with the same idempotency key, as a submission looks for them."""

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


class Earlier:
    """Finds them."""

    def __init__(
        self, keys: idempotency.Idempotency, builder: request_builder.RequestBuilder
    ) -> None:
        self._keys = keys
        self._builder = builder

    async def of(
        self, create: command.Create, principal: Principal, but: command.Create | None = None
    ) -> response_stream.ResponseStream | None:
        """The stream of a request with the same key, where the turn that is to be followed may be
        just that one. It may be in the topic of each pool that may be chosen, `but` for this one's.

        Raises:
            errors.ApiError: 503, the log does not answer.
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
                key = self.key(asked, principal)
                if key is not None and (found := await self._keys.find(key)) is not None:
                    return found
        except log.LogUnavailable as error:
            raise errors.unavailable("The log cannot be read right now.") from error
        return None

    async def before_building(
        self, decided: stages.Decided
    ) -> response_stream.ResponseStream | None:
        """Like `of`, where what would be built depends on more than the key stands for."""
        asked = decided.placed.asked
        if asked.create.pending is not None and asked.create.conversation is not None:
            # A former try found a shorter conversation, without its own turn.
            found = await self.of(asked.create, asked.principal, but=decided.create)
            if found is not None:
                return found
        if decided.create.search is not None:
            # What its files hold now is no part of what a key stands for.
            return await self.of(decided.create, asked.principal)
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
