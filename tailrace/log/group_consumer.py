"""A membership in a consumer group: of a worker in its pool's, of a runner in its pipeline's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import aiokafka
import aiokafka.errors
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tailrace import telemetry
from tailrace.log import address, client_api, clients, liveness, offsets, record_keys
from tailrace.protocol import log_words

# A partition that is resumed or newly assigned may wait this long for the fetch of the others.
WAIT_MS = 200
# A member learns of a rebalance with its next heartbeat. Until all members know it, no partition of
# the group has an owner that reads it.
HEARTBEAT_MS = 300
COMMIT_DEADLINE_S = 5.0
# A member whose heartbeats are refused is removed from its group, and its consumer reports nothing:
# it keeps its assignment, or waits for one for ever. So the group's members are read at this
# interval, and two absences count, because a member that is joining may not be listed.
GROUP_CHECK_S = 10.0
ABSENCES = 2


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Forwards rebalances. The callbacks must be short: aiokafka drops their exceptions and bounds
    them by the rebalance timeout."""

    def __init__(
        self,
        assigned: Callable[[set[tuple[str, int]]], Awaitable[None]],
        revoked: Callable[[set[tuple[str, int]]], Awaitable[None]],
    ) -> None:
        self._assigned, self._revoked = assigned, revoked

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._revoked({(tp.topic, tp.partition) for tp in revoked})

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        await self._assigned({(tp.topic, tp.partition) for tp in assigned})


