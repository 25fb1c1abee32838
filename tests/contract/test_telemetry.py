"""What the real Kafka client says while a real broker is away, folded."""

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest

from tailrace import log, telemetry
from tailrace.log import complaints
from tailrace.protocol import topics
from tests.contract.conftest import Mortal
from tests.support import waiting

AWAY_S = 4.0  # how long the broker is down: long enough for many complaints
MOST_LINES = 8  # two for the outage; some notes of the client's start may come on top


@pytest.fixture
def folded() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(telemetry.JsonFormatter("worker", "worker-1"))
    root, kafka = logging.getLogger(), logging.getLogger("aiokafka")
    before = (root.level, kafka.level, kafka.propagate, kafka.handlers)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    kafka.handlers, kafka.propagate = [complaints.KafkaHandler()], False
    kafka.setLevel(logging.WARNING)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before[0])
    kafka.setLevel(before[1])
    kafka.propagate, kafka.handlers = before[2:]


async def _append(producer: aiokafka.AIOKafkaProducer) -> None:
    while True:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(producer.send_and_wait(topics.TOKENS, b"{}", partition=0), 2)
        await asyncio.sleep(0.1)


async def _read(consumer: aiokafka.AIOKafkaConsumer, seen: list[Any]) -> None:
    while True:
        with contextlib.suppress(Exception):
            seen.extend(await consumer.getmany(timeout_ms=200))
        await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
async def test_a_broker_that_goes_and_comes_back_is_two_lines(
    mortal: Mortal, bare: str, folded: io.StringIO
) -> None:
    """Seen without folding: 800 lines in 8 s, from one producer and one consumer in a group."""
    await log.apply_topics(bare, ["default"])
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bare)
    consumer = aiokafka.AIOKafkaConsumer(
        topics.TOKENS, bootstrap_servers=bare, group_id="telemetry-test"
    )
    await producer.start()
    await consumer.start()
    seen: list[Any] = []
    tasks = [asyncio.create_task(_append(producer)), asyncio.create_task(_read(consumer, seen))]
    try:
        await waiting.eventually(lambda: bool(seen), "the consumer has read a record", within_s=60)
        await mortal.kill()
        await asyncio.sleep(AWAY_S)
        assert _actions(folded) == ["kafka_away"]
        await mortal.start()
        await waiting.eventually(
            lambda: "kafka_back" in _actions(folded), "the broker's return in the log", within_s=120
        )
    finally:
        for task in tasks:
            task.cancel()
        for client in (producer, consumer):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.stop(), 5)
    assert _actions(folded) == ["kafka_away", "kafka_back"]
    back = next(line for line in _lines(folded) if line["action"] == "kafka_back")
    assert len(_lines(folded)) < MOST_LINES
    assert back["complaints"] > MOST_LINES
    assert back["seconds"] > 0


def _actions(stream: io.StringIO) -> list[str]:
    return [line["action"] for line in _lines(stream) if line["action"] != "note"]


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]
