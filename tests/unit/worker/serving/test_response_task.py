"""Serving one response, from its request to DONE, on the in-memory log."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest

from tailrace import log, settings
from tailrace.protocol import fold, history, ids, records, topics
from tests.support import memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import (
    ENDLESS,
    POOL,
    Foreign,
    Served,
    Worker,
    answer,
    cues,
    new_request,
)
from tests.support.waiting import eventually
from worker.engines import base, scripted
from worker.queue import slots
from worker.queue.commit_tracker import Tracker
from worker.serving import attempt, claim_plan, response_state, response_task, takeover
from worker.serving.attempt import Stop
from worker.serving.outcome import Outcome
from worker.serving.response_state import APPEND_WITHIN_MS
from worker.serving.worker_context import SETTLE_S

GRACE_S = 2.0


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that waits for time alone looks again at once: time is the test's."""
    monkeypatch.setattr(response_task, "RECHECK_S", 0.005)
    monkeypatch.setattr(response_task, "UNAVAILABLE_S", 0.005)
    monkeypatch.setattr(response_state, "RETRY_S", 0.005)


async def several_looks(worker: Worker) -> None:
    """Return when the worker has looked at the clock several times more."""
    before = worker.time.reads
    await eventually(lambda: worker.time.reads > before + 20, "the worker looks", every_s=0.005)


async def tokens(memory: MemoryLog, rid: str, n: int) -> None:
    await eventually(
        lambda: answer(memory, rid).fold.next >= n, f"{n} tokens in the log", every_s=0.005
    )


def metered(memory: MemoryLog, topic: str = topics.USAGE) -> list[records.UsageRecord]:
    """Usage records, of all partitions."""
    return [
        msgspec.json.decode(r.value, type=records.UsageRecord)
        for r in memory.appended
        if r.topic == topic and r.value is not None
    ]


def dead_letters(memory: MemoryLog) -> list[records.DeadLetter]:
    return [
        msgspec.json.decode(r.value, type=records.DeadLetter)
        for r in memory.records(topics.DLQ, 0)
        if r.value is not None
    ]


async def test_a_new_request_becomes_one_claim_its_tokens_and_one_end() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20))
        job = worker.serve(request)

        assert await job.outcome() is Outcome.DONE

        response = answer(worker.memory, request.rid)
        assert response.kinds[0] == "Claim"
        assert response.kinds[-1] == "End"
        assert set(response.kinds[1:-1]) == {"Tok"}
        assert response.text == scripted.expected_text(request.messages, 20)
        assert response.ended.status == "completed"
        assert response.ended.usage.output_tokens == 20
        assert response.fold.ignored == {}
        claim = response.claims[0]
        assert (claim.prev, claim.worker, claim.echo) == (None, "this/1", request.echo)
        assert (claim.req_topic, claim.req_offset) == (job.delivery.topic, 0)
        assert claim.prompt_tokens == response.ended.usage.input_tokens > 0


async def test_a_finished_response_is_metered_once_and_gives_everything_back() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(3))
        job = worker.serve(request)
        await job.outcome()

        assert [(m.rid, m.claims, m.status) for m in metered(worker.memory)] == [
            (request.rid, 1, "completed")
        ]
        assert metered(worker.memory, topics.AUDIT) == metered(worker.memory)
        assert dead_letters(worker.memory) == []
        assert job.delivery.tracker.in_flight == 0
        assert job.delivery.tracker.next_commit(99) == (1, 99)
        assert worker.context.engine_slots.running == 0


async def test_a_commit_names_the_claim_of_a_finished_request_above_an_unfinished_one() -> None:
    async with memory_worker.worker() as worker:
        tracker = Tracker()
        worker.deliver(new_request(worker.memory), tracker)  # it stays unfinished
        request = new_request(worker.memory, metadata=cues(3))
        await worker.serve(request, worker.deliver(request, tracker)).outcome()
        assert tracker.next_commit(99) == (0, 0)


async def test_the_offset_is_not_finished_before_usage_and_audit_are_in_the_log() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(1))
        other = Foreign(worker.memory, request)
        other.claim("a")
        other.cancel()
        worker.memory.hold_acknowledgements()
        await worker.caught_up()
        job = worker.serve(request)
        await eventually(lambda: metered(worker.memory), "a usage record", every_s=0.005)

        assert job.delivery.tracker.in_flight == 1
        worker.memory.release_acknowledgements()
        assert await job.outcome() is Outcome.DONE
        assert job.delivery.tracker.in_flight == 0


async def test_a_redelivered_finished_request_is_finished_without_a_claim() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(3))
        await worker.serve(request).outcome()
        again = worker.serve(request)

        assert await again.outcome() is Outcome.DONE

        assert len(answer(worker.memory, request.rid).claims) == 1
        assert again.delivery.tracker.in_flight == 0
        # Each worker that finishes it writes the bill; copies are equal and count once.
        first, second = metered(worker.memory)
        assert first == second


