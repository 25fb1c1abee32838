"""Whether a consumer that is polled hears of its partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import aiokafka.errors
import prometheus_client
import pytest

from tailrace.log import client_api, clients, liveness, readers
from tailrace.protocol import log_words
from tests.support.waiting import eventually

FIRST, SECOND = (aiokafka.TopicPartition("t", p) for p in range(2))
WAIT_S = 0.5
SILENT_S = liveness.SILENT_S + WAIT_S + liveness.CHECK_S


class Broker:
    """What a new consumer gets of it.

    Attributes:
        ends: of the partitions that answer it.
        connects: whether it can log in.
    """

    def __init__(self) -> None:
        self.ends = {FIRST: 5, SECOND: 5}
        self.connects = True
        self.asked = self.stopped = 0


class Other:
    """The new consumer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def start(self) -> None:
        if not self._broker.connects:
            raise aiokafka.errors.KafkaConnectionError("Unable to bootstrap")
        self._broker.asked += 1

    async def stop(self) -> None:
        self._broker.stopped += 1

    async def end_offsets(self, tps: list[Any]) -> dict[Any, int]:
        if any(tp not in self._broker.ends for tp in tps):
            raise aiokafka.errors.KafkaTimeoutError
        return {tp: self._broker.ends[tp] for tp in tps}


class Watched:
    """The consumer that is watched, by its public parts."""

    def __init__(self) -> None:
        self.pauses: set[Any] = set()
        self.marks: dict[Any, int | None] = {FIRST: None, SECOND: None}

    def assignment(self) -> frozenset[Any]:
        return frozenset(self.marks)

    def last_poll_timestamp(self, tp: Any) -> int | None:
        return self.marks[tp]


class Polls:
    """A reader's polls, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(liveness, "CONNECT_S", 0.05)
        monkeypatch.setattr(clients, "RETRY_S", 0.02)
        self.now = 100.0
        self.broker, self.watched = Broker(), Watched()
        self.found = liveness.Liveness(
            "reader-of-tests",
            lambda: Other(self.broker),
            client_api.PublicApi(),
            WAIT_S,
            clock=lambda: self.now,
        )

    def poll(
        self,
        seconds: float,
        *heard: Any,
        full: bool = False,
        positions: dict[Any, int] | None = None,
    ) -> None:
        """Poll for so long. The partitions that are `heard` are answered all the time."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            for tp in heard:
                self.watched.marks[tp] = int(self.now * 1000)
            self.found.after_poll(
                self.watched,
                self.watched.assignment() - self.watched.pauses,
                positions or {},
                full=full,
            )

    def metric(self, name: str) -> float:
        return prometheus_client.REGISTRY.get_sample_value(name, {"client": "reader-of-tests"}) or 0


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Polls:
    return Polls(monkeypatch)


async def test_an_idle_log_asks_nothing_of_the_broker(polls: Polls) -> None:
    polls.poll(600, FIRST, SECOND)
    assert (polls.found.answers, polls.found.blind, polls.broker.asked) == (True, False, 0)


async def test_a_consumer_that_hears_nothing_is_replaced_and_answers_when_it_hears_again(
    polls: Polls,
) -> None:
    """aiokafka's consumer is refused with the password that it was made with: it returns nothing
    and raises nothing."""
    before = polls.metric("tailrace_readers_replaced_total")
    polls.poll(1, FIRST, SECOND)
    polls.poll(SILENT_S + 1)
    await eventually(lambda: polls.found.blind, "it is found")
    assert not polls.found.answers
    assert polls.metric("tailrace_readers_blind") == 1
    assert polls.metric("tailrace_readers_replaced_total") == before + 1
    polls.watched.marks = {FIRST: None, SECOND: None}
    polls.found.on_connected()
    assert not polls.found.blind
    assert not polls.found.answers, "it has to hear of them first"
    polls.poll(1, FIRST)
    assert not polls.found.answers, "of both"
    polls.poll(1, FIRST, SECOND)
    assert polls.found.answers
    assert polls.metric("tailrace_readers_blind") == 0
    assert polls.broker.stopped == polls.broker.asked


async def test_one_partition_is_found_while_another_one_delivers(polls: Polls) -> None:
    polls.poll(1, FIRST, SECOND)
    polls.poll(SILENT_S + 1, FIRST)
    await eventually(lambda: polls.found.blind, "it is found")
    assert not polls.found.answers


async def test_a_reader_at_the_end_answers_as_soon_as_another_consumer_connects(
    polls: Polls,
) -> None:
    polls.poll(SILENT_S + 1, positions={FIRST: 5, SECOND: 5})
    await eventually(lambda: polls.found.blind, "it is found")
    assert polls.found.answers, "there is nothing that it lacks"


async def test_a_service_whose_login_is_refused_says_so_until_it_hears_again(polls: Polls) -> None:
    polls.broker.connects = False
    polls.poll(SILENT_S + 1)
    await eventually(lambda: not polls.found.answers, "it is said")
    assert not polls.found.blind, "another consumer would hear nothing, too"
    polls.poll(1, FIRST, SECOND)
    assert polls.found.answers, "as after a broker was away"


