"""How aiokafka's clients are ended and watched: by private parts, or by public API only.

Public API only is slower where something fails: a discarded producer flushes first, so the writer
waits for it; a sender task that died is noticed by the append deadline; a client that does not stop
in time closes its connections later; what was fetched and not read stays until the garbage
collector comes.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any, Final, Protocol

import aiokafka

from tailrace import private_parts, telemetry
from tailrace.log import aiokafka_internals
from tailrace.log.deadlines import finishes_within

FLUSH_S: Final = 15.0


# Gets the partitions of a produce request. Returns whether the request may go.
MaySend = Callable[[Set[tuple[str, int]]], bool]


class ClientApi(Protocol):
    """Ends and watches clients."""

    @property
    def waits_for_former_producer(self) -> bool:
        """Whether a new producer may send only after the former one was discarded."""

    def guard_sending(self, producer: aiokafka.AIOKafkaProducer, may_send: MaySend) -> bool:
        """Ask `may_send` before each produce request of a started producer goes to a broker.

        Returns False when that cannot be done; then a record counts as sent once the producer has
        it.
        """

    def drop_prefetched(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        """Free what was fetched and not read. To be called before the assignment changes."""

    async def stop_consumer(self, consumer: aiokafka.AIOKafkaConsumer, deadline_s: float) -> None:
        """Stop a consumer; returns at the deadline."""

    async def discard_producer(self, producer: aiokafka.AIOKafkaProducer) -> None:
        """Discard a producer whose records in flight were reported as failed."""

    def sender_ended(self, producer: aiokafka.AIOKafkaProducer) -> bool:
        """Whether a started producer sends no more although it does not say so."""


class PublicApi:
    """`ClientApi` on public API only."""

    waits_for_former_producer: Final = True

    def guard_sending(self, producer: aiokafka.AIOKafkaProducer, may_send: MaySend) -> bool:
        """False: the public API does not show what was sent."""
        return False

    def drop_prefetched(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        """Nothing: it waits for the garbage collector, up to a fetch for each change."""

    async def stop_consumer(self, consumer: aiokafka.AIOKafkaConsumer, deadline_s: float) -> None:
        """Stop a consumer; its connections may close after the deadline."""

        async def close() -> None:
            await aiokafka_internals.close_connections(consumer)

        await finishes_within(_stop(consumer, close), deadline_s, cancel=False)

    async def discard_producer(self, producer: aiokafka.AIOKafkaProducer) -> None:
        """Flush and stop. A record that was reported as failed may still be appended by this: its
        owner does not append under the same fencing token again (log rule W4)."""
        await finishes_within(_stop(producer, producer.client.close), FLUSH_S, cancel=False)

    def sender_ended(self, producer: aiokafka.AIOKafkaProducer) -> bool:
        """False: the public API does not show it."""
        return False


async def _stop(client: Any, close: Callable[[], Awaitable[None]]) -> None:
    """Stop a client. `close` closes what it leaves open where it ends early: while its broker is
    away, `stop` of aiokafka 0.14 can raise the CancelledError of a task that it cancelled itself.
    Nobody cancels this task, but the end of the event loop."""
    try:
        await client.stop()
    except (Exception, asyncio.CancelledError):
        await close()


_public_only = False
_current: ClientApi | None = None


def choose(version: str, differences: Sequence[str], *, public_api: bool) -> ClientApi:
    """Private parts, unless the operator asked for public API only or a part has changed. The
    choice of public API is logged in one line that names the reason."""
    if public_api:
        because = "TAILRACE_KAFKA_PUBLIC_API is set"
    elif differences:
        because = (
            f"aiokafka {version} is not as {aiokafka_internals.EXPECTED_VERSION}: "
            "its public API is used, which is slower"
        )
    else:
        return aiokafka_internals.InternalApi()
    telemetry.log(telemetry.Action.KAFKA_FALLBACK, because=because, changed=list(differences))
    return PublicApi()


def use_public_api(only: bool) -> None:
    """Say once, at the start of the process, what `default` is to choose from."""
    global _public_only, _current
    _public_only, _current = only, None


def default() -> ClientApi:
    """The process's choice; made at the first use."""
    global _current
    if _current is None:
        differences = private_parts.changes(aiokafka_internals.PARTS)
        version = importlib.metadata.version("aiokafka")
        _current = choose(version, differences, public_api=_public_only)
    return _current