class GroupConsumer:
    """One member on its pool's request topics.

    Range assignment gives equal partition numbers of all classes to one member (log rule P7).

    Attributes:
        _consumer: the joined client; None before `start` and after the membership was given up.
        _stopped: set by `stop`; the member does not join again.
        _rejoin: the next poll gives the membership up.
        _liveness: whether the consumer gets answers for the partitions that are not paused.
        _absences: how often in a row the group did not list this member.
        _check: reads the group's members; None or done while nothing is read.
        _check_at: when to read them next.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        names: Sequence[str],
        *,
        session_timeout_ms: int,
        assigned: Callable[[set[tuple[str, int]]], Awaitable[None]],
        revoked: Callable[[set[tuple[str, int]]], Awaitable[None]],
        client_id: str,
        read_committed: bool = False,
        api: client_api.ClientApi | None = None,
    ) -> None:
        """`read_committed`: skip records of transactions that are open or aborted."""
        self._listener = _Listener(assigned, revoked)
        self._group = group
        self._client_id = client_id
        self._offsets = offsets.Offsets(bootstrap, client_id=f"{client_id}-look", api=api)
        self._names = list(names)
        self._api = api or client_api.default()
        self._make: Callable[[], aiokafka.AIOKafkaConsumer] = lambda: aiokafka.AIOKafkaConsumer(
            **address.options(bootstrap),
            group_id=group,
            client_id=client_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=min(HEARTBEAT_MS, max(100, session_timeout_ms // 3)),
            max_poll_interval_ms=300_000,
            rebalance_timeout_ms=max(5_000, session_timeout_ms),
            partition_assignment_strategy=(RangePartitionAssignor,),
            fetch_max_wait_ms=WAIT_MS,
            retry_backoff_ms=50,
            metadata_max_age_ms=30_000,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
        )
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._stopped = False
        self._rejoin = False
        self._liveness = liveness.Liveness(
            client_id,
            lambda: clients.new_consumer(bootstrap, client_id=f"{client_id}-look"),
            self._api,
            WAIT_MS / 1000,
        )
        self._absences = 0
        self._check: asyncio.Task[None] | None = None
        self._check_at = 0.0

    @property
    def answers(self) -> bool:
        """Whether the brokers answer its fetches, by what is known (`liveness`)."""
        return self._liveness.answers

    async def start(self) -> None:
        """Join the group; waits for a broker that is away."""
        if self._consumer is None:
            self._consumer = await clients.start_consumer(
                self._new_consumer, self._api, failed=self._liveness.on_refused
            )
            self._liveness.on_connected()
            self._absences, self._check_at = 0, time.monotonic() + GROUP_CHECK_S
        if self._stopped:  # while it joined
            await self.stop()
            raise log_words.LogUnavailable("the group consumer was stopped")

    async def poll(self, max_records: int, timeout_ms: int = 50) -> list[log_words.Record]:
        """Next records of owned partitions that are not paused.

        Call it often, also when all are paused: a member that does not poll loses its partitions.

        Raises:
            LogUnavailable: the membership was given up and everything is revoked. The next poll
                joins again.
        """
        if self._consumer is None:
            await self.start()
        consumer = self._member()
        if self._rejoin or self._liveness.blind:
            await self._leave()
            raise log_words.LogUnavailable("the membership was given up")
        try:
            batches = await consumer.getmany(timeout_ms=timeout_ms, max_records=max(1, max_records))
        except (aiokafka.errors.KafkaError, OSError) as error:
            # The position may have passed records that were not returned, and a coordinator that
            # failed stays failed. A new member starts from the committed offsets.
            await self._leave()
            raise log_words.LogUnavailable(type(error).__name__) from error
        records = [record_keys.record(r) for batch in batches.values() for r in batch]
        self._liveness.after_poll(
            consumer,
            consumer.assignment() - consumer.paused(),
            {},
            full=len(records) >= max_records,
        )
        if time.monotonic() >= self._check_at and (self._check is None or self._check.done()):
            self._check_at = time.monotonic() + GROUP_CHECK_S
            self._check = asyncio.create_task(self._check_membership())
        return records

    def rejoin(self) -> None:
        """Make the next poll leave the group, so that the poll after it joins again.

        Not done here: a running poll would fail in the closed client.
        """
        self._rejoin = True

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return no records of these; partitions that are not owned (just revoked) are ignored."""
        self._member().pause(*self._owned_partitions(partitions))

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return records of these again."""
        self._member().resume(*self._owned_partitions(partitions))

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Read these partitions from these offsets on; partitions not owned are ignored. Fetched
        records of them are dropped."""
        for tp in self._owned_partitions(offsets):
            self._member().seek(tp, offsets[(tp.topic, tp.partition)])

    async def commit(self, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> bool:
        """Commit (next offset, metadata) by partition.

        Returns False when a partition is no longer owned (rebalance), which is not an error.
        Nothing is committed for it: the broker would accept the commit and move the new owner's
        offset back.

        Raises:
            LogUnavailable: no answer.
        """
        own_offsets = {
            tp: offsets[(tp.topic, tp.partition)] for tp in self._owned_partitions(offsets)
        }
        if not own_offsets:
            return not offsets
        try:
            async with asyncio.timeout(COMMIT_DEADLINE_S):
                await self._member().commit(own_offsets)
        except (aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
            return False
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as error:
            raise log_words.LogUnavailable(f"commit: {type(error).__name__}") from error
        return len(own_offsets) == len(offsets)

    async def stop(self) -> None:
        """Leave the group within a deadline."""
        self._stopped = True
        await self._liveness.stop()
        if self._check is not None:
            self._check.cancel()
            await asyncio.wait({self._check})
        await self._offsets.stop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._api.stop_consumer(consumer, clients.STOP_DEADLINE_S)

    async def _check_membership(self) -> None:
        """Join again if the group does not list this member."""
        try:
            members = await self._offsets.members(self._group)
        except log_words.LogUnavailable:
            return
        is_member = any(member.startswith(f"{self._client_id}-") for member in members)
        self._absences = 0 if is_member else self._absences + 1
        if self._absences == ABSENCES:
            telemetry.READERS_REPLACED.labels(self._client_id).inc()
            telemetry.log(
                telemetry.Action.CONSUMER_REPLACED,
                reason="not in its group",
                client=self._client_id,
            )
            self.rejoin()

    async def _leave(self) -> None:
        self._rejoin = False
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            partitions = consumer.assignment()
            await self._api.stop_consumer(consumer, clients.STOP_DEADLINE_S)
            await self._listener.on_partitions_revoked(partitions)

    def _new_consumer(self) -> aiokafka.AIOKafkaConsumer:
        if self._stopped:
            raise log_words.LogUnavailable("the group consumer was stopped")
        consumer = self._make()
        consumer.subscribe(self._names, listener=self._listener)
        return consumer

    def _member(self) -> aiokafka.AIOKafkaConsumer:
        if self._consumer is None:
            raise log_words.LogUnavailable("not a member of the group")
        return self._consumer

    def _owned_partitions(
        self, partitions: Iterable[tuple[str, int]]
    ) -> list[aiokafka.TopicPartition]:
        assignment = self._member().assignment()
        return [
            tp for tp in (aiokafka.TopicPartition(t, p) for t, p in partitions) if tp in assignment
        ]