async def test_a_service_is_ready_as_soon_as_a_client_can_connect_not_at_the_next_poll(
    polls: Polls,
) -> None:
    """After a broker was away, watchers gave up while readiness waited for the end of a fetch."""
    polls.broker.connects = False
    polls.poll(SILENT_S + 1, positions={FIRST: 5, SECOND: 5})
    await eventually(lambda: not polls.found.answers, "it is said")
    polls.broker.connects = True
    await eventually(lambda: polls.found.answers, "nothing is missing")


async def test_a_partition_without_a_leader_makes_no_service_unready_before_a_leader_is_due(
    polls: Polls,
) -> None:
    del polls.broker.ends[SECOND]
    polls.poll(SILENT_S + 1, FIRST)
    await eventually(lambda: polls.broker.stopped, "another consumer was asked")
    polls.poll(1, FIRST)
    assert (polls.found.answers, polls.found.blind) == (True, False)
    polls.poll(liveness.UNREACHABLE_S, FIRST)
    await eventually(lambda: polls.broker.stopped == 2, "another consumer was asked")
    await eventually(lambda: not polls.found.answers, "it is said")


async def test_what_is_paused_or_was_not_to_be_fetched_is_not_silent(polls: Polls) -> None:
    """A member that is at its limit gets nothing on purpose."""
    polls.watched.pauses = {FIRST, SECOND}
    polls.poll(60)
    polls.watched.pauses = set()
    polls.poll(60, full=True)
    polls.now += 600  # the process stood still
    polls.poll(1)
    for _ in range(20):  # a question would be asked now
        await asyncio.sleep(0)
    assert (polls.found.answers, polls.found.blind, polls.broker.asked) == (True, False, 0)


async def test_a_partition_that_was_left_is_not_missing(polls: Polls) -> None:
    polls.poll(SILENT_S + 1, FIRST)
    await eventually(lambda: polls.found.blind, "it is found")
    del polls.watched.marks[SECOND]
    polls.poll(1, FIRST)
    assert polls.found.answers


async def test_a_reader_that_follows_nothing_any_more_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway was not ready for ever: its reader of on-demand partitions had left them while no
    client could connect."""
    monkeypatch.setattr(readers, "IDLE_POLL_S", 0.01)
    broker = Broker()
    broker.connects = False

    class Consumer(Other):
        def unsubscribe(self) -> None: ...

    monkeypatch.setattr(clients, "new_consumer", lambda *_, **__: Consumer(broker))
    reader = readers.Reader("h:1", "t", answer_deadline_s=0.05, api=client_api.PublicApi())
    reader.follow(0, 0)
    with pytest.raises(log_words.LogUnavailable):
        await reader.poll()
    assert not reader.answers
    broker.connects = True
    reader.leave(0)
    assert await reader.poll() == []
    assert reader.answers
    await reader.stop()


class Busy:
    """A consumer: each fetch brings a record of the first partition, and nothing answers for the
    second one."""

    def __init__(self) -> None:
        self.offset = 0
        self.pauses: set[Any] = set()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assign(self, tps: list[Any]) -> None: ...

    def unsubscribe(self) -> None: ...

    def seek(self, tp: Any, offset: int) -> None: ...

    def assignment(self) -> frozenset[Any]:
        return frozenset({FIRST, SECOND})

    def pause(self, *tps: Any) -> None:
        self.pauses.update(tps)

    def paused(self) -> set[Any]:
        return self.pauses

    def resume(self, *tps: Any) -> None:
        self.pauses.difference_update(tps)

    async def getmany(self, **_: Any) -> dict[Any, list[Any]]:
        assert not self.pauses
        self.offset += 1
        record = aiokafka.ConsumerRecord("t", 0, self.offset - 1, 1, 0, b"k", b"v", None, 1, 1, ())
        return {FIRST: [record]}

    def highwater(self, tp: Any) -> int:
        return self.offset if tp == FIRST else 0

    def last_poll_timestamp(self, tp: Any) -> int | None:
        return self.offset if tp == FIRST else None

    async def end_offsets(self, tps: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(tps, 5)


@pytest.mark.parametrize("rest_s", [0.0, 0.001])
async def test_a_silent_partition_is_found_while_another_one_always_brings_records(
    monkeypatch: pytest.MonkeyPatch, rest_s: float
) -> None:
    """Also by a reader that rests: it pauses all partitions between its fetches."""
    monkeypatch.setattr(liveness, "CHECK_S", 0.0)
    monkeypatch.setattr(liveness, "SILENT_S", 0.1)
    made: list[Busy] = []

    def make(*_: Any, **__: Any) -> Busy:
        made.append(Busy())
        return made[-1]

    monkeypatch.setattr(clients, "new_consumer", make)
    reader = readers.Reader("h:1", "t", rest_s=rest_s, wait_ms=1, api=client_api.PublicApi())
    reader.follow(0, 0)
    reader.follow(1, 0)

    async def poll() -> None:
        while len(made) < 3:  # the first one, the one that asks, and the replacement
            await reader.poll()
            await asyncio.sleep(0.001)

    try:
        await asyncio.wait_for(poll(), 10)
    finally:
        await reader.stop()