async def test_a_redelivery_joins_and_both_deliveries_are_finished_together() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=ENDLESS)
        job = worker.serve(request)
        await tokens(worker.memory, request.rid, 3)
        later = Tracker()
        job.serving.join(worker.deliver(request, later))
        Foreign(worker.memory, request).cancel()

        assert await job.outcome() is Outcome.DONE
        assert job.delivery.tracker.in_flight == later.in_flight == 0
        assert later.next_commit(99) is not None


async def test_a_response_cancelled_before_any_claim_is_never_claimed() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        Foreign(worker.memory, request).cancel()
        await worker.caught_up()

        assert await worker.serve(request).outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).kinds == ["Cancel"]
        assert metered(worker.memory) == []


async def test_a_silent_owner_is_replaced_after_the_grace_and_not_before() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20))
        other = Foreign(worker.memory, request)
        other.claim("a")
        other.tokens("a", 7)
        await worker.caught_up()
        job = worker.serve(request)

        await several_looks(worker)
        assert len(answer(worker.memory, request.rid).claims) == 1
        assert not job.serving.response.wants_slot
        worker.time.advance(GRACE_S - 0.1)
        await several_looks(worker)
        assert len(answer(worker.memory, request.rid).claims) == 1
        worker.time.advance(0.2)

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert [(claim.prev, claim.worker) for claim in response.claims] == [
            (None, "other/1"),
            ("a", "this/1"),
        ]
        assert response.claims[1].echo == {}
        assert response.text == scripted.expected_text(request.messages, 20)
        assert response.fold.ignored == {}


async def test_an_owner_that_yielded_is_replaced_without_grace() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(9))
        other = Foreign(worker.memory, request)
        other.claim("a")
        other.tokens("a", 4)
        other.yield_("a")
        await worker.caught_up()

        assert await worker.serve(request).outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).text == scripted.expected_text(
            request.messages, 9
        )


async def test_a_takeover_goes_on_behind_what_landed_before_its_claim() -> None:
    """The tail lags behind; only the barrier makes the worker read up to its own CLAIM (W3)."""
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20))
        other = Foreign(worker.memory, request)
        other.claim("a")
        other.tokens("a", 5)
        await worker.caught_up()
        worker.memory.lag(topics.TOKENS, 0, worker.context.tail.position(0))
        other.tokens("a", 6)
        worker.time.advance(GRACE_S + 1)
        worker.context.clock.observe(int(worker.time.now * 1000), worker.time.now)
        job = worker.serve(request)
        await tokens(worker.memory, request.rid, 12)
        worker.memory.catch_up(topics.TOKENS, 0)

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.text == scripted.expected_text(request.messages, 20)
        assert response.fold.ignored == {}


@pytest.mark.parametrize(("least", "count"), [(0, 2), (8, 8)])
async def test_a_stop_string_ends_no_answer_of_fewer_than_its_least_tokens(
    least: int, count: int
) -> None:
    """Each token but the first two begins with a space."""
    async with memory_worker.worker() as worker:
        sampling = records.Sampling(100_000, stop=(" ",), min_tokens=least)
        request = new_request(worker.memory, metadata=cues(20), sampling=sampling)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.fold.next == count + 1
        assert response.text == scripted.expected_text(request.messages, count)


@pytest.mark.parametrize(("ignore", "count"), [(False, 5), (True, 20)])
async def test_a_takeover_behind_an_end_token_goes_on_only_where_that_is_ignored(
    ignore: bool, count: int
) -> None:
    """Symptom: an answer with `ignore_eos` whose worker died just behind an end token ended there.
    Cause: its successor took every end token for the end."""
    async with memory_worker.worker() as worker:
        sampling = records.Sampling(100_000, ignore_eos=ignore)
        request = new_request(worker.memory, metadata=cues(20), sampling=sampling)
        worker.engine.stop_ids = frozenset(scripted.expected_ids(request.messages, 5)[-1:])
        other = Foreign(worker.memory, request)
        other.claim("a")
        other.tokens("a", 5)
        await worker.caught_up()
        worker.time.advance(GRACE_S + 1)
        worker.context.clock.observe(int(worker.time.now * 1000), worker.time.now)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).fold.next == count


async def test_the_loser_of_a_race_stands_down_and_the_winner_s_end_finishes_the_request() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=ENDLESS)
        worker.memory.lag(topics.TOKENS, 0, 0)  # so that the worker does not see the other's claim
        other = Foreign(worker.memory, request)
        other.claim("a")
        job = worker.serve(request)
        await eventually(
            lambda: len(answer(worker.memory, request.rid).claims) == 2, "two claims in the log"
        )
        worker.memory.catch_up(topics.TOKENS, 0)
        await eventually(lambda: not job.serving.response.wants_slot, "it stands down")
        assert worker.engine.running == 0
        assert worker.context.engine_slots.running == 0
        other.tokens("a", 5)
        other.end("a")

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.fold.ids == scripted.expected_ids(request.messages, 5)
        assert response.fold.claims == [("a", "other/1")]


async def test_a_worker_that_is_superseded_stops_generating() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=ENDLESS)
        job = worker.serve(request)
        await tokens(worker.memory, request.rid, 3)
        mine = answer(worker.memory, request.rid).claims[0].own
        other = Foreign(worker.memory, request)
        other.claim("b", prev=mine)

        await eventually(lambda: worker.engine.running == 0, "the engine stops")
        slots = worker.context.engine_slots
        await eventually(lambda: slots.running == 0, "its slot is free")
        other.end("b")
        assert await job.outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).fold.owner == "b"


