"""Requests on their way to another pool, over a log in memory (log rule §22)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest

from gateway.load import backlog, breaker, breakers, pool_choice
from gateway.load.breaker import State
from gateway.parsing import command, responses_api
from gateway.requests import choices, rerouting
from gateway.responses import response_stream
from tailrace import log, settings
from tailrace.protocol import errors, features, records, topics, wait_times
from tailrace.settings.shapes import Pool
from tests.support import cases, gateway_parts, memory_log
from tests.support.gateway_parts import ALICE, Parts, put_answer
from tests.support.memory_worker import Time
from tests.support.waiting import eventually

LARGE = Pool("default", ("m",), 1000, 100, fallback=("small", "tiny"))
SMALL = Pool("small", ("s",), 1000, 100)
TINY = Pool("tiny", ("t",), 200, 50)
POOLS = (LARGE, SMALL, TINY)
CATALOG = settings.Catalog(POOLS)
NO_BEATS: Mapping[str, dict[str, Any]] = {}


def beat(**more: Any) -> dict[str, Any]:
    return {"state": "ready", "stands_in_for": ["m"], "features": sorted(features.ALL), **more}


@contextlib.asynccontextmanager
async def running(
    pools: tuple[Pool, ...] = POOLS,
    *,
    beats: Mapping[str, dict[str, Any]] = NO_BEATS,
    clock: Callable[[], float] | None = None,
    **more: Any,
) -> AsyncIterator[Parts]:
    """`beats`: of pools whose workers do not tell the usual. `clock`: for `watched_by`."""
    broker = memory_log.MemoryLog("one", 1, pools=tuple(pool.name for pool in pools))
    async with gateway_parts.running(broker, pools=pools, **more) as parts:
        for pool in pools:
            parts.workers.note(pool.name, [beats.get(pool.name, beat())])
        if clock is not None:
            watched_by(parts, clock)
        yield parts


def watched_by(parts: Parts, clock: Callable[[], float]) -> None:
    """Have pools, and the responses in them, watched by a clock of the test."""
    parts.breakers = breakers.Breakers(
        parts.current, parts.workers, parts.cache, "this", clock=clock
    )
    parts.submission = parts.submission_with(parts.keys, clock)


def create(text: str = "hi", key: str | None = None, **fields: Any) -> command.Create:
    body = {"input": text, **fields}
    return command.with_key(responses_api.parse(body, CATALOG), key, body)


def fail(parts: Parts, *pools: str) -> None:
    for pool in pools:
        for _ in range(breaker.LEAST):
            parts.breakers.record(pool, "failed")
        assert parts.breakers.state(pool) is State.OPEN


def requests_of(parts: Parts, pool: str) -> list[records.Request | records.Reroute]:
    """What lies in a pool's topic."""
    actual = []
    for r in parts.broker.appended:
        if r.topic == topics.requests(pool, "interactive"):
            record = records.request_of(r.key, r.value) or records.reroute_of(r.key, r.value)
            assert record is not None
            actual.append(record)
    return actual


def answer(parts: Parts, request: records.Request, **more: Any) -> None:
    put_answer(parts.broker, request, "ho", **more)


async def test_while_all_is_well_a_request_goes_to_its_own_pool() -> None:
    async with running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            (request,) = requests_of(parts, "default")
            assert (stream.pool, requests_of(parts, "small")) == ("default", [])
            assert isinstance(request, records.Request)
            answer(parts, request)
            await gateway_parts.all_events(stream)
        await parts.submission.following.rerouting.check()
        assert requests_of(parts, "small") == []


async def test_a_broken_pool_gets_nothing_and_the_next_one_does() -> None:
    async with running() as parts:
        fail(parts, "default")
        with await parts.submission.submit(create(), ALICE) as stream:
            (request,) = requests_of(parts, "small")
            assert isinstance(request, records.Request)
            assert (request.rid, request.model, stream.pool) == (stream.rid, "m", "small")
            assert requests_of(parts, "default") == []
            answer(parts, request, served="s")
            events = await gateway_parts.all_events(stream)
        assert [e.response["model"] for e in events if e.response] == ["m", "s", "s"]
        assert events[-1].response is not None
        assert events[-1].response["fallback"] == {"from": "m"}


