"""Finds the partitions for which a consumer gets no answers although another client would.

A consumer of aiokafka keeps the password, the certificates and the addresses of its creation. While
its login is refused, or its connection is dead, it retries, returns nothing and raises nothing. An
idle topic looks the same, with one difference: an idle broker answers each fetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Set
from typing import Final

import aiokafka

from tailrace import telemetry
from tailrace.log import client_api, clients
from tailrace.protocol import log_words

CHECK_S: Final = 0.5
# Without an answer to a fetch, plus the time for which a broker may hold a fetch. A broker in a GC
# pause is not away.
SILENT_S: Final = 3.0
# Brokers elect a leader within their session timeout of 9 s. Until then no client gets answers.
UNREACHABLE_S: Final = 20.0
CONNECT_S: Final = 2.0
ANSWER_S: Final = 2.0


class Liveness:
    """Watches one consumer while it is polled.

    A partition is silent when no fetch of it was answered for `SILENT_S` of polling. A new consumer
    then queries its end. If it gets an answer, the watched consumer is `blind` and must be
    replaced. If no new consumer can connect, login included, a replacement would not help. A
    partition for which no client gets answers may have no leader for a moment.

    Attributes:
        blind: a new consumer would get answers. False again after `on_connected`.
        _marks: the consumer's time of its last answer, by partition, at the last check.
        _silent_s: seconds of polling without an answer, by partition.
        _missing: partitions that need an answer before the reader `answers`.
        _refused: no new client could connect.
        _checked_at: time of the last check; None until the first one.
        _full: a poll since the last check left records where they were: not all were to be fetched.
        _probe: asks a new consumer; None or done while nothing is silent.
    """

    def __init__(
        self,
        client_id: str,
        make: Callable[[], aiokafka.AIOKafkaConsumer],
        api: client_api.ClientApi,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` makes a consumer without a group. `wait_s`: how long a broker holds a fetch."""
        self._client_id = client_id
        self._make = make
        self._api = api
        self._wait_s = wait_s
        self._clock = clock
        self._marks: dict[aiokafka.TopicPartition, int | None] = {}
        self._silent_s: dict[aiokafka.TopicPartition, float] = {}
        self._missing: set[aiokafka.TopicPartition] = set()
        self._refused = False
        self._checked_at: float | None = None
        self._full = False
        self._probe: asyncio.Task[None] | None = None
        self._answers = True
        self.blind = False

    @property
    def answers(self) -> bool:
        """Whether the brokers answer the reader's fetches, by what is known."""
        return self._answers

    def on_connected(self) -> None:
        """A new consumer is connected."""
        self.blind = self._refused = False
        self._forget()

    def on_nothing_followed(self) -> None:
        """The consumer has no partition, so none is silent."""
        self._refused = False
        self._missing.clear()
        self._forget()

    def _forget(self) -> None:
        self._marks.clear()
        self._silent_s.clear()
        self._checked_at = None
        self._publish()

    def on_refused(self) -> None:
        """No consumer could connect."""
        self._refused = True
        self._publish()

    def after_poll(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        partitions: Set[aiokafka.TopicPartition],
        positions: Mapping[aiokafka.TopicPartition, int],
        *,
        full: bool,
    ) -> None:
        """Check, after a poll of the consumer, whether it gets answers for its partitions.

        Args:
            partitions: those that it fetches.
            positions: next offsets, where they are known.
            full: the poll returned as much as it may.
        """
        self._full = self._full or full
        now = self._clock()
        if self._checked_at is not None and now - self._checked_at < CHECK_S:
            return
        # Time between polls, or time in which the process was paused, does not count.
        elapsed_s = min(now - (self._checked_at or now), CHECK_S + self._wait_s)
        self._checked_at = now
        if self._full:
            self._full, elapsed_s = False, 0.0
        for tp in self._silent_s.keys() - partitions:
            del self._silent_s[tp]
        for tp in partitions:
            mark = consumer.last_poll_timestamp(tp)
            if mark is not None and mark != self._marks.get(tp):
                self._silent_s[tp] = 0.0
                self._missing.discard(tp)
            else:
                self._silent_s[tp] = self._silent_s.get(tp, 0.0) + elapsed_s
            self._marks[tp] = mark
        self._missing &= partitions
        silent = {tp for tp, s in self._silent_s.items() if s >= SILENT_S + self._wait_s}
        if not silent:
            self._refused = False
            if self._probe is not None:
                self._probe.cancel()
        elif not self.blind and (self._probe is None or self._probe.done()):
            self._probe = asyncio.create_task(self._probe_partitions(silent, positions))
        self._publish()

    async def stop(self) -> None:
        """End what is under way."""
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait({self._probe})
        self._refused = False
        self._missing.clear()
        self._publish()

    async def _probe_partitions(
        self,
        silent: set[aiokafka.TopicPartition],
        positions: Mapping[aiokafka.TopicPartition, int],
    ) -> None:
        probe = None
        while probe is None:
            # Not left to the next poll: when the broker is back, the service is ready at once.
            with contextlib.suppress(log_words.LogUnavailable):
                probe = await clients.start_consumer(
                    self._make, self._api, CONNECT_S, self.on_refused
                )
        try:
            ends = await asyncio.gather(*(_end(probe, tp) for tp in silent))
        finally:
            await self._api.stop_consumer(probe, clients.STOP_DEADLINE_S)
        self._refused = False
        for tp, end in zip(silent, ends, strict=True):
            if end is not None:
                self.blind = True
                if end > positions.get(tp, -1):
                    self._missing.add(tp)
            elif self._silent_s.get(tp, 0.0) > UNREACHABLE_S:
                self._missing.add(tp)
        if self.blind:
            telemetry.READERS_REPLACED.labels(self._client_id).inc()
            telemetry.log(
                telemetry.Action.CONSUMER_REPLACED,
                reason="no answer to a fetch",
                client=self._client_id,
                partitions=sorted(tp.partition for tp in silent),
            )
        self._publish()

    def _publish(self) -> None:
        """Publish a change of `answers`."""
        answers = not (self._refused or self._missing)
        if answers == self._answers:
            return
        self._answers = answers
        telemetry.READERS_BLIND.labels(self._client_id).set(not answers)
        action = telemetry.Action.READER_HEARS if answers else telemetry.Action.READER_BLIND
        telemetry.log(
            action,
            client=self._client_id,
            reason="no client can connect" if self._refused else "no answer to a fetch",
            partitions=sorted(tp.partition for tp in self._missing),
        )


async def _end(consumer: aiokafka.AIOKafkaConsumer, tp: aiokafka.TopicPartition) -> int | None:
    """The end of a partition; None without an answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            ends: dict[aiokafka.TopicPartition, int] = await consumer.end_offsets([tp])
            return ends[tp]
    except clients.CONNECTION_ERRORS:
        return None