async def test_a_cancel_stops_the_engine_and_no_end_is_written() -> None:
    price = settings.Price(1, 2)
    async with memory_worker.worker(price=lambda _model: price) as worker:
        request = new_request(worker.memory, metadata=ENDLESS)
        job = worker.serve(request)
        await tokens(worker.memory, request.rid, 3)
        Foreign(worker.memory, request).cancel()

        assert await job.outcome() is Outcome.DONE
        assert worker.engine.running == 0
        response = answer(worker.memory, request.rid)
        assert "End" not in response.kinds
        assert len(response.claims) == 1
        assert response.ended.status == "cancelled"
        (bill,) = metered(worker.memory)
        assert (bill.status, bill.usage) == ("cancelled", response.ended.usage)
        assert bill.usage.output_tokens >= 3
        cost = 1_000 * bill.usage.input_tokens + 2_000 * bill.usage.output_tokens
        assert bill.cost_nano == cost, "what was generated is paid for"


async def test_a_cancel_that_races_the_end_leaves_one_terminal() -> None:
    """The broker has the CANCEL before the END, while the worker has not read it yet."""
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(300, script_pace_ms="1"))
        worker.memory.lag(topics.TOKENS, 0, 1)  # it sees its own CLAIM and nothing behind it
        job = worker.serve(request)
        await tokens(worker.memory, request.rid, 1)
        Foreign(worker.memory, request).cancel()
        await eventually(
            lambda: answer(worker.memory, request.rid).kinds[-1] == "End", "the end is written"
        )
        worker.memory.catch_up(topics.TOKENS, 0)

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.status == "cancelled"
        assert scripted.expected_text(request.messages, 300).startswith(response.text)
        (bill,) = metered(worker.memory)
        assert bill.status == "cancelled"
        assert job.delivery.tracker.in_flight == 0


@pytest.mark.parametrize("landed", [False, True])
async def test_a_failed_claim_is_followed_by_a_new_one_with_a_new_token(landed: bool) -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20))
        worker.memory.fail_next_append(landed=landed)

        assert await worker.serve(request).outcome() is Outcome.DONE
        claims = answer(worker.memory, request.rid).claims
        # A claim that landed all the same makes the next one lose; the one after it replaces it.
        assert claims[-1].prev == (claims[0].own if landed else None)
        assert len({claim.own for claim in claims}) == len(claims)
        assert answer(worker.memory, request.rid).text == scripted.expected_text(
            request.messages, 20
        )


@pytest.mark.parametrize("landed", [False, True])
async def test_after_a_failed_frame_the_token_is_abandoned_and_the_worker_succeeds_itself(
    landed: bool,
) -> None:
    async with memory_worker.worker() as worker:
        request = new_request(
            worker.memory, metadata={"script_tokens": "60", "script_pace_ms": "1"}
        )
        job = worker.serve(request)
        await tokens(worker.memory, request.rid, 3)
        worker.memory.fail_next_append(landed=landed)

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        first, second = response.claims
        assert second.prev == first.own
        assert second.worker == first.worker
        at = response.records.index(second)
        assert all(getattr(r, "own", None) != first.own for r in response.records[at:])
        assert response.text == scripted.expected_text(request.messages, 60)
        assert job.serving.response.abandoned == {first.own}


async def test_a_drained_response_is_yielded_at_a_token_boundary_and_left() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=ENDLESS)
        job = worker.serve(request)
        await tokens(worker.memory, request.rid, 3)
        worker.context.draining = True
        job.serving.interrupt(Stop.DRAIN)

        assert await job.outcome() is Outcome.LEFT
        response = answer(worker.memory, request.rid)
        assert response.kinds[-1] == "Yield"
        last = response.records[-1]
        assert isinstance(last, records.Yield)
        assert last.seq == response.fold.next
        assert response.fold.ignored == {}
        assert job.delivery.tracker.in_flight == 1  # it stays unfinished
        assert worker.engine.running == worker.context.engine_slots.running == 0


async def test_a_draining_worker_claims_nothing() -> None:
    async with memory_worker.worker() as worker:
        worker.context.draining = True
        request = new_request(worker.memory, metadata=cues(3))
        assert await worker.serve(request).outcome() is Outcome.LEFT
        assert answer(worker.memory, request.rid).kinds == []


async def test_a_response_of_a_revoked_partition_is_left_unless_it_runs() -> None:
    async with memory_worker.worker() as worker:
        running, waiting = (new_request(worker.memory, metadata=ENDLESS) for _ in range(2))
        Foreign(worker.memory, waiting).claim("a")
        await worker.caught_up()
        goes_on, left = worker.serve(running), worker.serve(waiting)
        await tokens(worker.memory, running.rid, 3)
        goes_on.delivery.tracker.valid = left.delivery.tracker.valid = False

        assert await left.outcome() is Outcome.LEFT
        await tokens(worker.memory, running.rid, answer(worker.memory, running.rid).fold.next + 3)


