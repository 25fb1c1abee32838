"""The real broker and the real Redis that every other service test stands on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tailrace.local import child_process, java, kafka_broker, paths, ports, processes, redis_server
from tailrace.protocol import topics
from tests.support import local, waiting


async def test_the_shared_broker_holds_the_whole_topic_table(kafka: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        described = await admin.describe_topics([row.name for row in topics.table(("default",))])
    finally:
        await admin.close()
    partitions = {topic["topic"]: len(topic["partitions"]) for topic in described}
    assert partitions[topics.TOKENS] == 8
    assert partitions[topics.requests("default", "interactive")] == 8
    assert all(count >= 1 for count in partitions.values())


def test_redis_answers_and_a_killed_one_comes_back_empty_on_its_port() -> None:
    with local.LocalRedis() as redis:
        url = redis.url
        redis.kill()
        assert not ports.accepts(redis.port)
        redis.start()
        assert redis.url == url


def test_a_killed_broker_comes_back_on_its_port_with_its_log() -> None:
    with local.LocalKafka(local.QUICK_RETURN) as broker:
        broker.apply_topics(partitions=2)
        asyncio.run(_append(broker.bootstrap, b"kept"))
        broker.kill()
        broker.start()
        assert asyncio.run(_first(broker.bootstrap)) == b"kept"


async def _append(bootstrap: str, value: bytes) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait(topics.TOKENS, value, partition=1)
    finally:
        await producer.stop()


async def _first(bootstrap: str) -> bytes | None:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition(topics.TOKENS, 1)])
        record = await asyncio.wait_for(consumer.getone(), 20)
    finally:
        await consumer.stop()
    value: bytes | None = record.value
    return value


def test_a_broker_that_cannot_start_is_named_with_its_last_lines(tmp_path: Path) -> None:
    port = ports.free_port()
    broker = kafka_broker.Broker(
        tmp_path,
        port,
        ports.free_port({port}),
        run="test-bad",
        log=tmp_path / "kafka.log",
        extra={"log.retention.hours": "soon"},
    )
    with pytest.raises(processes.StartError, match=r"(?s)Kafka could not format.*soon"):
        broker.start()


def test_a_broker_starts_with_the_classes_that_were_kept_for_it() -> None:
    """Java says nothing when it does not take them: another Java, other jars."""
    archive = kafka_broker.class_archive(java.find(), paths.jars())
    if not archive.stat().st_size:
        pytest.skip("this Java can keep no classes")
    with local.LocalKafka() as kafka:
        mapped = Path(f"/proc/{kafka.pid}/maps").read_text()
    assert str(archive) in mapped


def test_another_redis_on_its_port_is_not_taken_for_it(tmp_path: Path) -> None:
    """Symptom: of two deployments that drew one port, the second went on with the first one's
    Redis."""
    with local.LocalRedis() as others:
        server = redis_server.Server(
            tmp_path, others.port, run="test-other", log=tmp_path / "redis.log"
        )
        server.start()
        try:
            with pytest.raises(processes.StartError, match="Redis ended with exit code 1"):
                server.wait_ready(20)
        finally:
            server.kill()


def test_parts_die_with_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    """The kernel's parent-death signal ends every child when the parent is killed by SIGKILL."""
    pids = tmp_path / "pids"
    script = (
        "import pathlib, sys, time\n"
        "from tests.support import local\n"
        "kafka, redis = local.LocalKafka(), local.LocalRedis()\n"
        "kafka.start(); redis.start()\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{kafka.pid}} {{redis.pid}}')\n"
        "time.sleep(60)\n"
    )

    parent = child_process.ChildProcess(
        "parent",
        [sys.executable, "-c", script],
        environ=os.environ,
        log=tmp_path / "log",
        run="test-parent",
        cwd=paths.ROOT,
    )
    try:

        def written() -> bool:
            assert parent.returncode is None, parent.output()
            return pids.exists() and bool(pids.read_text())

        waiting.eventually_blocking(written, "the children's process ids", within_s=40)
        children = [
            who for pid in pids.read_text().split() if (who := processes.identity(int(pid)))
        ]
        assert len(children) == 2
        parent.send(signal.SIGKILL)
        assert processes.wait_gone(children, 15)
    finally:
        parent.stop(1)