async def test_a_request_counts_where_it_goes() -> None:
    """Until the heartbeats of the workers there tell of it."""
    async with running() as parts:
        figures = {"request_tokens": 9_000, "drain_rate": 100, "waits_s": [0.0, 0.0]}
        reports = {
            pool: [beat(partitions=[0], incarnation=pool, **figures)]
            for pool in ("default", "small")
        }
        for pool, beats in reports.items():
            parts.workers.note(pool, beats)
        fail(parts, "default")
        with await parts.submission.submit(create(), ALICE) as stream:
            assert stream.pool == "small"
            waits = [parts.builder.wait_s(pool, create(), ALICE.key) for pool in reports]
            assert waits == [0.0, 90.0 - backlog.UNCOUNTED_S]
            answer(parts, parts_request(parts, "small"), served="s")
            await gateway_parts.all_events(stream)


async def test_the_first_pool_of_the_chain_that_can_answer_is_chosen() -> None:
    async with running() as parts:
        fail(parts, "default", "small")
        with await parts.submission.submit(create(), ALICE) as stream:
            assert stream.pool == "tiny"
            answer(parts, parts_request(parts, "tiny"))


def parts_request(parts: Parts, pool: str) -> records.Request:
    actual = requests_of(parts, pool)[-1]
    return actual if isinstance(actual, records.Request) else actual.request


UNABLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("it is too long", {"input": "x" * 1600}, {}),
    ("the answer is too long", {"max_output_tokens": 300}, {}),
    ("it could not leave out as much", {"truncation": "auto"}, {}),
    ("its workers lack a feature", {"text": {"format": {"type": "json_object"}}}, {"features": []}),
    ("its workers do not know that they stand in", {}, {"stands_in_for": ["other"]}),
    ("it has no ready worker", {}, {"state": "loading"}),
]


@cases.each(("why", "fields", "beats"), UNABLE, ids=[each[0] for each in UNABLE])
async def test_a_pool_that_cannot_answer_it_is_passed_over(
    why: str, fields: dict[str, Any], beats: dict[str, Any]
) -> None:
    pools = (dataclasses.replace(LARGE, fallback=("tiny",)), SMALL, TINY)
    async with running(pools, beats={"tiny": beat(**beats)}) as parts:
        fail(parts, "default")
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create_of(fields), ALICE)
        assert error.value.status == 503
        assert "default: failed" in error.value.message
        assert int(error.value.headers["retry-after"]) >= 1
        assert (requests_of(parts, "default"), requests_of(parts, "tiny")) == ([], [])
        assert len(parts.streams.running) == 0


def create_of(fields: dict[str, Any]) -> command.Create:
    return responses_api.parse({"input": "hi", **fields}, CATALOG)


async def test_what_only_its_own_model_can_answer_waits_for_it() -> None:
    async with running() as parts:
        fail(parts, "default")
        create = create_of({})
        with_bias = dataclasses.replace(create, sampling=records.Sampling(9, logit_bias={"5": 1.0}))
        for each in (with_bias, dataclasses.replace(create, generate=False)):
            with await parts.submission.submit(each, ALICE) as stream:
                assert stream.pool == "default"
                await parts.submission.following.rerouting.check()
                answer(parts, parts_request(parts, "default"))
        assert requests_of(parts, "small") == []


def test_forks_and_embeddings_have_no_other_model() -> None:
    plain = records.Request("r", records.Owner("i", "s"), "m", [], records.Sampling(9), {})
    assert pool_choice.allowed(plain)
    for changes in (
        {"fork": records.Fork("resp_x", 3)},
        {"embed": records.Embed(["a"])},
    ):
        assert not pool_choice.allowed(msgspec.structs.replace(plain, **changes))


async def test_a_pool_without_fallback_takes_what_it_always_took() -> None:
    """Requests wait in the log for workers that are away."""
    async with running((dataclasses.replace(LARGE, fallback=()),)) as parts:
        fail(parts, "default")
        with await parts.submission.submit(create(), ALICE) as stream:
            await parts.submission.following.rerouting.check()
            assert [r.rid for r in requests_of(parts, "default")] == [stream.rid]
            answer(parts, parts_request(parts, "default"))