async def test_when_the_attempts_are_used_up_the_response_fails_with_one_dead_letter() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20))
        prev = None
        for own in ("a", "b", "c"):
            Foreign(worker.memory, request, name=f"other-{own}/1").claim(own, prev, 7)
            prev = own
        Foreign(worker.memory, request).tokens("c", 2)
        await worker.caught_up()
        job = worker.serve(request)
        await several_looks(worker)
        worker.time.advance(GRACE_S + 1)

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.kinds[-2:] == ["Claim", "End"]
        assert (response.ended.status, response.ended.error) == (
            "failed",
            claim_plan.ATTEMPTS_EXHAUSTED.error,
        )
        assert response.fold.next == 2
        # The closing claim has not encoded the prompt; the first claim knows its length.
        assert response.ended.usage == records.Usage(input_tokens=7, output_tokens=2)
        (letter,) = dead_letters(worker.memory)
        assert (letter.rid, letter.reason, letter.attempts) == (
            request.rid,
            "attempts_exhausted",
            3,
        )
        assert worker.engine.running == 0


def lost_twice(worker: Worker, made: int, **metadata: str) -> records.Request:
    """A request whose second worker died after `made` tokens."""
    request = new_request(worker.memory, metadata={**ENDLESS, **metadata})
    Foreign(worker.memory, request, name="other-a/1").claim("a")
    second = Foreign(worker.memory, request, name="other-b/1")
    second.claim("b", "a")
    if made:
        second.tokens("b", made)
    return request


async def go_on_later(worker: Worker) -> None:
    await worker.caught_up()
    worker.time.advance(GRACE_S + 1)
    worker.context.clock.observe(int(worker.time.now * 1000), worker.time.now)


async def test_last_attempts_are_trials_of_which_one_at_a_time_is_short_of_progress() -> None:
    async with memory_worker.worker(capacity=8) as worker:
        asked = [lost_twice(worker, takeover.PROGRESS - 1) for _ in range(4)]
        jobs = [worker.serve(request) for request in asked]
        await go_on_later(worker)

        await eventually(lambda: worker.engine.running == 4, "all run beside each other")
        log_order = [
            (records.token_of(r.key, r.value), r.offset)
            for r in worker.memory.records(topics.TOKENS, 0)
        ]
        claimed = {r.rid: at for r, at in log_order if isinstance(r, records.Claim)}
        passed = {
            request.rid: next(
                at
                for r, at in log_order
                if isinstance(r, records.Tok)
                and r.rid == request.rid
                and r.seq + len(r.ids) >= 2 * takeover.PROGRESS - 1
            )
            for request in asked[:3]
        }
        for before, after in itertools.pairwise(asked):
            assert passed[before.rid] < claimed[after.rid]
        for request, it in zip(asked, jobs, strict=True):
            Foreign(worker.memory, request).cancel()
            await it.outcome()
        assert worker.context.trials.running == 0


async def test_responses_that_got_ahead_go_on_together_whatever_number_of_workers_they_lost() -> (
    None
):
    async with memory_worker.worker(capacity=8) as worker:
        worker.context.trials.acquire(0)  # a trial that never ends
        asked = [lost_twice(worker, takeover.PROGRESS) for _ in range(4)]
        jobs = [worker.serve(request) for request in asked]
        await go_on_later(worker)
        await eventually(lambda: worker.engine.running == 4, "all run")
        for request, it in zip(asked, jobs, strict=True):
            Foreign(worker.memory, request).cancel()
            await it.outcome()


@pytest.mark.parametrize("counts", [False, True])
async def test_a_trial_of_a_response_that_is_alone_lasts_to_its_end(counts: bool) -> None:
    """`counts`: the fifth worker was lost before PROGRESS, so the sixth attempt is also the last
    that counts."""
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=ENDLESS)
        prev = None
        for own in "abcde":
            other = Foreign(worker.memory, request, name=f"other-{own}/1")
            other.claim(own, prev)
            other.tokens(own, 1 if counts and own == "e" else takeover.PROGRESS)
            prev = own
        job = worker.serve(request)
        await go_on_later(worker)
        await tokens(worker.memory, request.rid, 8 * takeover.PROGRESS)
        assert worker.context.trials.running == 1
        Foreign(worker.memory, request).cancel()
        await job.outcome()
        assert worker.context.trials.running == 0


async def test_a_slot_that_came_too_late_is_given_back() -> None:
    """Symptom: a response that another worker had claimed kept its slot until it had ended."""
    async with memory_worker.worker(capacity=1) as worker:
        first = new_request(worker.memory, metadata=ENDLESS)
        running = worker.serve(first)
        await tokens(worker.memory, first.rid, 1)
        second = new_request(worker.memory, metadata=ENDLESS)
        waiting = worker.serve(second)
        await eventually(lambda: worker.context.engine_slots.queued == 1, "it queues")
        Foreign(worker.memory, second).claim("a")
        Foreign(worker.memory, first).cancel()
        await running.outcome()

        third = new_request(worker.memory, metadata=cues(3))
        assert await worker.serve(third).outcome() is Outcome.DONE
        assert len(answer(worker.memory, second.rid).claims) == 1
        Foreign(worker.memory, second).cancel()
        await waiting.outcome()


