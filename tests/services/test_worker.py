"""Workers with the scripted engine on a real Kafka."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio

from tailrace.local import ports
from tailrace.protocol import fold, ids, records, topics
from tests.support import waiting, workers
from worker.engines import scripted

PAST_TTL_S = 0.2  # by the broker's clock, more than a time to live of 50 ms

FAST = {"script_pace_ms": "1"}
SESSION_MS = 1500


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


async def test_an_answer_is_given_again_as_long_as_redis_has_it(
    bench: workers.Bench, redis_url: str
) -> None:
    pools = {bench.pool: {"models": [workers.MODEL_NAME], "cached_answers": {"ttl_s": 60}}}
    engine = scripted.Scripted(capacity=8, max_model_len=8192)
    inside = await bench.serve(instance=engine, TAILRACE_POOLS=json.dumps(pools))

    async def ask(partition: int) -> workers.Answer:
        request = await bench.ask(
            "once",
            partition=partition,
            cues={"script_tokens": "50", **FAST},
            sampling=records.Sampling(4096, temperature=0.0),
        )
        return await bench.done(request.rid)

    async with redis.asyncio.from_url(redis_url) as client:
        held = f"answer:{{{bench.pool}}}:*"
        first = await ask(0)

        async def kept() -> bool:
            return bool(await client.keys(held))

        await waiting.eventually(kept, "the answer is kept")
        second = await ask(1)
        rid = first.records[0][1].rid
        assert second.fold.answer_of == rid
        assert (second.text, second.fold.ids) == (first.text, first.fold.ids)
        assert second.ended.usage == first.ended.usage
        assert engine._begun == 1

        async def billed() -> bool:
            return any(
                b'"answer_of":"%s"' % rid.encode() in each
                for each in await bench.beside(topics.USAGE, rid)
            )

        await waiting.eventually(billed, "its bill says so")
        await client.delete(*await client.keys(held))  # emptied
        assert (await ask(2)).fold.answer_of == ""
    assert engine._begun == 2
    await inside.leave()

    # Redis is gone.
    nowhere = f"redis://127.0.0.1:{ports.free_port()}/0"
    await bench.serve(TAILRACE_POOLS=json.dumps(pools), TAILRACE_REDIS_CACHE=nowhere)
    assert (await ask(3)).fold.answer_of == ""


async def finished(bench: workers.Bench, partition: int, offset: int) -> None:
    """Wait until the group committed past `offset`."""

    async def committed() -> bool:
        return (await bench.committed(partition))[0] > offset

    await waiting.eventually(committed, f"partition {partition} committed past {offset}")


async def test_a_request_becomes_one_claim_its_tokens_and_one_end_in_this_order(
    bench: workers.Bench,
) -> None:
    await bench.serve()
    request = await bench.ask("order", cues={"script_tokens": "50", **FAST})

    answer = await bench.done(request.rid)

    kinds = answer.kinds()
    assert kinds[0] == "Claim"
    assert kinds[-1] == "End"
    assert set(kinds[1:-1]) == {"Tok"}
    assert answer.text == scripted.expected_text(request.messages, 50)
    assert answer.ended.status == "completed"
    assert answer.ended.usage.output_tokens == 50
    assert answer.fold.ignored == {}
    assert answer.fold.first is not None
    assert answer.fold.first.echo == request.echo


async def test_a_finished_response_is_metered_once_and_its_offset_committed_with_the_claims_offset(
    bench: workers.Bench,
) -> None:
    await bench.serve()
    request = await bench.ask("meter", cues={"script_tokens": "3", **FAST})
    await bench.done(request.rid)

    await finished(bench, 0, 0)
    usage, audit = (
        await bench.beside(topics.USAGE, request.rid),
        await bench.beside(topics.AUDIT, request.rid),
    )
    assert len(usage) == len(audit) == 1
    metered = msgspec.json.decode(usage[0], type=records.Metered)
    assert (metered.rid, metered.status, metered.usage.output_tokens, metered.claims) == (
        request.rid,
        "completed",
        3,
        1,
    )
    assert metered.first_token_ms is not None
    assert 0 <= metered.first_token_ms < 60_000
    assert b"meter" not in audit[0].replace(b"metered", b"")  # no prompt


async def test_commits_stop_below_the_first_unfinished_request(bench: workers.Bench) -> None:
    await bench.serve()
    await bench.ask("first", cues={"script_tokens": "1", **FAST})
    hanging = await bench.ask(
        "second", cues={"script_tokens": "5", "script_fault": "hang", "script_fault_at": "2"}
    )
    later = [await bench.ask(f"later {i}", cues={"script_tokens": "1", **FAST}) for i in range(5)]
    for request in later:
        await bench.done(request.rid)
    await finished(bench, 0, 0)
    # One commit covers all partitions: when this one is there, a wrong one would be there too.
    elsewhere = await bench.ask("elsewhere", partition=1, cues={"script_tokens": "1", **FAST})
    await bench.done(elsewhere.rid)
    await finished(bench, 1, 0)

    low, metadata = await bench.committed(0)
    claim = (await bench.read(hanging.rid)).records[0]
    assert low == 1
    assert int(metadata) <= claim[0]

    await bench.cancel(hanging)
    await finished(bench, 0, 6)


async def test_a_cancel_in_mid_answer_stops_the_engine_and_nothing_is_written_after_it(
    bench: workers.Bench,
) -> None:
    await bench.serve()
    request = await bench.ask("cancel me", cues={"script_tokens": "100000", "script_pace_ms": "5"})
    await bench.tokens(request.rid, 5)

    await bench.cancel(request)
    answer = await bench.done(request.rid)
    await finished(bench, 0, 0)

    assert answer.ended.status == "cancelled"
    later = await bench.read(request.rid)
    # A later response of the same engine ends: without W6 the first one would go on beside it.
    after = await bench.ask("after", cues={"script_tokens": "50", "script_pace_ms": "5"})
    await bench.done(after.rid)
    assert len((await bench.read(request.rid)).records) == len(later.records)


async def test_a_response_cancelled_before_any_claim_is_never_claimed(bench: workers.Bench) -> None:
    rid = await bench.mint(1)
    request = await bench.ask("too late", partition=1, rid=rid, cues={"script_tokens": "5", **FAST})
    await bench.cancel(request)
    await bench.serve()
    await finished(bench, 1, 0)

    answer = await bench.read(rid)
    assert answer.kinds() == ["Cancel"]
    assert answer.ended.status == "cancelled"


async def test_a_request_redelivered_after_its_end_is_finished_without_a_claim(
    bench: workers.Bench,
) -> None:
    await bench.serve()
    request = await bench.ask("again", cues={"script_tokens": "4", **FAST})
    await bench.done(request.rid)
    await bench.append(
        topics.requests(bench.pool, "interactive"), 0, request.rid, records.encode(request)
    )
    await finished(bench, 0, 1)

    assert (await bench.read(request.rid)).kinds().count("Claim") == 1


async def test_a_killed_workers_answer_is_continued_and_reads_as_if_nothing_had_happened(
    bench: workers.Bench,
) -> None:
    a = await bench.worker(session_ms=SESSION_MS).ready()
    request = await bench.ask(
        "take over", cues={"script_tokens": "1500", "script_pace_ms": "10"}
    )  # not over before the second one has started
    await bench.tokens(request.rid, 20)
    await bench.worker(session_ms=SESSION_MS).ready()
    a.kill()

    answer = await bench.done(request.rid)

    assert answer.text == scripted.expected_text(request.messages, 1500)
    assert answer.fold.ids == scripted.expected_ids(request.messages, 1500)
    assert answer.fold.epoch == 2
    assert answer.kinds().count("End") == 1
    assert len({worker for _, worker in answer.fold.claims}) == 2


async def test_a_drained_worker_yields_and_the_next_one_goes_on_at_once(
    bench: workers.Bench,
) -> None:
    a = await bench.worker(session_ms=SESSION_MS, TAILRACE_DRAIN_S="0").ready()
    request = await bench.ask(
        "drain", cues={"script_tokens": "1500", "script_pace_ms": "10"}
    )  # not over before the second one has started
    await bench.tokens(request.rid, 20)
    await bench.worker(session_ms=SESSION_MS).ready()
    owner = (await bench.read(request.rid)).fold.claims[0][1]
    first, second = (bench.workers[0], bench.workers[1])
    assert owner.startswith(first.name)

    a.terminate()
    assert await a.exit_code() == 0, a.logs()
    answer = await bench.done(request.rid, 90.0)

    assert "Yield" in answer.kinds()
    assert answer.text == scripted.expected_text(request.messages, 1500)
    assert answer.fold.epoch == 2
    assert answer.fold.claims[1][1].startswith(second.name)


async def test_what_a_drained_worker_cannot_finish_is_with_its_successor_before_it_stops(
    bench: workers.Bench,
) -> None:
    """Else every reader would wait for a rebalance."""
    a = await bench.worker(session_ms=SESSION_MS, TAILRACE_DRAIN_S="4").ready()
    request = await bench.ask("hand over", cues={"script_tokens": "1500", "script_pace_ms": "10"})
    await bench.tokens(request.rid, 20)
    b = await bench.worker(session_ms=SESSION_MS).ready()

    a.terminate()
    assert await a.exit_code() == 0, a.logs()
    answer = await bench.done(request.rid, 90.0)

    assert answer.kinds().count("Yield") == 1
    assert answer.text == scripted.expected_text(request.messages, 1500)
    lines = [
        json.loads(line) for line in b.log_path.read_text().splitlines() if line.startswith("{")
    ]
    alone = next(
        line
        for line in lines
        if line["action"] == "partitions_assigned"
        and len(line["partitions"]) == bench.layout.partitions
    )
    last = [
        r
        for _, r, _ in answer.records
        if isinstance(r, records.Tok) and r.own == answer.fold.claims[0][0]
    ][-1]
    assert datetime.datetime.fromisoformat(alone["time"]).timestamp() * 1000 < last.ts


async def test_a_drain_finishes_what_fits_into_its_time(bench: workers.Bench) -> None:
    a = await bench.serve(TAILRACE_DRAIN_S="10")
    request = await bench.ask("short", cues={"script_tokens": "60", "script_pace_ms": "10"})
    await bench.tokens(request.rid, 5)
    assert await a.leave() == 0

    answer = await bench.read(request.rid)
    assert answer.ended.status == "completed"
    assert "Yield" not in answer.kinds()
    await bench.serve()  # the next worker commits what ended after the first had left the group
    await finished(bench, 0, 0)
    assert (await bench.read(request.rid)).kinds().count("Claim") == 1


async def test_requests_placed_during_a_drain_start_at_once_and_what_runs_is_not_taken_over(
    bench: workers.Bench,
) -> None:
    """Symptom: a draining worker kept its partitions, paused, and what was placed there waited for
    up to 58 s while other workers were ready."""
    long = {"script_tokens": "1500", "script_pace_ms": "10"}
    count = bench.layout.partitions
    a = await bench.worker(session_ms=SESSION_MS, TAILRACE_DRAIN_S="60").ready()
    running = [await bench.ask(f"long {p}", partition=p, cues=long) for p in range(count)]
    for request in running:
        await bench.tokens(request.rid, 5)
    b = await bench.worker(session_ms=SESSION_MS).ready()

    began_ms = time.time() * 1000
    a.terminate()
    placed = [
        await bench.ask(f"short {p}", partition=p, cues={"script_tokens": "5", **FAST})
        for p in range(count)
    ]
    short = [await bench.done(request.rid) for request in placed]
    long_ones = [await bench.done(request.rid, 60.0) for request in running]

    waited_ms = max(s.times[0] for s in short) - began_ms
    print(f"\n{count} questions during a drain: the last claimed {waited_ms:.0f} ms after SIGTERM")
    assert await a.exit_code() == 0, a.logs()
    assert max(s.ended.timestamp for s in short) < min(x.ended.timestamp for x in long_ones)
    assert {worker.split("/")[0] for s in short for _, worker in s.fold.claims} == {b.name}
    assert {worker.split("/")[0] for x in long_ones for _, worker in x.fold.claims} == {a.name}
    assert {x.fold.epoch for x in long_ones} == {1}
    for answer, request in zip(long_ones, running, strict=True):
        assert answer.text == scripted.expected_text(request.messages, 1500)
    for p in range(count):
        await finished(bench, p, 1)


async def test_garbage_in_both_topics_is_skipped_and_committed_past(bench: workers.Bench) -> None:
    requests = topics.requests(bench.pool, "interactive")
    good = await bench.mint(0)
    wrong_place = records.encode(
        records.Request(
            await bench.mint(3), workers.OWNER, workers.MODEL_NAME, [], records.Sampling(1), {}
        )
    )
    for value in (
        b"",
        b"\xff\xfe",
        b"{}",
        b'{"t":"REQUEST","rid":"x"}',
        wrong_place,
        os.urandom(300),
    ):
        await bench.append(requests, 0, "garbage", value)
        await bench.append(topics.TOKENS, 0, good, value)
    await bench.serve()
    request = await bench.ask("still fine", rid=good, cues={"script_tokens": "4", **FAST})

    assert (await bench.done(request.rid)).ended.status == "completed"
    await finished(bench, 0, 6)


async def test_a_request_that_waited_too_long_is_ended_as_expired_without_a_token(
    bench: workers.Bench,
) -> None:
    request = await bench.ask("late", ttl_ms=50, cues={"script_tokens": "4", **FAST})
    await asyncio.sleep(PAST_TTL_S)
    await bench.ask("tells the broker's time", partition=0, cues={"script_tokens": "1", **FAST})
    await bench.serve()

    answer = await bench.done(request.rid)
    assert answer.kinds() == ["Claim", "End"]
    assert (answer.ended.reason, answer.ended.status) == ("expired", "failed")


async def test_a_warm_up_ends_at_once_with_no_output(bench: workers.Bench) -> None:
    await bench.serve()
    request = await bench.ask("warm", generate=False)
    answer = await bench.done(request.rid)
    assert answer.kinds() == ["Claim", "End"]
    assert (answer.ended.reason, answer.ended.status, answer.ended.usage.output_tokens) == (
        "warmup",
        "completed",
        0,
    )


@pytest.mark.parametrize(
    ("text", "more", "code"),
    [
        ("x " * 40_000, {}, "context_length_exceeded"),
        ("hi", {"model": "another"}, "model_not_found"),
    ],
    ids=["too long", "unknown model"],
)
async def test_an_invalid_request_fails_at_its_first_attempt_and_says_why(
    bench: workers.Bench, text: str, more: dict[str, Any], code: str
) -> None:
    await bench.serve()
    request = await bench.ask(text, **more)
    answer = await bench.done(request.rid)
    assert answer.kinds() == ["Claim", "End"]
    assert answer.ended.error is not None
    assert answer.ended.error[0] == code


async def test_an_engine_error_is_retried_and_then_fails_the_response_with_one_dead_letter(
    bench: workers.Bench,
) -> None:
    await bench.serve()
    request = await bench.ask(
        "broken",
        cues={"script_tokens": "9", "script_fault": "error", "script_fault_at": "4", **FAST},
    )
    answer = await bench.done(request.rid)
    await finished(bench, 0, 0)

    assert answer.ended.status == "failed"
    assert answer.fold.epoch == 4
    assert answer.text == scripted.expected_text(request.messages, 9)[: len(answer.text)]
    assert answer.fold.next == 4
    letters = await bench.beside(topics.DLQ, request.rid)
    assert len(letters) == 1
    assert b"broken" not in letters[0]


@pytest.mark.timeout(400)
async def test_a_request_that_kills_its_workers_fails_after_three_claims_and_its_neighbours_finish(
    bench: workers.Bench,
) -> None:
    await bench.worker(session_ms=SESSION_MS).ready()
    before = [
        await bench.ask(f"before {i}", cues={"script_tokens": "60", "script_pace_ms": "20"})
        for i in range(100)
    ]
    poison = await bench.ask(
        "poison",
        cues={
            "script_tokens": "9",
            "script_fault": "crash",
            "script_fault_at": "4",
            "script_pace_ms": "20",
        },
    )
    after = [
        await bench.ask(f"after {i}", cues={"script_tokens": "60", "script_pace_ms": "20"})
        for i in range(100)
    ]

    async def given_up() -> workers.Answer | None:
        """As an orchestrator does, start a worker again while the response has no end."""
        found = await bench.read(poison.rid)
        if found.fold.phase is fold.Phase.DONE:
            return found
        if bench.workers[-1].process.poll() is not None:
            bench.worker(session_ms=SESSION_MS)
        return None

    answer = await waiting.eventually(given_up, "the request is given up", within_s=180)
    assert answer is not None

    for request in before + after:
        good = await bench.done(request.rid)
        assert good.text == scripted.expected_text(request.messages, 60)
    assert answer.ended.status == "failed"
    assert answer.fold.epoch == 4
    assert not any(
        isinstance(r, records.Tok) and r.own == answer.fold.owner for _, r, _ in answer.records
    )
    await finished(bench, 0, 200)
    assert len(await bench.beside(topics.DLQ, poison.rid)) == 1


async def test_answers_that_lost_two_workers_in_mid_answer_go_on_together(
    bench: workers.Bench,
) -> None:
    """Symptom: they went on one at a time, each to its end; 24 of them took up to 232 s."""
    count = 24
    a = await bench.worker(session_ms=SESSION_MS).ready()
    asked = [
        await bench.ask(
            f"twice {i}", partition=i % 8, cues={"script_tokens": "500", "script_pace_ms": "40"}
        )
        for i in range(count)
    ]

    async def further(epoch: int, by: int) -> list[workers.Answer]:
        """The answers once all have lost `epoch - 1` workers and have `by` tokens since."""
        return [
            await bench.until(
                request.rid,
                lambda x: x.fold.epoch == epoch and x.fold.next >= x.fold.starts[-1] + by,
            )
            for request in asked
        ]

    await further(1, 20)
    b = await bench.worker(session_ms=SESSION_MS).ready()
    a.kill()
    await further(2, 20)
    await bench.worker(session_ms=SESSION_MS).ready()
    b.kill()
    third = await further(3, 1)

    assert {x.fold.phase for x in third} == {fold.Phase.LIVE}, "none waited for another's end"
    pauses = [pause_ms(x) for x in third]
    print(f"\n{count} answers without their second worker: longest pause {max(pauses)} ms")
    for request in asked:
        done = await bench.done(request.rid, 60)
        assert done.text == scripted.expected_text(request.messages, 500)


def pause_ms(answer: workers.Answer) -> int:
    """Broker time between the last owner's first frame and the frame before it."""
    last, before = answer.fold.claims[-1][0], 0
    for at, record in zip(answer.times, answer.records, strict=True):
        if isinstance(record[1], records.Tok):
            if record[1].own == last:
                return at - before
            before = at
    raise AssertionError("no frame of the last owner")


