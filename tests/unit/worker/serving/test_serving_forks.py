"""Serving responses that begin with tokens of others, on the in-memory log (log rule §19)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tailrace.protocol import ids, records, topics
from tailrace.verify import checks, history, reference_fold, report
from tests.support import cases, memory_worker, scripted_content
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import Foreign, Worker, answer, cues, new_request
from tests.unit.worker.serving import test_response_task
from tests.unit.worker.serving.test_response_task import metered, tokens
from tests.unit.worker.serving.test_serving_items import asking, call_ids, items
from worker.engines import scripted
from worker.serving import replays
from worker.serving.attempt import Stop
from worker.serving.outcome import Outcome

looks_often = test_response_task.looks_often
REPLACED = " 天 instead"
STRANGER = records.Owner("https://tests", "mallory")


def forked(
    source: records.Request, memory: MemoryLog, at: int, replace: str = "", **more: Any
) -> records.Request:
    """A fork as a gateway makes it: the prompt is the source's."""
    end = memory.partition(topics.TOKENS, 0).end
    rid = new_request(memory).rid
    assert ids.parse(rid).offset == end
    fields = {"fork": records.Fork(source.rid, at, replace), **more}
    return msgspec.structs.replace(source, rid=rid, echo={**source.echo, "id": rid}, **fields)


async def done(worker: Worker, request: records.Request) -> memory_worker.Answer:
    assert await worker.serve(request).outcome() is Outcome.DONE
    return answer(worker.memory, request.rid)


def judged(memory: MemoryLog, *requests: records.Request) -> report.Report:
    """What verify says of these responses."""
    found = history.History()
    for request in requests:
        response = history.Response(request.rid, 0)
        topic, name = memory_worker.REQUESTS, request.rid.encode()
        asked = next(r for r in memory.records(topic, 0) if r.key == name)
        response.requests.append(
            history.RequestEntry(topic, asked.offset, asked.timestamp, request)
        )
        for r in memory.records(topics.TOKENS, 0):
            record = records.token_of(r.key, r.value)
            if record is not None and record.rid == request.rid:
                response.entries.append(history.Entry(r.offset, r.timestamp, record))
        response.bills = [m for m in metered(memory) if m.rid == request.rid]
        found.responses[request.rid] = response
    found.has_usage = True
    return checks.judge(found, checks.Options(settle_s=0, content=scripted_content.content))[0]


def accounted(memory: MemoryLog, request: records.Request) -> reference_fold.Account:
    """The judge's own fold of a response."""
    written = answer(memory, request.rid).records
    return reference_fold.account([history.Entry(n, 0, r) for n, r in enumerate(written)])


def passes(memory: MemoryLog, *requests: records.Request) -> None:
    found = judged(memory, *requests)
    assert found.verdict is report.Verdict.PASS, "\n".join(found.lines())


@cases.each("replace", ["", REPLACED])
@cases.each("at", [0, 1, 7, 20, 30])
async def test_a_fork_continues_what_it_copied(at: int, replace: str) -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30), sampling=records.Sampling(30))
        copied_from = (await done(worker, source)).fold.ids
        fork = forked(source, worker.memory, at, replace, sampling=records.Sampling(40))
        fork.echo["metadata"] = cues(60)

        response = await done(worker, fork)
        begin = [*copied_from[:at], *scripted.text_ids(replace)]
        expected = [*begin, *scripted.answer(fork, begin)][: len(begin) + 40]
        assert response.fold.ids == expected
        assert response.text == scripted.Detokenizer().push(expected)
        assert response.claims[0].copied == response.fold.copied == len(begin)
        prompt = answer(worker.memory, source.rid).ended.usage.input_tokens
        usage = response.ended.usage
        assert usage.input_tokens == prompt + len(begin) == response.claims[0].prompt_tokens
        assert usage.output_tokens == len(expected) - len(begin)
        assert metered(worker.memory)[-1].usage == usage
        passes(worker.memory, source, fork)