async def test_what_waits_in_a_pool_that_breaks_is_sent_on_once() -> None:
    time = Time()
    async with running(clock=time) as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            (request,) = requests_of(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            await parts.submission.following.rerouting.check()
            (reroute,) = requests_of(parts, "small")
            assert isinstance(reroute, records.Reroute)
            assert records.encode(reroute.request) == records.encode(request)
            (original,) = (
                r
                for r in parts.broker.appended
                if r.key == stream.rid.encode()
                and r.topic == topics.requests("default", "interactive")
            )
            assert reroute.asked_ms == original.timestamp
            fail(parts, "small")
            await parts.submission.following.rerouting.check()
            (third,) = requests_of(parts, "tiny")
            assert third == reroute
            time.advance(parts.breakers.wait_s("small"))
            fail(parts, "tiny")
            assert parts.breakers.state("small") is State.HALF_OPEN
            await parts.submission.following.rerouting.check()
            assert len(requests_of(parts, "small")) == 1, "it has it already"
            answer(parts, reroute.request, served="t")
            events = await gateway_parts.all_events(stream)
            assert events[-1].response is not None
            assert events[-1].response["model"] == "t"


async def test_a_pool_in_which_nothing_moves_loses_what_waits_for_half_of_its_deadline() -> None:
    """Its workers died one after the other, each new one was ready for a moment, and the requests
    expired: their breaker was open after the deadline only."""
    time = Time()
    async with running(clock=time) as parts:
        watch = parts.submission.following.rerouting
        first, second = [
            await parts.submission.submit(create(deadline_ms=10_000), ALICE) for _ in range(2)
        ]
        requests = requests_of(parts, "default")
        time.advance(4.9)
        await watch.check()
        assert requests_of(parts, "small") == []
        assert isinstance(requests[1], records.Request)
        answer(parts, requests[1])
        await gateway_parts.all_events(second)
        second.release()
        time.advance(4.9)
        await watch.check()
        assert requests_of(parts, "small") == [], "the pool answered something at 4.9 s"
        time.advance(0.2)
        await watch.check()
        assert [r.rid for r in requests_of(parts, "small")] == [first.rid]
        assert parts.breakers.state("default") is State.CLOSED, "a client chose the deadline"
        answer(parts, parts_request(parts, "small"), served="s")
        await gateway_parts.all_events(first)
        first.release()


async def test_what_expired_in_a_broken_pool_is_sent_on_to_be_told_so() -> None:
    """It waited for a worker of its own pool, for as long as that took."""
    time = Time()
    async with running(clock=time) as parts:
        with await parts.submission.submit(create(deadline_ms=60_000), ALICE) as stream:
            time.advance(61.0)
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert [r.rid for r in requests_of(parts, "small")] == [stream.rid]
            answer(parts, parts_request(parts, "small"), served="s")


async def test_after_the_first_token_nothing_is_sent_on() -> None:
    async with running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            answer(parts, parts_request(parts, "default"), end=False)
            while not any(e.delta for e in await stream.next_events()):
                pass
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []
            await parts.operations.append_cancel(stream.rid, stream.owner, stream.echo)
            await gateway_parts.all_events(stream)


class TestMidAnswer:
    """Behind a token (log rule §25)."""

    @contextlib.asynccontextmanager
    async def begun(
        self, pools: tuple[Pool, ...] = POOLS, version: int = 2, **fields: Any
    ) -> AsyncIterator[tuple[Parts, response_stream.ResponseStream, Time]]:
        """A response with a token, and a clock that only a test advances."""
        time = Time()
        async with running(pools, clock=time, records_version=version) as parts:
            with await parts.submission.submit(create_of(fields), ALICE) as stream:
                answer(parts, parts_request(parts, "default"), end=False)
                while not any(e.delta for e in await stream.next_events()):
                    pass
                await parts.submission.following.rerouting.check()
                yield parts, stream, time
                await parts.operations.append_cancel(stream.rid, stream.owner, stream.echo)
                await gateway_parts.all_events(stream)

    async def test_the_next_pool_is_asked_to_continue_once_it_stands_still(self) -> None:
        async with self.begun() as (parts, _, time):
            look = parts.submission.following.rerouting.check
            time.advance(rerouting.STALLED_S + 1)
            await look()
            assert requests_of(parts, "small") == [], "its pool is well"
            fail(parts, "default")
            await look()
            await look()
            (reroute,) = requests_of(parts, "small")
            assert isinstance(reroute, records.Reroute)
            assert reroute.continues
            time.advance(rerouting.STALLED_S + 1)
            fail(parts, "default")  # its breaker may be half open by now
            await look()
            assert requests_of(parts, "tiny") == [], "the one that was asked is well"
            fail(parts, "small")
            await look()
            (third,) = requests_of(parts, "tiny")
            assert third == reroute
            time.advance(rerouting.STALLED_S + 1)
            time.advance(parts.breakers.wait_s("small"))
            assert parts.breakers.state("small") is State.HALF_OPEN
            fail(parts, "default", "tiny")
            await look()
            assert len(requests_of(parts, "small")) == 1, "each is asked once"

    async def test_what_goes_on_stays_with_its_own_model(self) -> None:
        async with self.begun() as (parts, _, time):
            time.advance(rerouting.STALLED_S - 1)
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []

    async def test_a_pool_may_say_that_answers_are_not_continued(self) -> None:
        pools = (dataclasses.replace(LARGE, fallback_mid_answer=False), SMALL, TINY)
        async with self.begun(pools) as (parts, _, time):
            time.advance(rerouting.STALLED_S + 1)
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []

    async def test_while_older_readers_may_run_nothing_is_continued(self) -> None:
        async with self.begun(version=1) as (parts, _, time):
            time.advance(rerouting.STALLED_S + 1)
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []

    async def test_nobody_is_asked_for_what_the_text_alone_does_not_say(self) -> None:
        text = {"format": {"type": "json_object"}}
        async with self.begun(text=text) as (parts, _, time):
            time.advance(rerouting.STALLED_S + 1)
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []

    async def test_a_pool_that_cannot_continue_text_is_passed_over(self) -> None:
        async with self.begun() as (parts, _, time):
            parts.workers.note("small", [beat(features=sorted(features.ALL - {"continuation"}))])
            time.advance(rerouting.STALLED_S + 1)
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []
            assert len(requests_of(parts, "tiny")) == 1


async def test_a_cancelled_response_is_not_sent_on() -> None:
    async with running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            await parts.operations.append_cancel(stream.rid, stream.owner, stream.echo)
            await gateway_parts.all_events(stream)
            fail(parts, "default")
            await parts.submission.following.rerouting.check()
            assert requests_of(parts, "small") == []


async def test_a_reroute_of_unknown_outcome_is_written_again_and_harms_nobody() -> None:
    async with running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            fail(parts, "default")
            parts.broker.fail_next_append(log.AppendFailed("ambiguous"), landed=True)
            await parts.submission.following.rerouting.check()
            await parts.submission.following.rerouting.check()
            first, second = requests_of(parts, "small")
            assert first == second
            await parts.submission.following.rerouting.check()
            assert len(requests_of(parts, "small")) == 2
            answer(parts, parts_request(parts, "small"), served="s")
            await gateway_parts.all_events(stream)


async def test_with_an_idempotency_key_the_own_topic_decides_and_a_reroute_follows() -> None:
    """Gateways may not agree on a pool's state; of one key's requests the first in one topic
    counts."""
    async with running() as parts:
        fail(parts, "default")
        with await parts.submission.submit(create(key="k"), ALICE) as stream:
            await parts.settled()
            (request,) = requests_of(parts, "default")
            (reroute,) = requests_of(parts, "small")
            assert isinstance(reroute, records.Reroute)
            assert reroute.request == request
            parts.redis.values.clear()
            with await parts.submission.submit(create(key="k"), ALICE) as again:
                assert again.rid == stream.rid
                answer(parts, reroute.request, served="s")
                assert (await gateway_parts.all_events(again))[-1].terminal
            await gateway_parts.all_events(stream)


class TestOutcomes:
    async def test_failures_of_the_engine_open_the_breaker_and_others_do_not(self) -> None:
        async with running() as parts:
            for code in ("context_length_exceeded", "expired", "server_error"):
                for _ in range(breaker.LEAST):
                    with await parts.submission.submit(create(), ALICE) as stream:
                        request = parts_request(parts, "default")
                        put_answer(parts.broker, request, error=(code, "m"))
                        await gateway_parts.all_events(stream)
                opened = parts.breakers.state("default") is State.OPEN
                assert opened is (code == "server_error"), code

    async def test_late_and_stalled_responses_count_once(self) -> None:
        pools = (dataclasses.replace(LARGE, late_after_s=5.0, stalled_after_s=20.0), SMALL, TINY)
        time = Time()
        async with running(pools, clock=time) as parts:
            watch = parts.submission.following.rerouting
            submit = parts.submission.submit
            streams = [await submit(create(), ALICE) for _ in range(breaker.LEAST - 1)]
            time.advance(2.0)
            streams.append(await submit(create(), ALICE))
            time.advance(4.0)
            for _ in range(2):
                await watch.check()
                assert parts.breakers.state("default") is State.CLOSED, "one is not late yet"
            time.advance(2.0)
            await watch.check()
            assert parts.breakers.reason("default") == "late"
            for stream in streams:
                stream.release()
                parts.answer(stream.rid, "ho")

    async def test_an_answer_that_made_way_is_not_stalled_while_others_of_its_pool_get_on(
        self,
    ) -> None:
        """Its pool was taken for broken: a pause takes as long as its principal's turn is away."""
        pools = (dataclasses.replace(LARGE, stalled_after_s=20.0), SMALL, TINY)
        time = Time()
        async with running(pools, clock=time) as parts:
            watch = parts.submission.following.rerouting
            streams = [await parts.submission.submit(create(), ALICE) for _ in range(breaker.LEAST)]
            paused = [r for r in requests_of(parts, "default") if isinstance(r, records.Request)]
            for request in paused:
                answer(parts, request, end=False)
                pause = records.Yield(request.rid, "own", 1)
                parts.broker.put_record(topics.TOKENS, 0, pause, request.rid)
            states = [stream.subscription.state for stream in streams]
            await eventually(lambda: all(state.yielded for state in states), "the pauses are read")
            await watch.check()
            for _ in range(3):
                time.advance(15.0)
                with await parts.submission.submit(create(), ALICE) as other:
                    answer(parts, parts_request(parts, "default"))
                    await gateway_parts.all_events(other)
                await watch.check()
                assert parts.breakers.state("default") is State.CLOSED
            time.advance(21.0)
            await watch.check()
            assert parts.breakers.reason("default") == "stalled"
            for stream, request in zip(streams, paused, strict=True):
                stream.release()
                answer(parts, request)

    async def test_a_probe_that_succeeds_brings_the_pool_back(self) -> None:
        time = Time()
        async with running(clock=time) as parts:
            fail(parts, "default")
            time.advance(parts.breakers.wait_s("default"))
            for _ in range(breaker.PASSES):
                with await parts.submission.submit(create(), ALICE) as stream:
                    assert stream.pool == "default"
                    answer(parts, parts_request(parts, "default"))
                    await gateway_parts.all_events(stream)
            assert parts.breakers.state("default") is State.CLOSED


BUSY = {
    "waiting_tokens": [50_000, 0],
    "drain_rate": 100.0,
    "capacity": 1,
    "running": 1,
    "queued": 5,
    "request_tokens": 50_000.0,
}


async def test_while_a_pool_is_broken_the_wait_for_the_others_is_told() -> None:
    async with running() as parts:
        fail(parts, "default")
        parts.workers.note("small", [beat(**BUSY)])
        parts.workers.note("tiny", [beat(**{**BUSY, "waiting_tokens": [2_000, 0]})])
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create_of({"deadline_ms": 1000}), ALICE)
        assert error.value.status == 429
        waits = [
            parts.workers.backlog(pool).wait_s("interactive", "") for pool in ("tiny", "small")
        ]
        assert waits[0] is not None
        assert waits[0] < (waits[1] or 0)
        wait_s = wait_times.rounded_up(waits[0])
        assert error.value.message.endswith(f"Please try again in {wait_s:g}s.")
        fail(parts, "small", "tiny")
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create_of({"deadline_ms": 1000}), ALICE)
        assert error.value.status == 503


