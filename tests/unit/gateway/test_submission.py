"""Requests into the log: admitted, charged, appended once, answered only after the broker."""

from __future__ import annotations

import asyncio

import pytest

from gateway import lanes
from tailrace import log, telemetry
from tailrace.protocol import errors, ids, records
from tailrace.settings.shapes import Limits
from tailrace.store import redis_store
from tailrace.web import error_mapping
from tests.support import gateway_parts, log_contract, memory_redis
from tests.support.gateway_parts import ALICE, BOB, create


def ingress_count() -> float:
    return next(
        sample.value
        for metric in telemetry.STAGE_SECONDS.collect()
        for sample in metric.samples
        if sample.name.endswith("_count") and sample.labels["stage"] == "ingress"
    )


async def test_a_submitted_request_is_in_the_log_and_its_events_arrive() -> None:
    async with gateway_parts.running() as parts:
        before = ingress_count()
        with await parts.submission.submit(create("hello"), ALICE) as stream:
            (request,) = parts.requests()
            assert (request.rid, request.messages) == (
                stream.rid,
                [{"role": "user", "content": "hello"}],
            )
            assert ingress_count() == before + 1
            assert (len(parts.streams.running), parts.streams.active_streams) == (1, 1)
            parts.answer(stream.rid, "ho ", "ho")
            seen = await gateway_parts.all_events(stream)
        assert "".join(e.delta for e in seen if e.delta is not None) == "ho ho"
        assert (len(parts.streams.running), parts.streams.active_streams) == (0, 0)
        assert stream.headers["x-tailrace-response-id"] == stream.rid


async def test_a_request_is_placed_where_a_ready_worker_takes_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_parts.running() as parts:
        for served in range(parts.broker.layout.partitions):
            beats = [
                {"state": "ready", "partitions": [served]},
                {"state": "draining", "partitions": []},
            ]
            monkeypatch.setattr(parts.workers, "workers", lambda _pool, found=beats: found)
            with await parts.submission.submit(create(), ALICE) as stream:
                assert ids.parse(stream.rid).partition == served
                parts.answer(stream.rid)
                await gateway_parts.all_events(stream)


async def test_nothing_is_answered_before_the_broker_acknowledges() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.hold_acknowledgements()
        asked = asyncio.ensure_future(parts.submission.submit(create(), ALICE))
        await log_contract.until(parts.requests, 5)
        assert not asked.done()
        parts.broker.release_acknowledgements()
        (await asked).release()
        parts.answer(asked.result().rid)


async def test_a_record_that_the_writer_finds_too_large_is_the_clients_error_and_not_retried() -> (
    None
):
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append(log.TooLarge("a record of 2 MiB"))
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert (refused.value.status, refused.value.code, refused.value.type) == (
            400,
            "context_length_exceeded",
            errors.INVALID_REQUEST,
        )
        assert parts.requests() == []
        assert parts.delivery.load(0) == 0, "no stream is left behind"


async def test_a_failed_append_is_tried_once_more_with_the_same_record() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append(log.AppendFailed("ambiguous"), landed=True)
        with await parts.submission.submit(create(), ALICE) as stream:
            assert [r.rid for r in parts.requests()] == [stream.rid, stream.rid]
            parts.answer(stream.rid)


async def test_an_append_that_fails_twice_is_unavailable_and_leaves_no_stream_behind() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append()
        parts.broker.fail_next_append()
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert refused.value.status == 503
        assert (len(parts.streams.running), parts.delivery.load(0)) == (0, 0)


def test_any_other_record_that_is_too_large_is_not_answered_as_if_trying_again_could_help() -> None:
    told = error_mapping.api_error("resp_1", log.TooLarge("a record of 2 MiB"))
    assert (told.status, told.code) == (400, "context_length_exceeded")


async def test_while_the_log_is_away_nothing_is_taken_and_the_answer_is_503() -> None:
    async with gateway_parts.running() as parts:
        assert parts.submission.accepting
        parts.broker.go_away()
        assert not parts.submission.accepting
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert refused.value.status == 503
        parts.broker.come_back()
        assert parts.requests() == []


async def test_a_process_that_refuses_takes_nothing_and_one_that_only_leaves_does() -> None:
    async with gateway_parts.running() as parts:
        parts.submission.leaving = True
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid)
        parts.submission.refusing = True
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert (refused.value.status, len(parts.requests())) == (503, 1)


async def test_a_principal_above_its_rate_is_limited_and_nothing_is_written() -> None:
    bounds = Limits(requests_rate=0.5, requests_burst=1)
    async with gateway_parts.running(limits=bounds) as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            assert stream.headers["x-ratelimit-remaining-requests"] == "0"
            parts.answer(stream.rid)
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert (refused.value.status, len(parts.requests())) == (429, 1)
        assert refused.value.headers["x-ratelimit-limit-requests"] == "1"
        with await parts.submission.submit(create(), BOB) as other:
            parts.answer(other.rid)


async def test_the_token_rate_charges_the_whole_answer() -> None:
    bounds = Limits(tokens_rate=10, tokens_burst=150)
    async with gateway_parts.running(limits=bounds) as parts:
        with await parts.submission.submit(create(max_output_tokens=100), ALICE) as stream:
            parts.answer(stream.rid)
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(max_output_tokens=100), ALICE)
        assert refused.value.status == 429
        assert float(refused.value.headers["retry-after"]) >= 5