async def test_a_fork_of_a_fork_and_its_source_s_own_output_limit() -> None:
    """`max_tokens` counts what is new."""
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(20))
        await done(worker, source)
        first = forked(source, worker.memory, 10, REPLACED, sampling=records.Sampling(5))
        middle = await done(worker, first)
        assert (middle.fold.generated_count, middle.ended.reason) == (5, "length")
        second = forked(first, worker.memory, middle.fold.next - 1)
        second.echo["metadata"] = cues(100)
        last = await done(worker, msgspec.structs.replace(second, sampling=records.Sampling(9)))
        assert last.fold.ids[: middle.fold.next - 1] == middle.fold.ids[:-1]
        assert last.fold.generated_count == 9


async def test_a_running_response_is_forked() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=memory_worker.ENDLESS)
        job = worker.serve(source)
        await tokens(worker.memory, source.rid, 12)
        fork = forked(source, worker.memory, 12)
        fork.echo["metadata"] = cues(20)
        response = await done(worker, fork)
        assert response.fold.ids == scripted.expected_ids(source.messages, 20)
        assert not job.task.done()
        job.serving.interrupt(Stop.DRAIN)


async def test_a_cancelled_fork_is_billed_for_what_it_made() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        await done(worker, source)
        fork = forked(source, worker.memory, 12)
        fork.echo["metadata"] = memory_worker.ENDLESS
        job = worker.serve(fork)
        await tokens(worker.memory, fork.rid, 20)
        Foreign(worker.memory, fork).cancel()
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, fork.rid)
        assert response.ended.usage.output_tokens == response.fold.next - 12
        assert response.ended.usage.input_tokens == response.claims[0].prompt_tokens > 12
        passes(worker.memory, source, fork)


async def test_items_of_a_fork_are_its_own() -> None:
    async with memory_worker.worker() as worker:
        source = asking(worker.memory)
        whole = await done(worker, source)
        for at in range(0, whole.fold.next + 1, 5):
            fork = forked(source, worker.memory, at)
            response = await done(worker, fork)
            assert response.fold.ids == whole.fold.ids
            assert items(worker.memory, fork.rid) == items(worker.memory, source.rid)
            assert call_ids(worker.memory, fork.rid) == [ids.call_id(fork.rid, n) for n in (0, 1)]
            usage = response.ended.usage
            assert usage.output_tokens == whole.fold.next - at
            thought = whole.ended.usage.reasoning_tokens
            assert usage.reasoning_tokens == response.fold.reasoning <= thought
            assert accounted(worker.memory, fork).reasoning == usage.reasoning_tokens
            passes(worker.memory, source, fork)


async def test_the_reasoning_that_was_copied_is_not_counted() -> None:
    async with memory_worker.worker() as worker:
        source = asking(worker.memory)
        await done(worker, source)
        part = accounted(worker.memory, source).parts[0]
        behind = await done(worker, forked(source, worker.memory, part.stop))
        assert behind.ended.usage.reasoning_tokens == 0
        inside = await done(worker, forked(source, worker.memory, part.first + 5))
        assert inside.ended.usage.reasoning_tokens == part.stop - part.first - 5


async def left(worker: Worker, fork: records.Request, copied: int, frames: list[list[int]]) -> None:
    """Another worker has claimed the fork, has written this, and is gone."""
    other = Foreign(worker.memory, fork)
    model = scripted.Scripted.model_rev, scripted.Scripted.tokenizer_digest
    other.write(
        records.Claim(
            fork.rid,
            "a",
            None,
            fork.owner,
            other.name,
            memory_worker.REQUESTS,
            0,
            *model,
            prompt_tokens=100 + copied,
            copied=copied,
        )
    )
    written: list[int] = []
    for each in frames:
        state = answer(worker.memory, fork.rid).fold
        text = scripted.Detokenizer().push([*written, *each])[state.text_length :]
        other.write(records.Tok(fork.rid, "a", state.next, each, text, state.h))
        written += each
    await worker.caught_up()


