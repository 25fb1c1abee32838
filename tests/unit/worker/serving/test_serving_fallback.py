"""One response in the hands of workers of two pools, on the in-memory log (log rule §22, §25).

Pool `default` has the model that is asked for; pool `small` stands in for it with another model.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from tailrace import log, settings
from tailrace.protocol import events, fold, history, ids, records, segments, topics
from tailrace.verify import checks
from tailrace.verify import history as verify_history
from tests.faults import plants
from tests.support import cases, memory_worker, scripted_content
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import MODEL, Foreign, Served, Time, Worker, answer, cues
from tests.unit.worker.serving import test_response_task
from worker.engines import scripted
from worker.group import request_consumer
from worker.queue.commit_tracker import Tracker
from worker.queue.delivery import Delivery
from worker.serving import takeover
from worker.serving.outcome import Outcome

looks_often = test_response_task.looks_often
several_looks = test_response_task.several_looks
SMALL = topics.requests("small", "interactive")
SERVED = "small-model"


class SmallModel(scripted.Scripted):
    """Another model than the one that is asked for, with longer prompts."""

    model_rev = "small-1"
    tokenizer_digest = "small-tokenizer"

    async def encode(self, request: records.Request) -> list[int]:
        return [*await super().encode(request), 7, 7, 7]


PRICES = {MODEL: settings.Price(2, 10), SERVED: settings.Price(0.5, 1)}


@contextlib.asynccontextmanager
async def two_pools() -> AsyncIterator[tuple[Worker, Worker]]:
    """A worker of each pool, on one log and one clock."""
    time = Time()
    memory = MemoryLog(clock=time, pools=("default", "small"))
    engine = SmallModel(capacity=4, max_model_len=8_192)
    price = PRICES.get
    async with (
        memory_worker.worker(memory, time, name="a", price=price) as a,
        memory_worker.worker(memory, time, name="b", engine=engine, price=price) as b,
    ):
        b.context.models = frozenset([SERVED])
        b.context.model, b.context.stands_in_for = SERVED, frozenset([MODEL])
        b.context.strangers = frozenset
        a.context.strangers = frozenset
        yield a, b


def new_request(worker: Worker, n: int = 5, **more: Any) -> records.Request:
    fields: dict[str, Any] = {"append_by": int(worker.time.now * 1000) + 10_000, **more}
    return memory_worker.new_request(worker.memory, metadata=cues(n), **fields)


def reroute(
    worker: Worker, request: records.Request, asked_ms: int = 0, *, continues: bool = False
) -> Delivery:
    """Give the request to pool `small`, and read it as its consumer does."""
    partition = ids.parse(request.rid).partition
    record = records.Reroute(request.rid, request, asked_ms, continues)
    offset = worker.memory.put_record(SMALL, partition, record, request.rid)
    r = worker.memory.records(SMALL, partition)[offset]
    read, problem = request_consumer.read_request(r, worker.memory.layout.partitions)
    assert (read, problem) == (request, "")
    tracker = Tracker()
    tracker.begin(offset)
    worker.context.clock.observe(r.timestamp, worker.time.now)
    at = request_consumer.request_time_bound(r)
    goes_on = request_consumer.continues(r)
    asked = request_consumer.broker_time(r)
    return Delivery(
        *(SMALL, partition, offset, at, tracker, ()), continues=goes_on, request_ms=asked
    )


def serve(worker: Worker, request: records.Request, *, continues: bool = False) -> Served:
    return worker.serve(request, reroute(worker, request, continues=continues))


def responses(memory: MemoryLog, request: records.Request) -> list[dict[str, object]]:
    """The Response objects of all lifecycle events."""
    series = events.Series(request.echo)
    stream = series.open()
    for effect in effects(memory, request):
        stream += series.apply(effect)
    return [event.response for event in stream if event.response is not None]


def effects(memory: MemoryLog, request: records.Request) -> list[fold.Effect]:
    state = fold.Fold(retain_ids=True)
    found = []
    for r in memory.records(topics.TOKENS, ids.parse(request.rid).partition):
        record = records.token_of(r.key, r.value)
        if record is not None and record.rid == request.rid:
            outcome = state.apply(record, r.offset, r.timestamp)
            if not isinstance(outcome, fold.Ignored):
                found.append(outcome)
    return found


def judged(memory: MemoryLog, *names: str) -> None:
    """What `tailrace verify` says of the whole log."""
    histories = verify_history.gather(
        memory.appended, incarnation=memory.layout.incarnation, partitions=memory.layout.partitions
    )
    options = checks.Options(settle_s=0, content=scripted_content.content)
    report, _ = checks.judge(histories, options)
    assert {name: result.failed for name, result in report.results.items() if result.failed} == {}
    assert {name for name in names if report.results[name].count} == set(names)


def kept(memory: MemoryLog) -> list[log.Record]:
    return [r for r in memory.appended if r.topic == topics.HISTORY]


async def test_another_pool_answers_and_everything_names_its_model() -> None:
    async with two_pools() as (a, b):
        request = new_request(a)
        delivery = a.deliver(request)
        assert await serve(b, request).outcome() is Outcome.DONE
        # The request's own pool comes later, and finds it done.
        assert await a.serve(request, delivery).outcome() is Outcome.DONE
        assert delivery.tracker.in_flight == 0

        found = answer(a.memory, request.rid)
        assert [(c.served, c.version, c.req_topic) for c in found.claims] == [(SERVED, 2, SMALL)]
        assert found.ended.status == "completed"
        assert [m.model for m in test_response_task.metered(a.memory)] == [SERVED] * 2
        assert {m.model_rev for m in test_response_task.metered(a.memory)} == {"small-1"}
        usage = found.ended.usage
        cost = 500 * usage.input_tokens + 1_000 * usage.output_tokens
        assert [m.cost_nano for m in test_response_task.metered(a.memory)] == [cost] * 2
        created, progress, completed = responses(a.memory, request)
        assert created["model"] == MODEL
        assert "fallback" not in created
        for response in (progress, completed):
            assert (response["model"], response["fallback"]) == (SERVED, {"from": MODEL})
        copies = kept(a.memory)
        assert len(copies) == 2
        assert len({r.value for r in copies}) == 1, "both wrote equal bytes"
        part = history.decode_part(copies[0].key, copies[0].value)
        assert part is not None
        whole = history.join([part])
        assert whole is not None
        assert whole.model == SERVED
        again = [r for r in history.to_records(whole) if isinstance(r, records.Claim)]
        assert [r.served for r in again] == [SERVED]
        judged(a.memory, "L1", "L6", "L9", "L14")


async def test_a_done_response_that_comes_again_after_it_was_packed_has_the_same_bill() -> None:
    async with two_pools() as (a, b):
        request = new_request(a)
        assert await serve(b, request).outcome() is Outcome.DONE
        assert await serve(b, request).outcome() is Outcome.DONE
        assert len({msgspec.json.encode(m) for m in test_response_task.metered(a.memory)}) == 1


async def test_both_pools_race_and_one_of_them_answers() -> None:
    async with two_pools() as (a, b):
        for _ in range(5):
            request = new_request(a)
            mine, theirs = a.serve(request), serve(b, request)
            assert await mine.outcome() is Outcome.DONE
            assert await theirs.outcome() is Outcome.DONE
            response = answer(a.memory, request.rid)
            assert response.fold.next == 5
            model = responses(a.memory, request)[-1]["model"]
            assert model == (SERVED if response.fold.served else MODEL)
        judged(a.memory, "L1", "L14")


async def test_two_copies_of_a_reroute_are_one_response() -> None:
    async with two_pools() as (a, b):
        request = new_request(a)
        first, second = serve(b, request), serve(b, request)
        assert await first.outcome() is Outcome.DONE
        assert await second.outcome() is Outcome.DONE
        assert answer(a.memory, request.rid).fold.next == 5
        judged(a.memory, "L1")


async def test_what_waits_unclaimed_in_its_pool_for_long_may_still_be_rerouted() -> None:
    """A request that is appended after its `append_by` does not count; a reroute is none."""
    async with two_pools() as (a, b):
        request = new_request(a)
        a.deliver(request)
        a.time.advance(60)
        assert await serve(b, request).outcome() is Outcome.DONE
        assert answer(a.memory, request.rid).ended.status == "completed"
        late = a.memory.put_record(SMALL, 0, request, request.rid)
        r = a.memory.records(SMALL, 0)[late]
        assert request_consumer.read_request(r, a.memory.layout.partitions) == (None, "late")


@pytest.mark.parametrize("asked_ms", [0, 1_000_000])
async def test_the_deadline_is_that_of_the_request_and_not_of_the_reroute(asked_ms: int) -> None:
    async with two_pools() as (a, b):
        request = new_request(a, ttl_ms=30_000)
        a.deliver(request)
        a.time.advance(41 if asked_ms == 0 else 31)
        assert await b.serve(request, reroute(b, request, asked_ms)).outcome() is Outcome.DONE
        response = answer(a.memory, request.rid)
        assert (response.ended.reason, response.fold.next) == ("expired", 0)
        judged(a.memory, "R5")


async def test_a_withdrawn_or_cancelled_request_is_not_answered_by_the_reroute() -> None:
    async with two_pools() as (a, b):
        request = new_request(a)
        Foreign(a.memory, request).write(
            records.Cancel(request.rid, request.owner, request.echo, withdrawn=True)
        )
        assert await serve(b, request).outcome() is Outcome.DONE
        response = answer(a.memory, request.rid)
        assert (response.fold.next, response.ended.reason) == (0, "withdrawn")
        assert response.claims == [] or response.fold.epoch == 0


async def test_a_model_that_no_pool_stands_in_for_is_refused() -> None:
    async with two_pools() as (a, b):
        request = new_request(a, model="another")
        assert await serve(b, request).outcome() is Outcome.DONE
        assert answer(a.memory, request.rid).ended.error[0] == "model_not_found"  # type: ignore[index]


class TestTakeover:
    async def test_a_worker_that_died_before_its_first_token_is_replaced_by_the_other_pool(
        self,
    ) -> None:
        async with two_pools() as (a, b):
            request = new_request(a)
            Foreign(a.memory, request, "dead/1").claim("dead")
            await b.caught_up()
            job = serve(b, request)
            await several_looks(b)
            assert len(answer(a.memory, request.rid).claims) == 1, "within the grace"
            b.time.advance(takeover.GRACE_MS / 1000 + 0.1)
            assert await job.outcome() is Outcome.DONE
            shown = responses(a.memory, request)
            assert [r["model"] for r in shown] == [MODEL, MODEL, SERVED, SERVED]
            assert [r["status"] for r in shown] == [
                *("in_progress", "in_progress", "in_progress", "completed")
            ]
            judged(a.memory, "L1", "L6", "L9", "L14")

    async def test_one_that_lives_has_time_for_its_prompt(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a)
            other = Foreign(a.memory, request, "long/1")
            other.claim("long")
            b.context.strangers = lambda: frozenset(["long/1"])
            await b.caught_up()
            job = serve(b, request)
            b.time.advance(10)
            await several_looks(b)
            assert len(answer(a.memory, request.rid).claims) == 1
            other.tokens("long", 3)
            other.end("long")
            assert await job.outcome() is Outcome.DONE
            assert answer(a.memory, request.rid).fold.served == ""

    async def test_without_redis_it_has_it_too_and_not_for_ever(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a)
            Foreign(a.memory, request, "long/1").claim("long")
            b.context.strangers = lambda: None
            await b.caught_up()
            job = serve(b, request)
            b.time.advance(10)
            await several_looks(b)
            assert len(answer(a.memory, request.rid).claims) == 1
            b.time.advance(takeover.STRANGER_GRACE_MS / 1000)
            assert await job.outcome() is Outcome.DONE
            assert answer(a.memory, request.rid).fold.served == SERVED

    async def test_after_a_token_the_other_model_continues_nothing(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a)
            other = Foreign(a.memory, request, "dead/1")
            other.claim("dead", prompt_tokens=len(await a.engine.encode(request)))
            other.tokens("dead", 2)
            await b.caught_up()
            job = serve(b, request)
            b.time.advance(10)
            await several_looks(b)
            assert len(answer(a.memory, request.rid).claims) == 1
            # A worker of its own pool does.
            mine = a.serve(request)
            assert await mine.outcome() is Outcome.DONE
            assert await job.outcome() is Outcome.DONE
            response = answer(a.memory, request.rid)
            assert response.text == scripted.expected_text(request.messages, 5)
            assert response.fold.served == ""
            judged(a.memory, "L1", "L6")

    async def test_the_own_pool_takes_back_what_the_other_one_lost_and_the_own_model_is_named(
        self,
    ) -> None:
        async with two_pools() as (a, _):
            request = new_request(a)
            other = Foreign(a.memory, request, "b/9")
            other.write(_claim(request, "first", None, SERVED))
            other.yield_("first")
            await a.caught_up()
            assert await a.serve(request).outcome() is Outcome.DONE
            models = [r["model"] for r in responses(a.memory, request)]
            assert models == [MODEL, SERVED, MODEL, MODEL]
            assert "fallback" not in responses(a.memory, request)[-1]
            judged(a.memory, "L1", "L6", "L9", "L14")


class TestContinuation:
    """Behind a token, where a gateway asked the other pool to continue (log rule §25)."""

    async def attempts(self, a: Worker, request: records.Request, tokens: int = 6) -> Foreign:
        """A worker of the first pool began, and died."""
        a.deliver(request)
        other = Foreign(a.memory, request, "dead/1")
        prompt = len(await a.engine.encode(request))
        other.write(
            records.Claim(
                *(request.rid, "dead", None, request.owner, "dead/1", memory_worker.REQUESTS, 0),
                *("scripted-1", "scripted-1", prompt, request.echo),
            )
        )
        if tokens:
            other.tokens("dead", tokens)
        return other

    async def continued(self, a: Worker, b: Worker, request: records.Request) -> None:
        """The same, and a worker of the other pool continues it to its end."""
        await self.attempts(a, request)
        b.time.advance(5)
        await b.caught_up()
        assert await serve(b, request, continues=True).outcome() is Outcome.DONE

    async def test_the_text_goes_on_in_another_item_which_names_the_model(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a, 30)
            await self.attempts(a, request)
            text = answer(a.memory, request.rid).text
            await b.caught_up()
            job = serve(b, request, continues=True)
            await several_looks(b)
            assert len(answer(a.memory, request.rid).claims) == 1, "within the grace"
            b.time.advance(takeover.GRACE_MS / 1000 + 0.1)
            assert await job.outcome() is Outcome.DONE

            response = answer(a.memory, request.rid)
            second = response.claims[1]
            assert (second.continues, second.served, second.version) == (True, SERVED, 2)
            assert response.fold.former == [fold.Former(6, len(text), "")]
            continued = list(scripted.answer(segments.prompt(request, text)))
            assert response.fold.ids[6:] == continued, "from the text, and no id of the first model"
            assert response.ended.usage.input_tokens == len(await a.engine.encode(request))
            assert response.ended.usage.output_tokens == 6 + len(continued)
            final = responses(a.memory, request)[-1]
            told = {"from": MODEL, "items": [*told_of((0, MODEL), (1, SERVED))]}
            assert (final["status"], final["model"], final["fallback"]) == (
                *("completed", SERVED),
                told,
            )
            assert [(i["status"], i["content"][0]["text"]) for i in final["output"]] == [  # type: ignore[attr-defined]
                ("incomplete", text),
                ("completed", response.text.removeprefix(text)),
            ]
            # The first pool comes back: the response is done.
            assert await a.serve(request).outcome() is Outcome.DONE
            assert {m.model for m in test_response_task.metered(a.memory)} == {SERVED}
            prompt, later = response.ended.usage.input_tokens, len(continued)
            cost = 2_000 * prompt + 10_000 * 6 + 1_000 * later
            assert {m.cost_nano for m in test_response_task.metered(a.memory)} == {cost}
            assert len({r.value for r in kept(a.memory)}) == 1
            judged(a.memory, "L1", "L2", "L6", "L9", "L14", "L17")

    async def test_the_history_gives_the_same_events(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a, 30)
            await self.continued(a, b, request)
            part = history.decode_part(kept(a.memory)[0].key, kept(a.memory)[0].value)
            assert part is not None
            whole = history.join([part])
            assert whole is not None
            assert (whole.model, whole.continued) == (SERVED, [1])
            shown = bodies(effects(a.memory, request), request)
            state, again = fold.Fold(), list[fold.Effect]()
            for n, record in enumerate(history.to_records(whole)):
                outcome = state.apply(record, n, whole.ended_ms)
                assert not isinstance(outcome, fold.Ignored)
                again.append(outcome)
            assert bodies(again, request) == shown
            kinds = [json.loads(body)["type"] for body in shown]
            at = kinds.index("response.output_item.done")
            assert kinds[at + 1 : at + 3] == ["response.in_progress", "response.output_item.added"]

    async def test_a_takeover_goes_on_behind_the_ids_of_the_new_item(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a, 30)
            other = await self.attempts(a, request)
            said = answer(a.memory, request.rid).text
            continued = list(scripted.answer(segments.prompt(request, said)))
            reroute(b, request, continues=True)
            other.write(_claim(request, "b1", "dead", SERVED, continues=True))
            state = answer(a.memory, request.rid).fold
            text = scripted.Detokenizer().push(continued[:5])[:-2]  # it withheld the rest
            other.write(records.Tok(request.rid, "b1", 6, continued[:5], text, state.h))
            b.time.advance(5)
            await b.caught_up()
            # Not by the first model: its ids are not those of the open item.
            mine = a.serve(request)
            await several_looks(a)
            assert len(answer(a.memory, request.rid).claims) == 2
            assert await serve(b, request).outcome() is Outcome.DONE
            assert await mine.outcome() is Outcome.DONE
            response = answer(a.memory, request.rid)
            assert response.fold.ids[6:] == continued
            assert [c.continues for c in response.claims] == [False, True, False]
            assert response.text == scripted.expected_text(request.messages, 30)
            judged(a.memory, "L1", "L2", "L6", "L9", "L17")

    @cases.each("at", [0, 3, 6, 7])
    async def test_a_fork_has_ids_of_one_model_alone(self, at: int) -> None:
        """The gateway that took it did not know yet that another model continues its source."""
        async with two_pools() as (a, b):
            request = new_request(a, 30)
            await self.continued(a, b, request)
            for worker in (a, b):
                fork = new_request(a, 30, fork=records.Fork(request.rid, at))
                fork = msgspec.structs.replace(fork, v=fork.version)
                assert await worker.serve(fork).outcome() is Outcome.DONE
                response = answer(a.memory, fork.rid)
                if at in (3, 6) and worker is a:
                    assert response.fold.ids == scripted.expected_ids(request.messages, 30)
                    judged(a.memory, "L10")
                else:
                    assert (response.fold.next, response.ended.status) == (0, "failed")

    @pytest.mark.parametrize("sampling", ["0", "1"], ids=["greedy", "sampled"])
    @pytest.mark.parametrize(
        "plant",
        [None, plants.word_again, plants.token_missing],
        ids=lambda p: getattr(p, "__name__", "nothing"),
    )
    async def test_the_judge_finds_a_token_that_comes_twice_or_not_at_all(
        self, plant: Callable[[], None] | None, sampling: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segments, "prompt", segments.prompt)  # so that a plant can be undone
        monkeypatch.setattr(scripted, "answer", scripted.answer)
        async with two_pools() as (a, b):
            request = new_request(a, 30)
            request.echo["metadata"]["script_sampling"] = sampling
            other = await self.attempts(a, request, tokens=0)
            made = list(scripted.answer(request, (), "dead" if sampling == "1" else ""))[:6]
            text = scripted.Detokenizer().push(made)
            other.write(records.Tok(request.rid, "dead", 0, made, text, fold.H0))
            b.time.advance(5)
            await b.caught_up()
            if plant is not None:
                plant()
            assert await serve(b, request, continues=True).outcome() is Outcome.DONE
            monkeypatch.undo()
            if plant is None:
                judged(a.memory, "L2", "L5", "L17")
                return
            with pytest.raises(AssertionError, match="'L2'"):
                judged(a.memory)

    async def test_what_is_as_long_as_it_may_be_only_ends(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a, 30, sampling=records.Sampling(6))
            await self.continued(a, b, request)
            response = answer(a.memory, request.rid)
            assert (response.fold.next, response.ended.reason) == (6, "length")
            assert len(responses(a.memory, request)[-1]["output"]) == 1  # type: ignore[arg-type]
            judged(a.memory, "L1", "L6", "L9", "L17")

    @staticmethod
    async def left_alone(b: Worker, request: records.Request) -> None:
        """The other pool's worker is asked to continue, long after the owner, and does not."""
        b.time.advance(5)
        await b.caught_up()
        serve(b, request, continues=True)
        await several_looks(b)
        assert len(answer(b.memory, request.rid).claims) == 1

    @cases.each(
        "more",
        [
            {"format": {"type": "regex", "pattern": ".*"}},
            {"sampling": records.Sampling(99, logprobs=0)},
            {"sampling": records.Sampling(99, logit_bias={"1": 1.0})},
        ],
        ids=["format", "logprobs", "bias"],
    )
    async def test_what_the_text_alone_does_not_say_is_not_continued(
        self, more: dict[str, Any]
    ) -> None:
        async with two_pools() as (a, b):
            request = new_request(a, 30, **more)
            request = msgspec.structs.replace(request, v=request.version)
            await self.attempts(a, request)
            await self.left_alone(b, request)

    async def test_an_open_call_or_thought_is_not_continued(self) -> None:
        async with two_pools() as (a, b):
            request = new_request(a, 30)
            other = await self.attempts(a, request, tokens=0)
            mark = (records.Mark(0, 0, "r"),)
            other.write(records.Tok(request.rid, "dead", 0, [1], "hm", fold.H0, marks=mark))
            await self.left_alone(b, request)

    async def test_a_claim_that_did_not_know_of_a_first_token_writes_nothing(self) -> None:
        """The owner wrote its first token between the other worker's look and its claim."""
        async with two_pools() as (a, b):
            request = new_request(a, 30)
            other = await self.attempts(a, request, tokens=0)
            b.time.advance(5)
            await b.caught_up()
            append = b.context.writer.append

            def after_a_token(topic: str, *more: Any) -> Any:
                if topic == topics.TOKENS and not answer(a.memory, request.rid).fold.next:
                    other.tokens("dead", 2)
                return append(topic, *more)

            b.context.writer.append = after_a_token  # type: ignore[method-assign,assignment]
            job = serve(b, request)
            await several_looks(b)
            response = answer(a.memory, request.rid)
            assert [c.served for c in response.claims] == ["", SERVED]
            assert response.fold.next == 2, "ids of two models are not mixed"
            assert response.fold.served == ""
            # Its pool is asked to continue, while the response waits here.
            job.serving.join(reroute(b, request, continues=True))
            b.time.advance(5)
            assert await job.outcome() is Outcome.DONE
            response = answer(a.memory, request.rid)
            assert [c.continues for c in response.claims] == [False, False, True]
            assert response.text == scripted.expected_text(request.messages, 30)
            assert response.ended.usage.input_tokens == len(await a.engine.encode(request))
            judged(a.memory, "L1", "L2", "L6", "L9", "L17")