async def test_what_is_no_suspect_any_more_when_its_slot_comes_leaves_the_place_of_a_trial() -> (
    None
):
    """Its former worker was only slow, and made the tokens that were missing."""
    async with memory_worker.worker(capacity=1) as worker:
        holder = worker.context.engine_slots.acquire(0)
        request = lost_twice(worker, takeover.PROGRESS - 1)
        await worker.caught_up()
        job = worker.serve(request)
        await go_on_later(worker)
        await eventually(lambda: worker.context.engine_slots.queued == 1, "it queues for a slot")
        assert worker.context.trials.running == 1

        Foreign(worker.memory, request, name="other-b/1").tokens("b", 1)
        await go_on_later(worker)
        worker.context.engine_slots.release(holder)
        await eventually(lambda: worker.engine.running == 1, "it runs")
        assert worker.context.trials.running == 0
        Foreign(worker.memory, request).cancel()
        await job.outcome()


async def test_the_last_attempt_waits_for_the_place_of_a_trial() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(5))
        Foreign(worker.memory, request, name="other-a/1").claim("a")
        Foreign(worker.memory, request, name="other-b/1").claim("b", "a")
        await worker.caught_up()
        holder = worker.context.trials.acquire(0)
        assert holder.done()
        job = worker.serve(request)
        worker.time.advance(GRACE_S + 1)
        worker.context.clock.observe(int(worker.time.now * 1000), worker.time.now)

        await eventually(lambda: worker.context.trials.queued == 1, "it queues")
        assert len(answer(worker.memory, request.rid).claims) == 2
        worker.context.trials.release(holder)
        assert await job.outcome() is Outcome.DONE
        assert worker.context.trials.running == 0


@pytest.mark.parametrize("known", [False, True])
async def test_an_expired_request_is_claimed_only_to_be_ended(known: bool) -> None:
    """If the broker's time is not known before, the CLAIM's acknowledgement tells it."""
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20), ttl_ms=1_000)
        delivery = worker.deliver(request)
        worker.time.advance(1.5)
        if known:
            worker.context.clock.observe_acknowledgement(
                int(worker.time.now * 1000), worker.time.now
            )
        else:
            # The worker has just started; it knows of no time but that of the request.
            worker.time.advance(-1.5)
            worker.memory.clock = lambda: worker.time.now + 1.5

        assert await worker.serve(request, delivery).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.kinds == ["Claim", "End"]
        assert (response.ended.reason, response.ended.status) == ("expired", "failed")
        assert response.ended.usage.output_tokens == 0
        assert dead_letters(worker.memory) == []


async def test_a_request_that_expires_while_it_waits_for_a_slot_is_ended_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_worker.worker(capacity=1) as worker:
        holder = worker.context.engine_slots.acquire(0)
        request = new_request(worker.memory, metadata=cues(20), ttl_ms=5_000)
        job = worker.serve(request, worker.deliver(request))
        await eventually(lambda: worker.context.engine_slots.queued == 1, "it waits")
        worker.time.advance(6)
        worker.context.clock.observe_acknowledgement(int(worker.time.now * 1000), worker.time.now)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert (response.ended.reason, response.ended.usage.output_tokens) == ("expired", 0)
        assert (holder.done(), worker.context.engine_slots.queued) == (True, 0)


async def test_a_warm_up_ends_at_once_without_the_engine() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20), generate=False)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.kinds == ["Claim", "End"]
        assert (response.ended.reason, response.ended.status) == ("warmup", "completed")


async def test_a_model_that_is_not_served_here_fails_the_response() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, model="another")
        assert await worker.serve(request).outcome() is Outcome.DONE
        error = answer(worker.memory, request.rid).ended.error
        assert error is not None
        assert error[0] == "model_not_found"


async def test_an_engine_that_fails_again_and_again_ends_the_response_with_a_dead_letter() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(
            worker.memory, metadata=cues(20, script_fault="error", script_fault_at="4")
        )
        job = worker.serve(request)

        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error == claim_plan.ENGINE_FAILED.error
        assert len(response.claims) == response_state.MAX_ENGINE_RETRIES + 1
        assert response.text == scripted.expected_text(request.messages, 4)
        assert [letter.reason for letter in dead_letters(worker.memory)] == ["engine_failed"]


async def test_a_dead_engine_is_no_yield_and_the_request_is_left() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(
            worker.memory, metadata=cues(20, script_fault="engine_death", script_fault_at="4")
        )
        assert await worker.serve(request).outcome() is Outcome.LEFT
        response = answer(worker.memory, request.rid)
        assert "Yield" not in response.kinds
        assert response.fold.phase is fold.Phase.LIVE
        assert worker.context.leaving


async def test_a_request_of_another_log_is_finished_without_a_claim() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        foreign = ids.mint(ids.Address(b"else", 0, 0), b"x" * ids.RANDOM_BYTES)
        request = msgspec.structs.replace(request, rid=foreign)
        job = worker.serve(request)
        assert await job.outcome() is Outcome.LOST
        assert job.delivery.tracker.in_flight == 0