@pytest.mark.parametrize("at_once", [0, 10_000], ids=["in a thread", "at once"])
@pytest.mark.parametrize("cut", [0, 1, 9, 10, 12, 20])
async def test_a_takeover_copies_what_is_missing_and_nothing_twice(
    cut: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "AT_ONCE_IDS", at_once)
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        theirs = (await done(worker, source)).fold.ids
        fork = forked(source, worker.memory, 10, REPLACED)
        fork.echo["metadata"] = cues(40)
        begin = [*theirs[:10], *scripted.text_ids(REPLACED)]
        expected = [*begin, *scripted.answer(fork, begin)]
        frames = [f for f in (expected[:cut][: len(begin)], expected[:cut][len(begin) :]) if f]
        await left(worker, fork, len(begin), frames)
        job = worker.serve(fork)
        worker.time.advance(30)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, fork.rid)
        assert response.fold.ids == expected
        assert response.fold.epoch == 2
        assert response.claims[1].copied == len(begin)
        assert response.text == scripted.Detokenizer().push(expected)
        assert response.ended.usage.output_tokens == 40 - len(begin)
        assert response.ended.usage.input_tokens == response.claims[1].prompt_tokens


def forget(worker: Worker) -> None:
    """The log keeps nothing of what was generated so far."""
    worker.memory.delete_below(topics.TOKENS, 0, worker.memory.partition(topics.TOKENS, 0).end)


async def test_what_was_accepted_counts_whatever_became_of_the_source() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        theirs = (await done(worker, source)).fold.ids
        forget(worker)
        for have, status in ((10, "completed"), (9, "failed")):
            fork = forked(source, worker.memory, 10)
            fork.echo["metadata"] = cues(30)
            await left(worker, fork, 10, [theirs[:have]])
            job = worker.serve(fork)
            worker.time.advance(30)
            assert await job.outcome() is Outcome.DONE
            response = answer(worker.memory, fork.rid)
            assert response.ended.status == status
            assert response.fold.ids == (theirs if status == "completed" else theirs[:9])
            assert response.ended.usage.output_tokens == (20 if status == "completed" else 0)
        assert response.ended.error is not None
        assert response.ended.error[0] == "previous_response_not_found"


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 20])
async def test_a_source_in_the_request_is_copied_as_one_in_the_log(cut: int) -> None:
    """The gateway found it in the archive; nobody looks for it in the log."""
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        theirs = (await done(worker, source)).fold.ids
        live = forked(source, worker.memory, 10, REPLACED)
        live.echo["metadata"] = cues(40)
        expected = await done(worker, live)
        model = scripted.Scripted.model_rev, scripted.Scripted.tokenizer_digest
        kept = records.ForkSource(*model, theirs[:10])
        fork = forked(source, worker.memory, 10, fork=records.Fork(source.rid, 10, REPLACED, kept))
        fork.echo["metadata"] = cues(40)
        if cut:
            await left(worker, fork, expected.fold.copied, [expected.fold.ids[:cut]])
        worker.memory.reads.clear()
        job = worker.serve(fork)
        worker.time.advance(30)
        assert await job.outcome() is Outcome.DONE
        of_source = topics.TOKENS, 0, ids.parse(source.rid).offset
        assert of_source not in [read[:3] for read in worker.memory.reads]
        response = answer(worker.memory, fork.rid)
        assert (response.fold.ids, response.text) == (expected.fold.ids, expected.text)
        if not cut:
            assert response.ended.usage == expected.ended.usage
            passes(worker.memory, source, live, fork)
            passes(worker.memory, fork)
        for begin in (theirs[1:10], theirs[:9], theirs[:11]):
            wrong = records.ForkSource(*model, begin)
            other = msgspec.structs.replace(
                fork, fork=records.Fork(source.rid, 10, REPLACED, wrong)
            )
            assert judged(worker.memory, other).failed(), begin


async def test_a_source_in_the_request_must_fit_the_model_and_be_long_enough() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory)
        tokenizer = scripted.Scripted.tokenizer_digest
        for kept, word in (
            (records.ForkSource("another", tokenizer, [1, 2, 3]), "another revision"),
            (records.ForkSource(scripted.Scripted.model_rev, "another", [1, 2, 3]), "revision"),
            (records.ForkSource(scripted.Scripted.model_rev, tokenizer, [1, 2]), "2 tokens"),
        ):
            of = records.Fork(source.rid, 3, "", kept)
            code, message = await refused(worker, forked(source, worker.memory, 3, fork=of))
            assert (code, word in message) == ("invalid_value", True)