async def test_a_dead_engine_ends_the_process_and_its_attempts_count(bench: workers.Bench) -> None:
    a = await bench.worker(session_ms=SESSION_MS).ready()
    running = await bench.ask("neighbour", cues={"script_tokens": "4000", "script_pace_ms": "10"})
    await bench.tokens(running.rid, 5)
    await bench.ask(
        "deadly",
        partition=1,
        cues={"script_tokens": "9", "script_fault": "engine_death", "script_fault_at": "2"},
    )
    assert await a.exit_code() == 1, a.logs()
    assert "Yield" not in (await bench.read(running.rid)).kinds()


async def test_an_engine_that_hangs_for_several_responses_ends_the_process(
    bench: workers.Bench,
) -> None:
    """Symptom: they were tried again on the same engine until they had failed, though other workers
    were well."""
    a = await bench.worker(session_ms=SESSION_MS, TAILRACE_ENGINE_STALL_S="1").ready()
    running = await bench.ask("neighbour", cues={"script_tokens": "4000", "script_pace_ms": "10"})
    await bench.tokens(running.rid, 5)
    await bench.ask(
        "deadly",
        partition=1,
        cues={"script_tokens": "9", "script_fault": "engine_hang", "script_fault_at": "2"},
    )
    assert await a.exit_code() == 1, a.logs()
    assert (await bench.read(running.rid)).fold.phase is fold.Phase.LIVE


