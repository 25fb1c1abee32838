"""One response per key, with and without Redis, between retries and between gateways."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.requests import idempotency
from gateway.responses import response_stream
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, records, topics
from tests.support import gateway_parts, log_contract, memory_log, memory_redis
from tests.support.gateway_parts import ALICE, BOB, create


def redis_away(away: bool = True) -> memory_redis.MemoryRedis:
    redis = memory_redis.MemoryRedis()
    redis.away = away
    return redis


async def submit(parts: gateway_parts.Parts, key: str = "k") -> str:
    """Submit and let go; the id that was answered."""
    with await parts.submission.submit(create(key=key), ALICE) as stream:
        return stream.rid


@pytest.mark.parametrize("away", [False, True], ids=["with Redis", "by the log alone"])
async def test_a_retry_gets_the_first_response_from_its_first_event(away: bool) -> None:
    async with gateway_parts.running(redis=redis_away(away)) as parts:
        first = await submit(parts)
        parts.answer(first, "once")
        with await parts.submission.submit(create(key="k"), ALICE) as again:
            events = await gateway_parts.all_events(again)
        assert again.rid == first
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert len(parts.requests()) == 1


async def test_a_key_belongs_to_its_principal() -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts)
        with await parts.submission.submit(create(key="k"), BOB) as other:
            assert other.rid != first
        for request in parts.requests():
            parts.answer(request.rid)


async def test_a_retry_waits_for_the_submission_that_is_under_way() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.hold_acknowledgements()
        tries = [asyncio.ensure_future(submit(parts)) for _ in range(3)]
        await log_contract.until(parts.requests, 5)
        assert not any(task.done() for task in tries)
        parts.broker.release_acknowledgements()
        rids = await asyncio.gather(*tries)
        assert len(set(rids)) == 1
        assert len(parts.requests()) == 1
        parts.answer(rids[0])


async def test_after_a_submission_that_failed_the_key_is_free_again() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append()
        parts.broker.fail_next_append()
        with pytest.raises(errors.ApiError):
            await submit(parts)
        rid = await retrying(parts, [])
        assert [r.rid for r in parts.requests()] == [rid]
        parts.answer(rid)


async def retrying(parts: gateway_parts.Parts, waits: list[float]) -> str:
    """A retry whose waits for another gateway pass at once."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        waits.append(seconds)
        await asyncio.sleep(0)

    keys = idempotency.Idempotency(
        parts.cache,
        parts.index,
        parts.streams,
        parts.operations,
        parts.withdrawals,
        parts.spawn,
        clock=lambda: now,
        sleep=sleep,
    )
    with await parts.submission_with(keys).submit(create(key="k"), ALICE) as stream:
        return stream.rid


async def test_a_key_of_a_gateway_that_died_before_its_append_is_taken_over_after_a_while() -> None:
    async with gateway_parts.running() as parts:
        dead = await parts.delivery.mint(0)
        assert await parts.cache.claim_key(ALICE.key, "k", dead, 60) == dead
        waits: list[float] = []
        rid = await retrying(parts, waits)
        assert rid != dead
        # The last pause is the one that would pass the deadline; it is not made.
        assert sum(waits) > idempotency.ATTACH_DEADLINE_S - 2 * idempotency.ATTACH_RETRY_S
        assert await parts.cache.claim_key(ALICE.key, "k", "resp_other", 60) == rid
        parts.answer(rid)


async def test_redis_is_told_of_the_first_response_again_after_it_forgot() -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts)
        parts.redis.values.clear()
        assert await submit(parts) == first
        assert await parts.cache.claim_key(ALICE.key, "k", "resp_other", 60) == first
        parts.answer(first)


async def test_a_deleted_response_leaves_its_key_to_the_next_request() -> None:
    async with gateway_parts.running(redis=redis_away()) as parts:
        first = await submit(parts)
        parts.answer(first)
        await parts.settled()
        await parts.operations.delete(first, parts.requests()[0].owner)
        second = await submit(parts)
        assert second != first
        parts.answer(second)