async def test_a_worker_whose_log_was_replaced_finishes_no_request_of_the_new_log() -> None:
    async with memory_worker.worker() as worker:
        worker.memory.replace("two")
        request = new_request(worker.memory)
        job = worker.serve(request)
        with pytest.raises(log.LogChanged):
            await job.outcome()
        assert job.delivery.tracker.in_flight == 1


async def lose_beginning(worker: Worker, request: records.Request) -> Foreign:
    """Another worker has begun, and retention has passed its claim."""
    other = Foreign(worker.memory, request)
    other.claim("a")
    other.tokens("a", 3)
    worker.context.tail.leave(0)
    worker.memory.delete_below(topics.TOKENS, 0, 1)
    worker.context.tail.follow(0, 1, 2)
    return other


async def test_a_response_whose_beginning_is_lost_is_ended_for_every_reader() -> None:
    """It was finished without any record: who had its beginning in memory showed it as running for
    ever, and others as gone."""
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, store=True)
        await lose_beginning(worker, request)
        job = worker.serve(request)
        await several_looks(worker)  # its grace has begun
        worker.time.advance(takeover.GRACE_MS / 1000 + 1)
        assert await job.outcome() is Outcome.DONE
        assert job.delivery.tracker.in_flight == 0
        response = answer(worker.memory, request.rid)
        assert response.kinds == ["Tok", "Cancel"]
        assert response.ended.error is not None
        assert (response.ended.status, response.ended.error[0]) == ("failed", "history_lost")
        [kept] = worker.memory.records(
            topics.HISTORY, history.partition(request.rid, topics.partitions_of(topics.HISTORY))
        )
        part = history.decode_part(kept.key, kept.value)
        whole = history.join([part] if part is not None else [])
        assert whole is not None
        assert (whole.text, fold.status_of(whole.end)) == ("", "failed")
        assert metered(worker.memory) == []


async def test_a_response_whose_beginning_is_lost_is_its_owner_s_while_that_one_writes() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        other = await lose_beginning(worker, request)
        job = worker.serve(request)
        for seq in (3, 4):
            await worker.caught_up()
            worker.time.advance(takeover.GRACE_MS / 1000 - 0.5)
            other.write(records.Tok(request.rid, "a", seq, [1], "x", "0" * 16))
        await worker.caught_up()
        assert not job.task.done()
        assert answer(worker.memory, request.rid).kinds == ["Tok"] * 3


async def test_the_next_owner_of_its_partition_says_the_same_of_a_lost_response() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        other = await lose_beginning(worker, request)
        other.write(records.Cancel(request.rid, request.owner, request.echo, failed="history_lost"))
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).kinds == ["Tok", "Cancel"]


async def test_a_request_that_the_engine_refuses_fails_with_the_engine_s_words() -> None:
    class Refusing(scripted.Scripted):
        async def encode(self, request: records.Request) -> list[int]:
            raise base.Refused("invalid_prompt", "no")

    engine = Refusing(capacity=1, max_model_len=100)
    async with memory_worker.worker(engine=engine) as worker:
        request = new_request(worker.memory)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).ended.error == ("invalid_prompt", "no")


async def test_after_an_outage_an_old_request_waits_for_its_cancel_and_a_new_one_does_not() -> None:
    """The broker had the request and stopped before it could say so. Its gateway told the client
    that this is unknown, and withdraws it as soon as it can."""
    async with memory_worker.worker() as worker:
        steady_s = 0.0
        worker.context.steady_s = lambda: steady_s
        old, new = (new_request(worker.memory, metadata=cues(3)) for _ in range(2))
        withdrawn = worker.serve(old)
        worker.time.advance(APPEND_WITHIN_MS / 1000 + 1)
        assert await worker.serve(new).outcome() is Outcome.DONE
        assert answer(worker.memory, new.rid).ended.status == "completed"
        assert answer(worker.memory, old.rid).kinds == []

        Foreign(worker.memory, old).cancel()
        assert await withdrawn.outcome() is Outcome.DONE
        assert answer(worker.memory, old.rid).kinds == ["Cancel"]

        steady_s = SETTLE_S
        kept = new_request(worker.memory, metadata=cues(3))
        job = worker.serve(kept)
        worker.time.advance(APPEND_WITHIN_MS / 1000 + 1)
        assert await job.outcome() is Outcome.DONE
        assert answer(worker.memory, kept.rid).ended.status == "completed"


async def test_a_request_that_repeats_a_key_waits_for_its_cancel() -> None:
    """Two gateways appended one key; that of the second one withdraws it."""
    async with memory_worker.worker() as worker:
        first, second = (new_request(worker.memory, metadata=cues(3)) for _ in range(2))
        repeated = dataclasses.replace(worker.deliver(second), repeats=first.rid)
        waiting = worker.serve(second, repeated)
        assert await worker.serve(first).outcome() is Outcome.DONE
        worker.time.advance(response_task.REPEATED_S - 1)
        await several_looks(worker)
        assert answer(worker.memory, second.rid).kinds == []
        Foreign(worker.memory, second).cancel()
        assert await waiting.outcome() is Outcome.DONE
        assert answer(worker.memory, second.rid).kinds == ["Cancel"]