def told_of(*items: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"output_index": index, "model": model} for index, model in items]


def bodies(found: Sequence[fold.Effect], request: records.Request) -> list[bytes]:
    """All events."""
    series = events.Series(request.echo)
    stream = series.open()
    for effect in found:
        stream += series.apply(effect)
    return [event.body for event in stream]


def _claim(
    request: records.Request, own: str, prev: str | None, served: str, *, continues: bool = False
) -> records.Claim:
    return records.Claim(
        *(request.rid, own, prev, request.owner, "b/9", SMALL, 0, "small-1", "small-tokenizer"),
        echo=request.echo if prev is None else {},
        served=served,
        continues=continues,
    )


def test_the_claims_of_two_pools_in_every_order_give_one_model_in_all_readers() -> None:
    """A takeover between the pools before the first token, and one behind it."""
    orders: Sequence[tuple[str, ...]] = [("", SERVED), (SERVED, ""), (SERVED, "", SERVED)]
    for names in orders:
        for tokens_behind in range(len(names) + 1):
            state = fold.Fold(retain_ids=True)
            written: list[records.TokenRecord] = []
            owner, expected = records.Owner("i", "s"), ""
            rid = ids.mint(ids.Address(b"abcd", 0, 0), b"r" * 11)
            request = records.Request(
                rid, owner, MODEL, [], records.Sampling(9), events.echo(rid, 1, MODEL)
            )
            for n, name in enumerate(names):
                claim = records.Claim(
                    *(rid, f"o{n}", state.owner, owner, f"w{n}", SMALL, 0, "r", "t"),
                    echo=request.echo if n == 0 else {},
                    served=name,
                )
                written.append(claim)
                state.apply(claim, len(written))
                expected = name if n <= tokens_behind else expected
                if n == tokens_behind:
                    tok = records.Tok(rid, f"o{n}", 0, [1], "x", state.h)
                    written.append(tok)
                    state.apply(tok, len(written))
            end = records.End(rid, f"o{len(names) - 1}", state.next, "stop", state.h)
            written.append(end)
            state.apply(end, len(written))
            assert state.served == expected
            whole = history.from_records(request, written, 7)
            assert whole.model == (expected or MODEL)
            decoded = history.decode(history.encode(whole))
            assert decoded == whole
            again = fold.Fold()
            for n, record in enumerate(history.to_records(whole)):
                again.apply(record, n)
            assert (again.served, again.phase) == (expected, fold.Phase.DONE)


@pytest.mark.parametrize(("said_ms", "first_token_ms"), [(1_000_250, 1_750), (0, None)])
async def test_a_first_token_counts_from_the_request_that_a_reroute_names(
    said_ms: int, first_token_ms: int | None
) -> None:
    """A reroute that does not say when its request was appended leaves only a later time."""
    async with two_pools() as (a, b):
        request = new_request(a)
        delivery = reroute(b, request, said_ms)
        b.time.advance(2)
        assert await b.serve(request, delivery).outcome() is Outcome.DONE
        written = [r.value for r in b.memory.appended if r.topic == topics.USAGE]
        (bill,) = [msgspec.json.decode(value or b"", type=records.UsageRecord) for value in written]
        assert bill.first_token_ms == first_token_ms
