"""The real broker and the real Redis that every other service test stands on."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tailrace.local import java, kafka_broker, paths, ports, processes, redis_server
from tailrace.protocol import topics
from tests.support import local


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