async def test_the_token_rate_charges_the_conversation_that_is_continued() -> None:
    bounds = Limits(tokens_rate=1, tokens_burst=200)
    async with gateway_parts.running(limits=bounds) as parts:
        with await parts.submission.submit(create("x" * 200, max_output_tokens=16), ALICE) as one:
            parts.answer(one.rid, "y" * 160)
            await gateway_parts.all_events(one)
        await parts.settled()
        parts.redis.buckets.clear()  # a full bucket again
        more = create("z", max_output_tokens=16, previous_response_id=one.rid)
        with await parts.submission.submit(more, ALICE) as two:
            assert two.charge is not None
            assert two.charge.tokens == (200 + 160 + 1) / 4 + 16
            parts.answer(two.rid)
        await parts.settled()
        long = create("z" * 40, max_output_tokens=16, previous_response_id=one.rid)
        key = f"rate:tokens:{redis_store.digest(ALICE.key)}"
        parts.redis.buckets[key] = 90.0
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(long, ALICE)
        assert refused.value.status == 429
        assert len(parts.requests()) == 2
        await parts.settled()
        assert parts.redis.buckets[key] == 90.0  # what was taken first is back


async def test_a_charge_is_settled_by_what_the_response_used() -> None:
    bounds = Limits(tokens_rate=10, tokens_burst=150)
    async with gateway_parts.running(limits=bounds) as parts:
        key = f"rate:tokens:{redis_store.digest(ALICE.key)}"
        with await parts.submission.submit(create(max_output_tokens=100), ALICE) as stream:
            assert parts.redis.buckets[key] == 150 - 100.5
            parts.answer(stream.rid, "one", "two")
            await gateway_parts.all_events(stream)
        await parts.settled()
        assert parts.redis.buckets[key] == 150 - 3  # one of the prompt, two of the answer


async def test_what_was_not_written_costs_no_tokens() -> None:
    bounds = Limits(tokens_rate=10, tokens_burst=150)
    async with gateway_parts.running(limits=bounds) as parts:
        parts.broker.fail_next_append(log.TooLarge("a record of 2 MiB"))
        with pytest.raises(errors.ApiError):
            await parts.submission.submit(create(max_output_tokens=100), ALICE)
        await parts.settled()
        assert parts.redis.buckets[f"rate:tokens:{redis_store.digest(ALICE.key)}"] == 150


async def test_without_redis_a_share_of_the_rate_holds_in_this_process() -> None:
    redis = memory_redis.MemoryRedis()
    redis.away = True
    bounds = Limits(requests_rate=0.004, requests_burst=12, tokens_rate=0)
    async with gateway_parts.running(redis=redis, limits=bounds) as parts:
        for _ in range(3):
            with await parts.submission.submit(create(), ALICE) as stream:
                parts.answer(stream.rid)
                await gateway_parts.all_events(stream)
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert (refused.value.status, len(parts.requests())) == (429, 3)
        with await parts.submission.submit(create(), BOB) as other:
            parts.answer(other.rid)


async def test_a_revoked_principal_is_told_so_and_nothing_is_written() -> None:
    async with gateway_parts.running() as parts:
        gateway_parts.revoke(parts.revocations, ALICE)
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert (refused.value.status, parts.requests()) == (401, [])


async def test_a_connections_memory_continues_a_response_that_is_not_stored() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create("one", store=False), ALICE) as first:
            parts.answer(first.rid, "two")
            await gateway_parts.all_events(first)
            memory = first.remembered
        assert isinstance(memory, lanes.Remembered)
        again = create("three", previous_response_id=first.rid)
        with await parts.submission.submit(again, ALICE, {first.rid: memory}.get) as second:
            parts.answer(second.rid)
        assert [m["content"] for m in parts.requests()[-1].messages] == ["one", "two", "three"]


async def test_a_stored_response_is_continued_from_the_cache_and_from_the_log_without_it() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create("one"), ALICE) as first:
            parts.answer(first.rid, "two")
            await gateway_parts.all_events(first)
        await parts.settled()
        again = create("three", previous_response_id=first.rid)
        for away in (False, True):
            parts.redis.away = away
            with await parts.submission.submit(again, ALICE) as stream:
                parts.answer(stream.rid)
                await gateway_parts.all_events(stream)
        asked = [[m["content"] for m in r.messages] for r in parts.requests()[1:]]
        assert asked == [["one", "two", "three"]] * 2


async def test_the_deadline_of_a_submission_ends_in_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.submission.SUBMIT_DEADLINE_S", 0.05)
    async with gateway_parts.running() as parts:
        parts.broker.hold_acknowledgements()
        with pytest.raises(errors.ApiError) as refused:
            await parts.submission.submit(create(), ALICE)
        assert (refused.value.status, len(parts.streams.running)) == (503, 0)
        parts.broker.release_acknowledgements()


async def test_the_log_keeps_a_digest_of_the_key_and_never_the_key() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(key="my secret"), ALICE) as stream:
            parts.answer(stream.rid)
        (request,) = parts.requests()
        assert request.idempotency_key is not None
        assert "my secret" not in records.encode(request).decode()
