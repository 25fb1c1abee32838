"""A worker and the log between them lose nothing: outages, frozen workers, folds that begin too
late."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tailrace.protocol import fold, ids, records, topics
from tailrace.store.prefixes import Prefixes, name_of
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers
from tests.support import local, waiting, workers
from worker import membership
from worker.engines import scripted

AWAY_S = 1.0  # how long the broker is down
CANCEL_STEP_S = 0.004  # between two cancels, so that some meet the end of their response

SESSION_MS = 1500


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


async def commit(bench: workers.Bench, partition: int, offset: int, metadata: str) -> None:
    """As a former worker of this pool left it."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bench.bootstrap,
        group_id=topics.group(bench.pool),
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        tp = aiokafka.TopicPartition(topics.requests(bench.pool, "interactive"), partition)
        consumer.assign([tp])
        await consumer.commit({tp: (offset, metadata)})
    finally:
        await consumer.stop()


async def until_committed(bench: workers.Bench, partition: int, low: int) -> None:
    async def committed() -> bool:
        return (await bench.committed(partition))[0] >= low

    await waiting.eventually(committed, f"partition {partition} committed up to {low}")


async def test_a_fold_that_began_behind_a_cancel_reads_further_back(
    bench: workers.Bench,
) -> None:
    request = await bench.ask("cancelled long ago", partition=2, cues={"script_tokens": "3"})
    await bench.cancel(request)
    end = (await bench.offsets.ends(topics.TOKENS, [2]))[2]
    await commit(
        bench, 2, 0, str(end)
    )  # the former worker never took this request, so its metadata says nothing about it

    await bench.serve()
    await until_committed(bench, 2, 1)

    assert (await bench.read(request.rid)).kinds() == ["Cancel"]


async def test_a_redelivered_finished_response_is_known_from_the_commits_metadata(
    bench: workers.Bench,
) -> None:
    first = await bench.serve()
    hanging = await bench.ask(
        "hangs",
        partition=2,
        cues={
            "script_fault": "hang",
            "script_fault_at": "2",
            "script_tokens": "3",
            "script_pace_ms": "1",
        },
    )
    done = await bench.ask("done", partition=2, cues={"script_tokens": "3", "script_pace_ms": "1"})
    await bench.done(done.rid)
    await bench.tokens(hanging.rid, 2)
    # yields the hanging one; its offset, and the finished one's behind it, will be delivered again
    await first.leave()
    assert (await bench.committed(2))[0] == 0

    await bench.serve()
    await bench.until(hanging.rid, lambda a: a.fold.epoch == 2)
    await bench.cancel(hanging)
    await until_committed(bench, 2, 2)

    assert (await bench.read(done.rid)).kinds().count("Claim") == 1


async def test_a_response_whose_beginning_the_log_has_lost_is_never_claimed(
    bench: workers.Bench,
) -> None:
    lost = await bench.ask("lost", partition=5, cues={"script_tokens": "3"})
    for _ in range(3):
        await bench.append(
            topics.TOKENS,
            5,
            "other",
            records.encode(records.Cancel(await bench.mint(5), workers.OWNER)),
        )
    end = (await bench.offsets.ends(topics.TOKENS, [5]))[5]
    admin = AIOKafkaAdminClient(bootstrap_servers=bench.bootstrap)
    await admin.start()
    try:
        await admin.delete_records(
            {aiokafka.TopicPartition(topics.TOKENS, 5): RecordsToDelete(before_offset=end)}
        )
    finally:
        await admin.close()

    await bench.serve()
    fine = await bench.ask("fine", partition=5, cues={"script_tokens": "3", "script_pace_ms": "1"})
    assert (await bench.done(fine.rid)).ended.status == "completed"
    await until_committed(bench, 5, 2)

    ends = (await bench.offsets.ends(topics.TOKENS, [5]))[5]
    claimed = [r async for r in tokens_between(bench, 5, end, ends) if r.rid == lost.rid]
    assert claimed == []


async def tokens_between(
    bench: workers.Bench, partition: int, start: int, end: int
) -> AsyncIterator[records.TokenRecord]:
    from tailrace import log

    replays = log.Replays(bench.bootstrap, size=1)
    try:
        async for batch in replays.read(topics.TOKENS, partition, start, end):
            for r in batch:
                record = records.decode_token(r.value)
                if record is not None:
                    yield record
    finally:
        await replays.stop()


