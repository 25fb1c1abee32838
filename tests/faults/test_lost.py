"""F8, F21: the log is gone, or its beginning is. A reader that held a position in it is told so,
and no reader gets wrong text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import aiokafka.admin
import pytest

from tailrace import log
from tailrace.protocol import topics
from tests.faults import drill, stage
from tests.faults.conftest import LONG, SEED
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