async def test_of_two_gateways_without_redis_the_first_in_the_log_stands() -> None:
    """Both look into the log before either has appended."""
    broker, redis = memory_log.MemoryLog("one", 1), redis_away()
    async with (
        gateway_parts.running(broker, redis) as one,
        gateway_parts.running(broker, redis) as two,
    ):
        broker.hold_acknowledgements()
        tries = [
            asyncio.ensure_future(submit(one)),
            asyncio.ensure_future(submit(two)),
        ]
        await log_contract.until(lambda: len(one.requests()) == 2, 5)
        broker.release_acknowledgements()
        rids = await asyncio.gather(*tries)
        winner, loser = (r.rid for r in one.requests())
        assert rids == [winner, winner]
        await log_contract.until(lambda: one.tokens(records.Cancel), 5)
        assert [r.rid for r in one.tokens(records.Cancel)] == [loser]
        one.answer(winner)


@pytest.mark.parametrize("known", [True, False], ids=["known offset", "unknown offset"])
async def test_a_request_that_got_into_the_log_just_before_stands(known: bool) -> None:
    """aiokafka tells no offset for a retry that the broker had already taken."""
    async with gateway_parts.running(redis=redis_away()) as parts:
        first, second = [await keyed_request(parts) for _ in range(2)]

        async def append() -> tuple[delivery.Subscription, int]:
            append_record(parts, first.request)
            end = append_record(parts, second.request) + 1
            parts.delivery.open(second.request, records.encode(second.request))
            parts.delivery.confirm(second.rid)
            watched = await parts.delivery.watch(second.rid, second.request.owner)
            return watched, end if known else -1

        stream = await parts.keys.append_once(second, append)
        assert isinstance(stream, response_stream.ResponseStream)
        assert stream.rid == first.rid
        parts.answer(first.rid)
        await gateway_parts.all_events(stream)
        stream.release()
        await log_contract.until(lambda: parts.tokens(records.Cancel), 5)
        assert parts.tokens(records.Cancel)[0].rid == second.rid
        assert parts.delivery.watchers(second.rid) == 0


@pytest.mark.parametrize("known", [True, False], ids=["known offset", "unknown offset"])
async def test_a_request_that_got_into_the_log_after_this_one_does_not_count(known: bool) -> None:
    async with gateway_parts.running(redis=redis_away()) as parts:
        own, later = [await keyed_request(parts) for _ in range(2)]

        async def append() -> tuple[delivery.Subscription, int]:
            parts.delivery.open(own.request, records.encode(own.request))
            end = append_record(parts, own.request) + 1
            append_record(parts, later.request)
            parts.delivery.confirm(own.rid)
            return await parts.delivery.watch(own.rid, own.request.owner), end if known else -1

        subscription = await parts.keys.append_once(own, append)
        assert isinstance(subscription, delivery.Subscription)
        assert subscription.rid == own.rid


async def keyed_request(parts: gateway_parts.Parts) -> idempotency.KeyedRequest:
    """A request with the key `k` that is not in the log."""
    request, partition = await parts.builder.build(create(key="k"), ALICE)
    assert request.idempotency_key is not None
    key = idempotency.Key(
        request.owner,
        "k",
        request.idempotency_key,
        request.body_digest,
        "default",
        "interactive",
        partition,
    )
    return idempotency.KeyedRequest(request, key)


def append_record(parts: gateway_parts.Parts, request: records.Request) -> int:
    """Append a request record as another gateway would; its offset."""
    topic = topics.requests("default", "interactive")
    return parts.broker.put_record(topic, 0, request, request.rid)


@pytest.mark.parametrize("away", [False, True], ids=["with Redis", "by the log alone"])
async def test_another_body_with_the_key_is_refused_and_changes_nothing(away: bool) -> None:
    async with gateway_parts.running(redis=redis_away(away)) as parts:
        first = await submit(parts)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create("something else", key="k"), ALICE)
        assert (error.value.status, error.value.code) == (409, "idempotency_key_reused")
        assert error.value.headers["x-should-retry"] == "false"
        assert [r.rid for r in parts.requests()] == [first]
        assert parts.tokens(records.Cancel) == []
        assert await submit(parts) == first
        parts.answer(first)


async def test_another_body_is_refused_by_the_log_when_redis_forgot() -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts)
        parts.redis.values.clear()
        for _ in range(2):  # the second time Redis knows again
            with pytest.raises(errors.ApiError) as error:
                await parts.submission.submit(create("something else", key="k"), ALICE)
            assert error.value.status == 409
        assert await submit(parts) == first
        parts.answer(first)


async def test_a_record_of_an_old_gateway_has_no_digest_and_is_read_as_before() -> None:
    async with gateway_parts.running(redis=redis_away()) as parts:
        old = (await keyed_request(parts)).request
        old = msgspec.structs.replace(old, body_digest=None)
        assert b"body_digest" not in records.encode(old)
        append_record(parts, old)
        with await parts.submission.submit(create("something else", key="k"), ALICE) as stream:
            assert stream.rid == old.rid
        parts.answer(old.rid)