async def test_an_engine_that_says_nothing_is_given_up(bench: workers.Bench) -> None:
    await bench.serve(TAILRACE_ENGINE_STALL_S="1")
    request = await bench.ask(
        "hang", cues={"script_tokens": "9", "script_fault": "hang", "script_fault_at": "4", **FAST}
    )
    answer = await bench.done(request.rid)
    assert answer.ended.status == "failed"
    assert answer.fold.next == 4
    assert answer.fold.epoch <= 5, (
        "as often as any failure of the engine, and not up to the cap on claims"
    )
    await finished(bench, 0, 0)
    assert len(await bench.beside(topics.DLQ, request.rid)) == 1


async def test_a_response_of_another_log_is_never_claimed(bench: workers.Bench) -> None:
    rid = ids.mint(ids.Address(b"\0\0\0\0", 0, 0), os.urandom(ids.RANDOM_BYTES))
    await bench.ask("old log", rid=rid)
    await bench.serve()
    await finished(bench, 0, 0)
    assert (await bench.read(rid)).records == []


async def test_interactive_requests_go_before_batch_ones_that_came_earlier(
    bench: workers.Bench,
) -> None:
    batch = [
        await bench.ask(
            f"batch {i}", priority="batch", cues={"script_tokens": "20", "script_pace_ms": "5"}
        )
        for i in range(6)
    ]
    urgent = [
        await bench.ask(f"urgent {i}", cues={"script_tokens": "20", "script_pace_ms": "5"})
        for i in range(6)
    ]
    await bench.serve(TAILRACE_MAX_NUM_SEQS="2")
    ends = {r.rid: (await bench.done(r.rid)).ended.timestamp for r in batch + urgent}

    slow, quick = sorted(ends[r.rid] for r in batch), sorted(ends[r.rid] for r in urgent)
    assert (
        slow[4] > quick[3]
        # four may come before: what the worker had taken (capacity and queue) when it saw the first
        # urgent one
    )
    assert slow[-1] > quick[-1]


async def test_stop_strings_end_the_answer_before_them(bench: workers.Bench) -> None:
    await bench.serve()
    probe = await bench.ask("stop", cues={"script_tokens": "40", **FAST})
    text = scripted.expected_text(probe.messages, 40)
    stop = text[60:66]  # reaches over a token's edge
    request = await bench.ask(
        "stop", cues={"script_tokens": "40", **FAST}, sampling=records.Sampling(4096, stop=(stop,))
    )
    answer = await bench.done(request.rid)
    assert answer.text == text[: text.index(stop)]
    assert answer.ended.reason == "stop"


async def test_a_misconfigured_worker_says_which_variable_in_one_line_and_exits_2(
    bench: workers.Bench,
) -> None:
    broken = bench.worker(engine="ftp://nowhere")
    assert await broken.exit_code() == 2
    assert broken.logs().startswith("worker: TAILRACE_ENGINE: ")
    assert broken.logs().count("\n") == 1
