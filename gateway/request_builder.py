"""From a checked command to the request record: history, partition, id, static part."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway import (
    admission,
    cache,
    context,
    lanes,
    placement,
    worker_registry,
)
from gateway.parsing import command, conversation, images
from tailrace import telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery
from tailrace.protocol import errors, events, records
from tailrace.web import access

TTL_MS: Final = 600_000  # a request that has not been started by then never is


class RequestBuilder:
    """Builds request records.

    Attributes:
        _turn: counts placements, so that equally loaded partitions take turns.
    """

    def __init__(
        self,
        deliver: delivery.Delivery,
        cached: cache.Cache,
        running: admission.Running,
        workers: worker_registry.WorkerRegistry,
        partitions: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._delivery = deliver
        self._cache = cached
        self._running = running
        self._workers = workers
        self._partitions = partitions
        self._clock = clock
        self._resolver = context.Resolver(deliver, cached, partitions)
        self._turn = itertools.count()

    async def build(
        self,
        create: command.Create,
        principal: Principal,
        remembered: lanes.Remembered | None = None,
    ) -> tuple[records.Request, int]:
        """The request record and its partition.

        Args:
            remembered: the connection's memory of the previous response.

        Raises:
            errors.ApiError: the previous response cannot be continued, there is no input, or a
                tool's output in it answers no call.
            log.LogUnavailable
        """
        owner = access.owner_of(principal)
        history = await self._resolver.resolve(create.previous, owner, remembered)
        if create.previous is not None and not conversation.unresolved(create.turn):
            conversation.check_answered(create.turn, conversation.call_ids(history.messages))
        head = (
            [{"role": "system", "content": create.instructions}]
            if create.instructions is not None
            else []
        )
        messages = [*head, *context.last_turns(history.messages), *create.input]
        if not messages:
            raise errors.missing_required_parameter("input")
        images.check_count(messages, "input")
        prefix = placement.prefix(owner.cache_scope, create.model, messages)
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
            idempotency_key=key_digest(create.idempotency_key),
            prefix=prefix,
            body_digest=create.body_digest,
        )
        return request, partition

    async def _place(
        self,
        create: command.Create,
        principal: Principal,
        history: context.History,
        prefix: Sequence[str],
    ) -> int:
        if create.idempotency_key is not None:
            return placement.of_key(principal.key, create.idempotency_key, self._partitions)
        warm = await self._cache.warm_partition(create.pool, prefix)
        chosen = placement.choose(
            self._delivery.preferred,
            self._partitions,
            self._running.on,
            warm=warm,
            sticky=history.partition,
            turn=next(self._turn),
            served=self._workers.served(create.pool),
        )
        telemetry.PREFIX_LOOKUPS.labels(
            outcome="miss" if warm is None else "hit" if chosen == warm else "overridden"
        ).inc()
        return chosen

    def _echo(self, rid: str, create: command.Create) -> dict[str, Any]:
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
        )
        echo |= create.echo
        return {**echo, "service_tier": "flex"} if create.priority == "batch" else echo


def key_digest(key: str | None) -> str | None:
    """A client's key as the log holds it. The key itself may be private."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key is not None else None