async def test_a_successor_goes_on_behind_what_landed_just_before_its_claim(
    bench: workers.Bench,
) -> None:
    """The barrier of W3: what the former owner's last frame holds was not in the fold when the
    successor decided to claim."""
    request = await bench.ask(
        "in flight", partition=4, cues={"script_tokens": "40", "script_pace_ms": "1"}
    )
    answer = scripted.expected_ids(request.messages, 40)
    frames, h, detokenizer = [], fold.H0, scripted.Detokenizer()
    for seq in range(0, 12, 4):
        ids_ = answer[seq : seq + 4]
        frames.append(records.Tok(request.rid, "former", seq, ids_, detokenizer.push(ids_), h))
        h = fold.roll(h, ids_)
    claim = records.Claim(
        request.rid,
        "former",
        None,
        workers.OWNER,
        "gone",
        "t",
        0,
        scripted.Scripted.model_rev,
        "scripted-1",
        echo=request.echo,
    )
    for record in (claim, frames[0], frames[1]):
        await bench.append(topics.TOKENS, 4, request.rid, records.encode(record))

    inside = await bench.serve()
    append, late = inside.app.writer.append, [frames[2]]

    def append_late_frame_first(
        topic: str, partition: int, key: str, value: bytes, *more: Any
    ) -> Any:
        record = records.decode_token(value)
        if isinstance(record, records.Claim) and record.prev == "former" and late:
            append(topic, partition, key, records.encode(late.pop()))
        return append(topic, partition, key, value, *more)

    inside.app.writer.append = append_late_frame_first  # type: ignore[method-assign, assignment]
    done = await bench.done(request.rid)

    assert late == []
    assert done.text == scripted.expected_text(request.messages, 40)
    assert done.fold.ids == answer
    assert done.fold.ignored == {}


async def test_two_workers_that_claim_at_once_agree_on_one(bench: workers.Bench) -> None:
    """A claim that lost stands down: here another worker's claim lands right before ours."""
    inside = await bench.serve()
    await bench.done(
        (await bench.ask("tells the broker's time", generate=False)).rid
    )  # the very first claim is waited for
    append = inside.app.writer.append
    stolen: list[str] = []

    def append_behind_a_rival(
        topic: str, partition: int, key: str, value: bytes, *more: Any
    ) -> Any:
        record = records.decode_token(value)
        if isinstance(record, records.Claim) and record.prev is None and not stolen:
            stolen.append(record.own)
            rival = records.Claim(
                key,
                "rival",
                None,
                workers.OWNER,
                "rival",
                "t",
                0,
                record.model_rev,
                record.tokenizer_digest,
                echo=record.echo,
            )
            append(topic, partition, key, records.encode(rival))
        return append(topic, partition, key, value, *more)

    inside.app.writer.append = append_behind_a_rival  # type: ignore[method-assign, assignment]
    request = await bench.ask(
        "race", partition=6, cues={"script_tokens": "200", "script_pace_ms": "5"}
    )
    answer = await bench.done(request.rid)

    assert answer.text == scripted.expected_text(request.messages, 200)
    assert answer.fold.claims[0][0] == "rival"
    assert answer.fold.claims[1][0] not in stolen
    lost = sum(
        len(r.ids)
        for _, r, outcome in answer.records
        if isinstance(r, records.Tok) and outcome is fold.Ignored.STALE_OWNER
    )
    assert (
        lost < 100
    )  # it began to generate without a barrier, and stopped when it saw that it had lost


async def test_a_frozen_worker_wakes_up_as_a_zombie_and_every_record_it_still_writes_is_void(
    bench: workers.Bench,
) -> None:
    a = await bench.worker(session_ms=SESSION_MS).ready()
    request = await bench.ask(
        "zombie", cues={"script_tokens": "1500", "script_pace_ms": "10"}
    )  # not over before the second one has started
    await bench.tokens(request.rid, 20)
    await bench.worker(session_ms=SESSION_MS).ready()

    a.process.send_signal(signal.SIGSTOP)
    try:
        await bench.until(request.rid, lambda r: r.fold.epoch == 2 and r.fold.next > 60)
    finally:
        a.process.send_signal(signal.SIGCONT)
    answer = await bench.done(request.rid)

    assert answer.text == scripted.expected_text(request.messages, 1500)
    assert answer.fold.epoch == 2
    assert a.process.poll() is None, "the zombie lives on and serves again"
    again = await bench.ask(
        "still serving?", partition=7, cues={"script_tokens": "3", "script_pace_ms": "1"}
    )
    assert (await bench.done(again.rid)).ended.status == "completed"


@pytest.mark.slow
async def test_a_worker_that_stood_still_for_longer_than_its_watchdog_waits_goes_on_serving(
    bench: workers.Bench,
) -> None:
    """Symptom: its watchdog stopped the group consumer, could not start it again, and the worker
    ended (twice of twice)."""
    a = await bench.worker(session_ms=SESSION_MS).ready()
    short = {"script_tokens": "5", "script_pace_ms": "1"}
    await bench.done((await bench.ask("before", cues=short)).rid)

    a.process.send_signal(signal.SIGSTOP)
    try:
        meanwhile = [await bench.ask(f"meanwhile {p}", partition=p, cues=short) for p in range(8)]
        await asyncio.sleep(membership.QUIET_S + membership.WATCH_S)
    finally:
        a.process.send_signal(signal.SIGCONT)
    for request in meanwhile:
        assert (await bench.done(request.rid)).ended.status == "completed"
    later = [await bench.ask(f"later {p}", partition=p, cues=short) for p in range(8)]
    for request in later:
        assert (await bench.done(request.rid)).ended.status == "completed"
    await until_committed(bench, 7, 2)
    assert a.process.poll() is None, a.logs()


