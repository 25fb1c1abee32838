"""Workers with the scripted engine on a real Kafka: rebalances, a process that dies, and what a
commit tells the next worker. What needs no broker is proven on the log in memory
(`tests/unit/worker`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace.protocol import fold, records, topics
from tests.support import waiting, workers
from worker.engines import scripted
from worker.serving import takeover

FAST = {"script_pace_ms": "1"}
# Whatever a busy machine makes of it, it is not over before the test ends it.
ENDLESS = {"script_tokens": "100000", "script_pace_ms": "10"}
SESSION_MS = 1500


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


async def finished(bench: workers.Bench, partition: int, offset: int) -> None:
    """Wait until the group committed past `offset`."""

    async def committed() -> bool:
        return (await bench.committed(partition))[0] > offset

    await waiting.eventually(committed, f"partition {partition} committed past {offset}")


async def ended_by_its_client(bench: workers.Bench, request: records.Request) -> workers.Answer:
    """Cancel an endless answer. Its text is that of one worker, without a seam."""
    await bench.cancel(request)
    answer = await bench.done(request.rid)
    made = answer.fold.next
    assert answer.fold.ids == scripted.expected_ids(request.messages, made)
    assert scripted.expected_text(request.messages, made).startswith(answer.text)
    assert answer.text
    return answer


def claimed_by(answer: workers.Answer) -> list[str]:
    return [worker.split("/")[0] for _, worker in answer.fold.claims]


async def test_a_killed_workers_answer_is_continued_and_reads_as_if_nothing_had_happened(
    bench: workers.Bench,
) -> None:
    a = await bench.worker(session_ms=SESSION_MS).ready()
    request = await bench.ask("take over", cues=ENDLESS)
    await bench.tokens(request.rid, 20)
    b = await bench.serve()
    a.kill()

    await bench.until(request.rid, goes_on_at_the_second)

    answer = await ended_by_its_client(bench, request)
    assert claimed_by(answer) == [a.name, b.name]
    await finished(bench, 0, 0)


def goes_on_at_the_second(answer: workers.Answer) -> bool:
    return answer.fold.epoch == 2 and answer.fold.next > answer.fold.starts[-1] + 5


async def test_what_a_drained_worker_cannot_finish_is_yielded_and_goes_on_at_its_successor(
    bench: workers.Bench,
) -> None:
    a = await bench.serve(TAILRACE_DRAIN_S="0")
    request = await bench.ask("hand over", cues=ENDLESS)
    await bench.tokens(request.rid, 20)
    b = await bench.serve()
    assert await a.leave() == 0

    await bench.until(request.rid, goes_on_at_the_second)

    answer = await ended_by_its_client(bench, request)
    assert answer.kinds().count("Yield") == 1
    assert claimed_by(answer) == [a.name, b.name]
    await finished(bench, 0, 0)


async def test_requests_placed_during_a_drain_start_at_once_and_what_runs_is_not_taken_over(
    bench: workers.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: a draining worker kept its partitions, paused, and what was placed there waited for
    up to 58 s while other workers were ready."""
    # Both workers run in this process: where it stands still for 2 s, neither is lost.
    monkeypatch.setattr(takeover, "GRACE_MS", takeover.HANDOVER_GRACE_MS)
    a = await bench.serve(TAILRACE_DRAIN_S="600")
    running = await bench.ask("long", cues=ENDLESS)
    await bench.tokens(running.rid, 5)
    b = await bench.serve()

    a.app.leave()
    placed = [
        await bench.ask(f"short {p}", partition=p, cues={"script_tokens": "5", **FAST})
        for p in range(bench.layout.partitions)
    ]
    short = [await bench.done(request.rid) for request in placed]

    assert [claimed_by(answer) for answer in short] == [[b.name]] * len(short)
    assert (await bench.read(running.rid)).fold.phase is fold.Phase.LIVE
    answer = await ended_by_its_client(bench, running)
    assert claimed_by(answer) == [a.name]
    assert await asyncio.wait_for(a.task, 60) == 0
    for p in range(bench.layout.partitions):
        await finished(bench, p, 1 if p == 0 else 0)


async def test_a_redelivered_finished_response_is_known_from_the_commits_metadata(
    bench: workers.Bench,
) -> None:
    first = await bench.serve(TAILRACE_DRAIN_S="0")
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
    await finished(bench, 2, 1)

    assert (await bench.read(done.rid)).kinds().count("Claim") == 1


@pytest.mark.nightly
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


@pytest.mark.nightly
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
