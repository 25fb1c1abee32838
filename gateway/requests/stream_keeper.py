"""Follows responses from their start to their end, with or without a connection.

A connection may leave before its response ends. The keeper then follows the response to its end, so
that the dialogue is cached and the response stops counting as running.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from gateway.cache import Cache
from gateway.load import admission, rate_limits
from gateway.responses import context, response_operations, response_stream
from tailrace import log, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery, outbox
from tailrace.protocol import records
from tailrace.web import admitted

# A response that no worker claims is not followed longer than this; the log still has it.
FOLLOW_S: Final = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class _EphemeralResponse:
    """A running response that is not stored, so only its connection can read it. `revoke` cancels
    it, with or without that connection."""

    principal: Principal
    revoke: Callable[[], None]


class StreamKeeper:
    """Opens response streams, and follows those that a connection has released.

    Attributes:
        running: unfinished responses that were submitted here.
        active_streams: number of streams that a connection of this process follows.
        on_end: called with each stream of a response submitted here, when it is no longer followed.
        on_first_token: called with each such stream at its first token, and with the seconds since
            the request.
        _ephemeral: running responses submitted here that are not stored, by id.
        _background: number of streams without a connection, by response id.
    """

    def __init__(
        self,
        deliver: delivery.Delivery,
        operations: response_operations.ResponseOperations,
        cache: Cache,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        cancel_grace_s: float,
        admitted: admitted.Admitted,
        settle: Callable[[str, float, float], None],
    ) -> None:
        """`settle` is called for each response with its principal, its charge and its usage, in
        tokens."""
        self._delivery = deliver
        self._operations = operations
        self._cache = cache
        self._spawn = spawn
        self._cancel_grace_s = cancel_grace_s
        self._settle = settle
        self._admitted = admitted
        self._ephemeral: dict[str, _EphemeralResponse] = {}
        self.running = admission.Running()
        self.active_streams = 0
        self.on_end: Callable[[response_stream.ResponseStream], None] = lambda _stream: None
        self.on_first_token: response_stream.OnFirstToken = lambda _stream, _seconds: None
        self._background: Counter[str] = Counter()

    def open(
        self,
        request: records.Request,
        subscription: delivery.Subscription,
        *,
        principal: Principal,
        partition: int,
        pool: str,
        awaited_since: float,
        charge: rate_limits.Charge,
    ) -> response_stream.ResponseStream:
        """The stream of a response that was submitted here."""
        self.running.add(request.rid, principal.key, partition)
        telemetry.RUNNING_RESPONSES.set(len(self.running))
        self.active_streams += 1
        stream = response_stream.ResponseStream(
            request.rid,
            request.owner,
            request.echo,
            subscription,
            request.store,
            self._on_release,
            request=subscription.request,
            previous=request.previous,
            submitted_here=True,
            charge=charge,
            headers={**charge.headers, "x-tailrace-response-id": request.rid},
            pool=pool,
            awaited_since=awaited_since,
            on_first_token=self.on_first_token,
        )
        if not stream.store:
            self._ephemeral[stream.rid] = _EphemeralResponse(
                principal, lambda: self._spawn(self._cancel(stream))
            )
            self._admitted.add(self._ephemeral[stream.rid])
        return stream

    async def follow(
        self,
        rid: str,
        owner: records.Owner,
        starting_after: int = -1,
        *,
        embeddings: bool = False,
    ) -> response_stream.ResponseStream:
        """The stream of a response that was submitted before. Raises like `Delivery.watch`."""
        subscription = await self._delivery.watch(rid, owner, starting_after, embeddings=embeddings)
        self.active_streams += 1
        return response_stream.ResponseStream(
            rid,
            owner,
            subscription.echo,
            subscription,
            bool(subscription.echo["store"]),
            self._on_release,
            headers={"x-tailrace-response-id": rid},
        )

    def _on_release(self, stream: response_stream.ResponseStream) -> None:
        self.active_streams -= 1
        # Only a response that was submitted here needs work at its end. A client may follow one
        # response many times, and must not leave a task each time.
        if stream.over or (stream.store and not stream.submitted_here):
            self._end(stream)
        else:
            self._spawn(self._follow_to_end(stream))

    async def _follow_to_end(self, stream: response_stream.ResponseStream) -> None:
        self._background[stream.rid] += 1
        try:
            async with asyncio.timeout(FOLLOW_S):
                if not stream.store:
                    await self._cancel_after_grace(stream)
                if stream.submitted_here:
                    await stream.to_end()
        except (outbox.Slow, log.HistoryLost, log.LogUnavailable, delivery.NotFound, TimeoutError):
            pass  # this process cannot follow it; the log stays authoritative
        finally:
            self._background[stream.rid] -= 1
            self._background += Counter()  # drops zeros
            self._end(stream)

    async def _cancel_after_grace(self, stream: response_stream.ResponseStream) -> None:
        """Cancel a response that is not stored, unless its client reconnects."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._cancel_grace_s):
                await stream.to_end()
                return
        # Any other watcher is the reconnected client.
        if self._delivery.watchers(stream.rid) <= self._background[stream.rid]:
            await self._cancel(stream)

    async def _cancel(self, stream: response_stream.ResponseStream) -> None:
        await self._operations.append_cancel(stream.rid, stream.owner, stream.echo)

    def _end(self, stream: response_stream.ResponseStream) -> None:
        if stream.submitted_here:
            self.on_end(stream)
        stream.subscription.close()
        if stream.submitted_here:
            if (response := self._ephemeral.pop(stream.rid, None)) is not None:
                self._admitted.discard(response)
            self.running.end(stream.rid)
            telemetry.RUNNING_RESPONSES.set(len(self.running))
        if stream.charge is not None and stream.final is not None:
            charge = stream.charge
            self._settle(charge.principal, charge.tokens, _usage_tokens(stream.final))
        if stream.store and (messages := stream.dialogue) is not None:
            owner = stream.owner
            self._spawn(
                self._cache.put_turn(owner.key, stream.rid, context.encode(owner, messages))
            )


def _usage_tokens(response: dict[str, Any]) -> float:
    """Tokens that an ended Response used; none if it never started."""
    usage = response.get("usage") or {}
    return float(usage.get("input_tokens", 0) + usage.get("output_tokens", 0))
