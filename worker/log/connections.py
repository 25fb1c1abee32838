"""The clients of the log and of Redis that one worker uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import topics
from tailrace.settings import WorkerSettings
from tailrace.store.redis_store import RedisStore
from worker.log import tail


class MakeGroupConsumer(Protocol):
    """Makes a member of a consumer group."""

    def __call__(
        self,
        group: str,
        names: Sequence[str],
        *,
        assigned: interfaces.RebalanceCallback,
        revoked: interfaces.RebalanceCallback,
    ) -> interfaces.GroupMember:
        """A member that has not joined yet."""


@dataclass(frozen=True, slots=True)
class Connections:
    """Everything a worker exchanges with other processes.

    Attributes:
        writer: the one producer of this process.
        reader: tails the token topic.
        replays: reads ranges of the token topic, independently of the tail, and files.
        offsets: answers questions about offsets.
        layout: reads which log this is.
        group_consumer: makes the member that reads requests.
        redis: heartbeats.
        redis_cache: prefix metadata, which may be evicted.
    """

    writer: interfaces.RecordWriter
    reader: interfaces.TailReader
    replays: interfaces.RangeReader
    offsets: interfaces.OffsetQueries
    layout: interfaces.LayoutQuery
    group_consumer: MakeGroupConsumer
    redis: RedisStore
    redis_cache: RedisStore


def connect(settings: WorkerSettings) -> Connections:
    """Clients of the Kafka and the Redis that the settings name. They connect when they are
    used."""
    kafka, name = settings.kafka, settings.name

    def group_consumer(
        group: str,
        names: Sequence[str],
        *,
        assigned: interfaces.RebalanceCallback,
        revoked: interfaces.RebalanceCallback,
    ) -> interfaces.GroupMember:
        return log.GroupConsumer(
            kafka,
            group,
            names,
            session_timeout_ms=settings.session_timeout_ms,
            assigned=assigned,
            revoked=revoked,
            client_id=name,
        )

    return Connections(
        writer=log.Writer(kafka, client_id=name),
        reader=log.Reader(
            kafka,
            topics.TOKENS,
            wait_ms=tail.WAIT_MS,
            min_bytes=tail.EAGER_BYTES,
            client_id=f"{name}-tail",
        ),
        replays=log.Replays(kafka, size=2, client_id=f"{name}-replay"),
        offsets=log.Offsets(kafka, client_id=f"{name}-offsets"),
        layout=lambda: log.layout(kafka),
        group_consumer=group_consumer,
        redis=RedisStore(settings.redis),
        redis_cache=RedisStore(settings.redis_cache or settings.redis),
    )