async def test_a_worker_tells_redis_and_prometheus_how_it_is(bench: workers.Bench) -> None:
    a = await bench.worker().ready()
    request = await bench.ask(
        "watch me", prefix=["d1"], cues={"script_tokens": "3000", "script_pace_ms": "5"}
    )
    await bench.tokens(request.rid, 50)
    async with RedisStore(bench.redis_url) as redis:

        async def running() -> list[dict[str, Any]]:
            beats = await Workers(redis).list_workers(bench.pool)
            return [b for b in beats if b["running"] and b["tokens_per_s"] > 0]

        (beat,) = await waiting.eventually(running, "a heartbeat of a running worker")
        assert (beat["name"], beat["state"], beat["running"], beat["capacity"], beat["model"]) == (
            a.name,
            "ready",
            1,
            64,
            workers.MODEL_NAME,
        )
        assert beat["partitions"] == list(range(8))
        await bench.cancel(request)
        hit = await waiting.eventually(
            lambda: Prefixes(redis).held(bench.pool, ["d1"]), "it tells what it holds"
        )
        assert list(hit) == [name_of(beat["incarnation"])]
        metrics = await asyncio.to_thread(
            lambda: (
                urllib.request.urlopen(f"http://127.0.0.1:{a.port}/metrics", timeout=5)
                .read()
                .decode()
            )
        )
        assert 'tailrace_claims_total{kind="first"} 1.0' in metrics
        assert "tailrace_frames_appended_total" in metrics
        a.terminate()
        assert await a.exit_code() == 0
        assert await Workers(redis).list_workers(bench.pool) == []
    assert '"action":"response_claimed"' in a.logs()
    assert "watch me" not in a.log_path.read_text()


async def test_the_broker_is_killed_in_mid_answer_and_the_answer_goes_on_when_it_is_back(
    redis_url: str, tmp_path: Path
) -> None:
    with local.LocalKafka(settings=local.QUICK_RETURN) as broker:
        await asyncio.to_thread(broker.apply_topics)
        async with workers.bench(broker.bootstrap, redis_url, tmp_path) as bench:
            await bench.serve()
            asked = [
                await bench.ask(
                    f"outage {p}",
                    partition=p,
                    cues={"script_tokens": "400", "script_pace_ms": "20"},
                )
                for p in range(4)
            ]
            for request in asked:
                await bench.tokens(request.rid, 20)
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(AWAY_S)
            await asyncio.to_thread(broker.start)
            later = await bench.ask(
                "after", partition=5, cues={"script_tokens": "5", "script_pace_ms": "1"}
            )

            for request in asked:
                answer = await bench.done(request.rid, 50)
                assert answer.text == scripted.expected_text(request.messages, 400)
                assert answer.kinds().count("End") == sum(
                    isinstance(r, records.End) for _, r, _ in answer.records
                )
                assert sum(isinstance(outcome, fold.Ended) for _, _, outcome in answer.records) == 1
            assert (await bench.done(later.rid, 30)).ended.status == "completed"


async def test_cancels_that_race_the_end_leave_one_terminal_that_all_agree_on(
    bench: workers.Bench,
) -> None:
    await bench.serve()
    asked = [
        await bench.ask(
            f"race {i}", partition=i % 8, cues={"script_tokens": "20", "script_pace_ms": "2"}
        )
        for i in range(40)
    ]

    async def cancel(i: int) -> None:
        await asyncio.sleep(i * CANCEL_STEP_S)
        await bench.cancel(asked[i])

    await asyncio.gather(*[cancel(i) for i in range(40)])
    for request in asked:
        answer = await bench.done(request.rid)
        assert sum(isinstance(outcome, fold.Ended) for _, _, outcome in answer.records) == 1
        assert scripted.expected_text(request.messages, 20).startswith(answer.text)
    for p in range(8):
        await until_committed(bench, p, 5)


async def test_an_id_of_another_version_is_skipped(bench: workers.Bench) -> None:
    strange = ids.PREFIX + "A" * 32
    request = records.Request(
        strange, workers.OWNER, workers.MODEL_NAME, [], records.Sampling(1), {}
    )
    await bench.append(
        topics.requests(bench.pool, "interactive"), 3, strange, records.encode(request)
    )
    await bench.append(topics.requests(bench.pool, "interactive"), 3, "noise", os.urandom(50))
    inside = await bench.serve()
    await until_committed(bench, 3, 2)
    assert await inside.leave() == 0