async def refused(worker: Worker, fork: records.Request) -> tuple[str, str]:
    response = await done(worker, fork)
    assert response.ended.error is not None
    assert (response.fold.next, response.ended.usage.output_tokens) == (0, 0)
    assert metered(worker.memory)[-1].usage.input_tokens == response.claims[0].prompt_tokens
    return response.ended.error


async def test_a_source_that_cannot_be_continued_fails_the_fork() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        await done(worker, source)
        unknown = msgspec.structs.replace(source, rid=new_request(worker.memory).rid)
        code, message = await refused(worker, forked(unknown, worker.memory, 1))
        assert (code, unknown.rid in message) == ("previous_response_not_found", True)
        code, message = await refused(worker, forked(source, worker.memory, 31))
        assert (code, "30 tokens" in message) == ("invalid_value", True)
        foreign = forked(source, worker.memory, 3, owner=STRANGER)
        assert (await refused(worker, foreign))[0] == "previous_response_not_found"
        long = forked(source, worker.memory, 30, "x" * 40_000)
        assert (await refused(worker, long))[0] == "context_length_exceeded"
        worker.engine.tokenizer_digest = "scripted-2"
        code, message = await refused(worker, forked(source, worker.memory, 3))
        assert (code, "another revision" in message) == ("invalid_value", True)


async def test_the_end_of_an_answer_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(8))
        theirs = (await done(worker, source)).fold.ids
        monkeypatch.setattr(scripted.Scripted, "stop_ids", frozenset({theirs[-1]}))
        fork = forked(source, worker.memory, 8, REPLACED)
        fork.echo["metadata"] = cues(30)
        response = await done(worker, fork)
        begin = [*theirs[:7], *scripted.text_ids(REPLACED)]
        assert response.fold.ids == [*begin, *scripted.answer(fork, begin)]
        assert response.claims[0].copied == len(begin)
        ending = scripted.text_ids("x")[0]
        monkeypatch.setattr(scripted.Scripted, "stop_ids", frozenset({ending}))
        assert (await refused(worker, forked(source, worker.memory, 3, "x")))[0] == "invalid_value"


async def test_a_stop_string_in_what_is_copied_ends_the_fork_as_a_takeover_would() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        whole = await done(worker, source)
        stop = whole.text[12:18]
        fork = forked(source, worker.memory, 20, sampling=records.Sampling(50, stop=(stop,)))
        response = await done(worker, fork)
        assert (response.ended.reason, response.text) == (
            "stop",
            whole.text[: whole.text.index(stop)],
        )
        assert response.ended.usage.output_tokens == 0


async def test_log_probabilities_are_those_of_new_tokens_only() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        await done(worker, source)
        sampling = records.Sampling(100, logprobs=2)
        fork = forked(source, worker.memory, 10, sampling=sampling)
        response = await done(worker, fork)
        frames = [r for r in response.records if isinstance(r, records.Tok)]
        assert [len(f.lp) for f in frames if f.seq < 10] == [0]
        assert all(len(f.lp) == len(f.ids) for f in frames if f.seq >= 10)
        passes(worker.memory, source, fork)


async def test_verify_sees_a_token_too_many_and_another_source() -> None:
    async with memory_worker.worker() as worker:
        source = new_request(worker.memory, metadata=cues(30))
        other = new_request(worker.memory, "other", metadata=cues(30))
        theirs = (await done(worker, source)).fold.ids
        others = (await done(worker, other)).fold.ids
        for begin in (theirs[:11], others[:10], theirs[:9]):
            fork = forked(source, worker.memory, 10)
            fork.echo["metadata"] = cues(30)
            await left(worker, fork, len(begin), [begin])
            await done_by_takeover(worker, fork)
            found = judged(worker.memory, source, fork)
            assert found.failed(), begin


async def done_by_takeover(worker: Worker, fork: records.Request) -> None:
    job = worker.serve(fork)
    worker.time.advance(30)
    await job.outcome()
