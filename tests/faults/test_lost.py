"""F8, F21: the log is gone, or its beginning is. A reader that held a position in it is told so,
and no reader gets wrong text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import aiokafka.admin
import aiokafka.errors
import pytest

from tailrace import log
from tailrace.protocol import topics
from tests.faults import drill, stage
from tests.faults.conftest import LONG, SEED
from tests.support import waiting
from worker.engines import scripted

pytestmark = [
    pytest.mark.timeout(400),
    LONG,
]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[stage.Stage]:
    made = stage.Stage(tmp_path, workers=1, gateways=1).open()
    yield made
    made.close()


async def test_f21_retention_passes_the_beginning_of_what_a_slow_watcher_reads(
    own: stage.Stage,
) -> None:
    async with drill.drill(own, "f21", SEED) as d:
        asked = await d.crowd.ask_many(4, tokens=150, pace_ms=5)
        found = await d.judge()
        drill.passed(found)
        d.fault("retention", "llm.tokens")
        await forget(own)
        d.kill("push-1")  # what an instance still holds in memory it may still show
        await d.restart("push-1")
        told = d.crowd.lost
        for a in asked:
            for via in ("ws", "sse"):
                d.crowd.watch(a, bases=[own.services["push-1"].url], via=via, after=20)
        await d.crowd.settle(60)
        assert d.crowd.lost - told == 8, "everyone was told"
        more = await d.crowd.ask_many(4, tokens=50, pace_ms=5)
        await d.crowd.settle(60)
        assert d.crowd.in_vain == 0
    after = await drill.examine(own, only="f21", since=d.since)
    assert {after[1][a.rid].status for a in more} == {"completed"}


async def test_an_answer_whose_beginning_is_lost_ends_for_every_reader_when_its_worker_dies(
    own: stage.Stage,
) -> None:
    """The gateway that streamed it said in_progress for ever, others 410."""
    async with drill.drill(own, "lost-beginning", SEED) as d:
        asked = await d.crowd.ask_many(4, tokens=6000, pace_ms=20)
        for each in asked:
            await d.streaming(each, 10)
        d.fault("retention", "llm.tokens")
        await forget(own)
        d.kill("worker-1")
        await d.restart("worker-1")
        await d.until("every watcher was told", lambda: d.crowd.lost >= 8, 100.0)
        for each in asked:
            for service in (*own.of("gateway"), *own.of("push")):
                answer = await d.crowd.http.get(
                    f"{service.url}/v1/responses/{each.rid}",
                    headers={"Authorization": f"Bearer {own.token(each.user)}"},
                )
                assert (answer.status_code, answer.json()["error"]["code"]) == (410, "history_lost")
        more = await d.crowd.ask_many(4, tokens=50, pace_ms=5)
        await d.crowd.settle(60)
        assert d.crowd.in_vain == 0
    judged = await drill.examine(own, only="lost-beginning", since=d.since)
    assert not judged[0].failed(), judged[0].lines()  # C2 of what is lost is unknown
    assert {judged[1][a.rid].status for a in more} == {"completed"}


async def test_requests_that_the_group_s_offsets_were_moved_past_are_run(own: stage.Stage) -> None:
    """Accepted requests were 404 after 200, and their streams waited for ever."""
    async with drill.drill(own, "moved-offsets", SEED) as d:
        await d.crowd.ask_many(4, tokens=50, pace_ms=5)
        await d.crowd.settle(60)
        d.kill("worker-1")
        await d.crowd.ask_many(8, tokens=50, pace_ms=5)
        d.fault("offsets moved", "kafka")
        await move_offsets_to_end(own)
        await d.restart("worker-1")
        found = await d.judge()
    drill.passed(found)
    assert d.statuses() == {"completed": 12}


async def move_offsets_to_end(on: stage.Stage) -> None:
    """As `kafka-consumer-groups --reset-offsets --to-latest` does, once the group is empty."""
    offsets = log.Offsets(on.kafka.bootstrap)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=on.kafka.bootstrap,
        group_id=topics.group(stage.POOL),
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        ends = {
            aiokafka.TopicPartition(name, p): end
            for name in (topics.requests(stage.POOL, each) for each in topics.CLASSES)
            for p, end in (await offsets.ends(name, range(8))).items()
        }
        consumer.assign(list(ends))

        async def moved() -> bool:
            try:
                await consumer.commit(ends)
            except aiokafka.errors.KafkaError:
                return False  # the dead worker is still a member
            return True

        await waiting.eventually(moved, "the offsets are moved", within_s=60.0, every_s=0.5)
    finally:
        await consumer.stop()
        await offsets.stop()


async def forget(on: stage.Stage) -> None:
    """All that is in the token partitions now."""
    offsets = log.Offsets(on.kafka.bootstrap)
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=on.kafka.bootstrap)
    await admin.start()
    try:
        ends = await offsets.ends(topics.TOKENS, range(8))
        old = {
            aiokafka.TopicPartition(topics.TOKENS, p): aiokafka.admin.RecordsToDelete(
                before_offset=end
            )
            for p, end in ends.items()
            if end
        }
        await admin.delete_records(old)
    finally:
        await admin.close()
        await offsets.stop()


async def test_f8_the_broker_loses_its_log(own: stage.Stage) -> None:
    async with drill.drill(own, "f8", SEED) as d, d.reviving():
        asked = await d.crowd.ask_many(8, tokens=3000, pace_ms=20)
        await d.streaming(asked[0], 20)
        d.fault("log lost", "kafka")
        own.kafka.kill()
        own.kafka.lose()
        own.kafka.launch()
        await asyncio.to_thread(own.kafka.wait_ready)
        await asyncio.to_thread(own.kafka.apply_topics)
        await d.until("every watcher was told", lambda: d.crowd.lost >= 16, 150.0)
        await d.until(
            "every service has noticed",
            lambda: all(s.starts > 1 for s in own.services.values()),
            60.0,
        )
    assert d.crowd.ended == 0
    texts = received(d)
    for a in asked:
        whole = scripted.expected_text([{"role": "user", "content": a.body["input"]}], a.tokens)
        assert (
            [t for t in texts[a.rid] if t and whole.startswith(t)]
            == [t for t in texts[a.rid] if t]
            != []
        ), "no wrong text"
    for path in own.transcripts.glob("*.jsonl"):  # what was written down about the log that is gone
        path.rename(path.with_suffix(".lost"))
    for service in own.services.values():
        own.kill(service.name)
    async with drill.drill(own, "after", SEED) as again:
        await again.crowd.ask_many(8, tokens=50, pace_ms=5)
        found = await again.judge()
    drill.passed(found)
    assert again.statuses() == {"completed": 8}


def received(d: drill.Drill) -> dict[str, list[str]]:
    """What each watcher of a response was shown, by response."""
    shown: dict[str, dict[str, str]] = {}
    for _, lines in d.crowd.files():
        watching = {line.n: line for line in lines if line.op == "watch" and line.f == "invoke"}
        for line in lines:
            if line.op == "events":
                texts = shown.setdefault(watching[line.n].rid, {})
                watcher = watching[line.n].watcher
                texts[watcher] = texts.get(watcher, "") + "".join(
                    e[2] or "" for e in line.events if len(e) > 2
                )
    return {rid: list(texts.values()) for rid, texts in shown.items()}