async def test_a_pool_that_is_too_busy_is_refused_unless_it_says_otherwise() -> None:
    for when_busy in (False, True):
        pools = (dataclasses.replace(LARGE, fallback_when_busy=when_busy), SMALL, TINY)
        async with running(pools) as parts:
            parts.workers.note("default", [beat(**BUSY)])
            create = create_of({"deadline_ms": 1000})
            if not when_busy:
                with pytest.raises(errors.ApiError) as error:
                    await parts.submission.submit(create, ALICE)
                assert error.value.status == 429
                for choice in choices.requests(dataclasses.replace(create, choices=3)):
                    with pytest.raises(errors.ApiError):
                        await parts.submission.submit(choice, ALICE)
                continue
            with await parts.submission.submit(create, ALICE) as stream:
                assert stream.pool == "small"
                answer(parts, parts_request(parts, "small"), served="s")
            parts.workers.note("small", [beat(**BUSY)])
            parts.workers.note("tiny", [beat(**BUSY)])
            with pytest.raises(errors.ApiError) as error:
                await parts.submission.submit(create, ALICE)
            assert error.value.status == 429


@pytest.mark.parametrize("when_busy", [False, True])
async def test_who_is_refused_at_the_same_time_does_not_come_back_at_the_same_time(
    when_busy: bool,
) -> None:
    pools = (dataclasses.replace(LARGE, fallback_when_busy=when_busy), SMALL, TINY)
    async with running(pools) as parts:
        for pool in pools:
            parts.workers.note(pool.name, [beat(**BUSY)])
        waits = set()
        for _ in range(5):
            with pytest.raises(errors.ApiError) as error:
                await parts.submission.submit(create_of({"deadline_ms": 1000}), ALICE)
            waits.add(int(error.value.headers["retry-after-ms"]) / 1000)
        wait_s = float(error.value.message.rsplit(" ", 1)[1].rstrip("s."))
        assert len(waits) > 1
        assert (1 - wait_times.JITTER) * wait_s <= min(waits) <= max(waits) <= wait_s