async def test_a_request_that_repeats_a_withdrawn_one_s_key_begins_at_once() -> None:
    async with memory_worker.worker() as worker:
        first, second = (new_request(worker.memory, metadata=cues(3)) for _ in range(2))
        Foreign(worker.memory, first).withdraw()
        await worker.caught_up()
        repeated = dataclasses.replace(worker.deliver(second), repeats=first.rid)
        assert await worker.serve(second, repeated).outcome() is Outcome.DONE
        assert answer(worker.memory, second.rid).ended.status == "completed"


async def test_a_repeated_key_whose_gateway_is_gone_is_answered_late() -> None:
    async with memory_worker.worker() as worker:
        first, second = (new_request(worker.memory, metadata=cues(3)) for _ in range(2))
        repeated = dataclasses.replace(worker.deliver(second), repeats=first.rid)
        waiting = worker.serve(second, repeated)
        worker.time.advance(response_task.REPEATED_S + 1)
        assert await waiting.outcome() is Outcome.DONE
        assert answer(worker.memory, second.rid).ended.status == "completed"


async def test_what_the_engine_cannot_do_ends_the_response_by_name() -> None:
    class Plain(scripted.Scripted):
        features = frozenset()

    engine = Plain(capacity=1, max_model_len=8_192)
    async with memory_worker.worker(engine=engine) as worker:
        tools = [{"type": "function", "function": {"name": "f"}}]
        request = new_request(worker.memory, tools=tools)
        assert await worker.serve(request).outcome() is Outcome.DONE
        ended = answer(worker.memory, request.rid).ended
        assert ended.error == (
            "unsupported_parameter",
            "The model does not support `tools` here.",
        )
        assert ended.param == "tools"


def serve_batch(worker: Worker, request: records.Request) -> Served:
    return worker.serve(request, worker.deliver(request, topic=topics.requests(POOL, "batch")))


async def paused(worker: Worker, *behind: records.Request) -> tuple[Served, Served]:
    """A batch answer of 200 tokens that made way for an endless interactive one, in a worker with
    one slot. Further batch requests wait `behind` it."""
    batch = new_request(worker.memory, metadata=cues(200, script_pace_ms="1"))
    first = serve_batch(worker, batch)
    await tokens(worker.memory, batch.rid, 1)
    for request in behind:
        serve_batch(worker, request)
    urgent = new_request(worker.memory, metadata=ENDLESS)
    second = worker.serve(urgent)
    await tokens(worker.memory, urgent.rid, 1)
    return first, second


async def test_a_batch_answer_makes_way_and_goes_on_where_it_was() -> None:
    async with memory_worker.worker(capacity=1) as worker:
        batch, urgent = await paused(worker)
        rid = batch.serving.response.rid
        response = answer(worker.memory, rid)
        assert response.kinds[-1] == "Yield"
        assert attempt.PAUSABLE_AFTER <= response.fold.next < 200
        assert worker.context.engine_slots.queued == 1

        Foreign(worker.memory, urgent.serving.response.request).cancel()
        assert await batch.outcome() is Outcome.DONE
        response = answer(worker.memory, rid)
        assert response.text == scripted.expected_text(batch.serving.response.request.messages, 200)
        assert len(response.claims) == 2
        assert response.fold.ignored == {}
        assert takeover.attempts(response.fold) == (1, 1)
        assert response.ended.usage.output_tokens == 200
        await urgent.outcome()
        pool = worker.context.engine_slots
        assert (pool.ended, len(pool.holds)) == (2, 2), "each response counts once"


async def test_a_paused_answer_waits_behind_better_classes_and_before_its_own() -> None:
    async with memory_worker.worker(capacity=1) as worker:
        later, urgent = (new_request(worker.memory, metadata=ENDLESS) for _ in range(2))
        batch, _ = await paused(worker, later)
        worker.serve(urgent)
        pool = worker.context.engine_slots
        await eventually(lambda: pool.queued == 3, "all wait")
        order = [rid for rid, *_ in pool.order(lambda _rank: {})]
        assert order == [urgent.rid, batch.serving.response.rid, later.rid]


async def test_a_pause_ends_in_time_and_then_it_waits_before_all_others() -> None:
    async with memory_worker.worker(capacity=1) as worker:
        batch, urgent = await paused(worker)
        later = new_request(worker.memory, metadata=ENDLESS)
        others = worker.serve(later)
        pool = worker.context.engine_slots
        await eventually(lambda: pool.queued == 2, "both wait")
        worker.time.advance(worker.context.pause_s + 0.1)
        await eventually(
            lambda: slots.STARTED in [rank for *_, rank in pool.order(lambda _: {})], "it is first"
        )
        Foreign(worker.memory, urgent.serving.response.request).cancel()
        # A defect: it kept its slot to its end then, however long that was.
        rid = batch.serving.response.rid
        await eventually(
            lambda: answer(worker.memory, rid).kinds.count("Yield") == 2, "it makes way again"
        )
        Foreign(worker.memory, others.serving.response.request).cancel()
        assert await batch.outcome() is Outcome.DONE
        for served in (urgent, others):
            await served.outcome()