async def test_of_two_gateways_with_two_bodies_the_second_is_withdrawn_and_then_refused() -> None:
    broker, redis = memory_log.MemoryLog("one", 1), redis_away()
    async with (
        gateway_parts.running(broker, redis) as one,
        gateway_parts.running(broker, redis) as two,
    ):
        broker.hold_acknowledgements()
        first = asyncio.ensure_future(submit(one))
        second = asyncio.ensure_future(two.submission.submit(create("other", key="k"), ALICE))
        await log_contract.until(lambda: len(one.requests()) == 2, 5)
        winner, loser = (r.rid for r in one.requests())
        broker.release_acknowledgements()
        assert await first == winner
        with pytest.raises(errors.ApiError) as error:
            await second
        assert error.value.status == 409
        # Already here, not some time later.
        assert [r.rid for r in two.tokens(records.Cancel)] == [loser]
        one.answer(winner)


@pytest.mark.parametrize("away", [False, True], ids=["with Redis", "by the log alone"])
async def test_a_request_that_was_lost_leaves_its_key_to_the_next_try(away: bool) -> None:
    """The client was told to send it again with the same key."""
    async with gateway_parts.running(redis=redis_away(away)) as parts:
        unknown = await of_unknown_outcome(parts, landed=False)
        rid = await retrying(parts, [])
        assert rid != unknown
        assert [r.rid for r in parts.tokens(records.Cancel)] == [unknown]
        assert [r.rid for r in parts.requests()] == [rid]
        parts.answer(rid)


@pytest.mark.parametrize("away", [False, True], ids=["with Redis", "by the log alone"])
async def test_a_request_of_unknown_outcome_that_the_log_has_is_the_one_of_its_key(
    away: bool,
) -> None:
    """It was withdrawn, although a worker had begun it, and the next try was paid, too."""
    async with gateway_parts.running(redis=redis_away(away)) as parts:
        unknown = await of_unknown_outcome(parts, landed=True)
        assert await retrying(parts, []) == unknown
        assert parts.tokens(records.Cancel) == []
        assert [r.rid for r in parts.requests()] == [unknown]
        parts.answer(unknown)


async def test_a_request_of_unknown_outcome_behind_another_one_of_its_key_is_withdrawn() -> None:
    broker = memory_log.MemoryLog("one", 1)
    async with gateway_parts.running(broker) as one, gateway_parts.running(broker) as two:
        rid = await retrying(one, [])
        two.redis.away = True
        original = two.index.rids

        async def blind(*request: Any) -> list[str]:
            two.index.rids = original  # type: ignore[method-assign]
            return []  # as it was a moment before the other one got there

        two.index.rids = blind  # type: ignore[assignment,method-assign]
        unknown = await of_unknown_outcome(two, landed=True)
        await two.settled()
        assert [r.rid for r in two.tokens(records.Cancel)] == [unknown]
        assert unknown != rid
        one.answer(rid)


async def of_unknown_outcome(parts: gateway_parts.Parts, *, landed: bool) -> str:
    """A response that the client is told that about."""
    parts.broker.fail_next_append(log.AppendFailed("deadline"), landed=landed)
    parts.broker.fail_next_append(log.AppendFailed("deadline"))
    with pytest.raises(errors.ApiError) as error:
        await submit(parts)
    assert error.value.code == "outcome_unknown"
    return error.value.headers["x-tailrace-response-id"]


async def test_a_keyed_request_whose_place_is_not_known_is_of_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in the log. Whether another is ahead of it cannot be read, so no answer can be given:
    a plain refusal would be a lie, since the request runs."""
    async with gateway_parts.running(redis=redis_away()) as parts:
        looks: list[int] = []

        read = parts.index.rids

        async def rids(*query: Any, **more: Any) -> list[str]:
            looks.append(1)
            if len(looks) in (2, 3):
                raise log.LogUnavailable("no answer")
            return await read(*query, **more)

        monkeypatch.setattr(parts.index, "rids", rids)
        with pytest.raises(errors.ApiError) as error:
            await submit(parts)
        assert error.value.code == "outcome_unknown"
        await parts.settled()
        (request,) = parts.requests()
        assert parts.tokens(records.Cancel) == []
        assert await retrying(parts, []) == request.rid
        parts.answer(request.rid)