@pytest.mark.parametrize("why", ["off", "often"])
async def test_an_answer_that_may_not_be_paused_keeps_its_slot(why: str) -> None:
    async with memory_worker.worker(capacity=1) as worker:
        if why == "off":
            worker.context.pause_s = 0.0
        request = new_request(worker.memory, metadata=cues(200, script_pace_ms="1"))
        claims = response_state.MAX_PAUSES if why == "often" else 0
        other, prev = Foreign(worker.memory, request), None
        for number in range(claims):  # it made way at another worker
            other.claim(f"c{number}", prev)
            other.tokens(prev := f"c{number}", 1)
            other.yield_(prev)
        await worker.caught_up()
        batch = serve_batch(worker, request)
        await tokens(worker.memory, request.rid, claims + 1)
        urgent = worker.serve(new_request(worker.memory, metadata=cues(3)))
        assert await batch.outcome() is Outcome.DONE
        assert len(answer(worker.memory, request.rid).claims) == claims + 1
        await urgent.outcome()


BOB = records.Owner("https://tests", "bob")


async def test_long_answers_of_one_principal_make_way_for_the_first_token_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice as many long answers as a worker has slots kept another user's first token waiting
    until one of them had ended."""
    monkeypatch.setattr(slots, "MIN_RUN_S", 0.0)
    async with memory_worker.worker(capacity=4) as worker:
        # Each makes at most one token in a turn of the loop: none ends before the others have.
        made = cues(500, script_pace_ms="1")
        long = [new_request(worker.memory, f"number {n}", metadata=made) for n in range(8)]
        jobs = [worker.serve(request) for request in long]
        await eventually(
            lambda: sum(answer(worker.memory, r.rid).fold.next > 0 for r in long) == 4, "all run"
        )
        for _ in range(3):
            other = new_request(worker.memory, metadata=cues(3), owner=BOB)
            assert await worker.serve(other).outcome() is Outcome.DONE
            assert not any(each.task.done() for each in jobs)
        for request, each in zip(long, jobs, strict=True):
            assert await each.outcome() is Outcome.DONE
            response = answer(worker.memory, request.rid)
            assert response.text == scripted.expected_text(request.messages, 500)
            assert response.fold.ignored == {}
            assert len(response.fold.yielded) <= response_state.MAX_PAUSES
            assert takeover.attempts(response.fold) == (1, 1)
        pauses = sum(len(answer(worker.memory, r.rid).fold.yielded) for r in long)
        assert 0 < pauses <= 3, "one for each request of the other principal at most"


async def test_a_worker_that_leaves_leaves_a_paused_answer_to_others() -> None:
    async with memory_worker.worker(capacity=1) as worker:
        batch, urgent = await paused(worker)
        worker.context.draining = True
        batch.serving.interrupt(Stop.DRAIN)
        assert await batch.outcome() is Outcome.LEFT
        assert answer(worker.memory, batch.serving.response.rid).kinds[-1] == "Yield"
        urgent.serving.interrupt(Stop.DRAIN)
        await urgent.outcome()


async def test_what_the_engine_holds_of_a_conversation_is_known_until_it_is_dropped() -> None:
    engine = scripted.Scripted(capacity=4, max_model_len=8_192)
    engine.hold(1_600)
    first = [{"role": "user", "content": "long " * 200}]
    more = [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]
    async with memory_worker.worker(engine=engine) as worker:

        async def served(messages: list[dict[str, str]], *prefix: str) -> records.Usage:
            request = new_request(
                worker.memory, messages=messages, prefix=list(prefix), metadata=cues(2)
            )
            assert await worker.serve(request).outcome() is Outcome.DONE
            return answer(worker.memory, request.rid).ended.usage

        prefixes = worker.context.prefixes
        assert (await served(first, "a")).cached_tokens == 0
        whole = prefixes.table(worker.time.now)["a"]
        assert whole > 200
        usage = await served(more, "a", "b", "c")
        assert usage.cached_tokens == whole
        table = prefixes.table(worker.time.now)
        assert list(table) == ["a", "b", "c"]
        assert usage.input_tokens - 16 < table["c"] <= usage.input_tokens
        await served([{"role": "user", "content": "other " * 1_150}], "z")
        assert "a" not in prefixes.table(worker.time.now)


async def test_a_usage_record_has_the_times_of_the_tokens() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(5))
        delivery = worker.deliver(request)
        worker.time.advance(0.25)
        await worker.serve(request, delivery).outcome()
        (written,) = metered(worker.memory)
        assert (written.first_token_ms, written.inter_token_ms) in (
            (250, 0.0),
            (250, None),
        )  # one frame or more


async def test_the_next_owner_of_the_partition_writes_the_same_times() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(3))
        delivery = worker.deliver(request)
        other = Foreign(worker.memory, request)
        other.claim("a")
        worker.time.advance(0.25)
        other.tokens("a", 1)
        worker.time.advance(0.5)
        other.tokens("a", 2)
        other.end("a")
        await worker.caught_up()
        worker.time.advance(60)
        await worker.serve(request, delivery).outcome()
        (written,) = metered(worker.memory)
        assert (written.first_token_ms, written.inter_token_ms) == (250, 250.0)
