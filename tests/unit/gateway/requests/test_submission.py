"""Requests into the log: admitted, charged, appended once, answered only after the broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec
import pytest

from gateway.load import placement, principal_counts
from gateway.parsing import command, responses_api
from gateway.requests import request_writer
from gateway.responses import context
from gateway.responses.memory import ResponseMemory
from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import errors, features, ids, records, wait_times
from tailrace.settings.shapes import Limits
from tailrace.store import redis_store
from tailrace.web import access, error_mapping
from tests.support import cases, gateway_parts, log_contract, memory_log, memory_redis
from tests.support.gateway_parts import ALICE, BOB, create

OWNER = access.owner_of(ALICE)


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
            events = await gateway_parts.all_events(stream)
        assert "".join(e.delta for e in events if e.delta is not None) == "ho ho"
        assert (len(parts.streams.running), parts.streams.active_streams) == (0, 0)
        assert stream.headers["x-tailrace-response-id"] == stream.rid


async def test_a_request_is_placed_where_a_ready_worker_takes_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_parts.running() as parts:
        for served in range(parts.broker.layout.partitions):
            beats: list[dict[str, Any]] = [
                {"state": "ready", "partitions": [served]},
                {"state": "draining", "partitions": []},
            ]
            parts.workers.note("default", beats)
            with await parts.submission.submit(create(), ALICE) as stream:
                assert ids.parse(stream.rid).partition == served
                parts.answer(stream.rid)
                await gateway_parts.all_events(stream)


def four_partitions() -> contextlib.AbstractAsyncContextManager[gateway_parts.Parts]:
    return gateway_parts.running(memory_log.MemoryLog("one", 4), preferred=(0, 1, 2, 3))


def beat(partition: int, *not_offered: str) -> dict[str, Any]:
    options = f"worker-{partition}"
    reports = {"partitions": [partition], "not_offered": [*not_offered], "incarnation": options}
    return {"state": "ready", "features": sorted(features.ALL), "capacity": 4, **reports}


async def test_a_request_goes_to_a_worker_whose_engine_takes_its_fields() -> None:
    async with four_partitions() as parts:
        last = 3
        parts.workers.note("default", [beat(0, "min_p"), beat(last)])
        for _ in range(4):
            with await parts.submission.submit(create(min_p=0.1), ALICE) as stream:
                assert ids.parse(stream.rid).partition == last
                parts.answer(stream.rid)
                await gateway_parts.all_events(stream)


async def test_a_field_that_no_worker_takes_is_refused_before_the_log() -> None:
    async with four_partitions() as parts:
        parts.workers.note("default", [beat(0, "min_p"), beat(1, "min_p")])
        for key in (None, "key"):
            with pytest.raises(errors.ApiError) as error:
                await parts.submission.submit(create(key=key, min_p=0.1), ALICE)
            assert (error.value.status, error.value.param) == (400, "min_p")
        assert parts.requests() == []
        assert parts.workers.backlog("default").placements.number("worker-0", 0) == 0


async def test_a_key_whose_partition_is_another_workers_is_refused_too() -> None:
    """All requests with a key go to one partition, so only its worker counts."""
    async with four_partitions() as parts:
        home = placement.partition_of_key(ALICE.key, "key", 4)
        other = (home + 1) % 4
        parts.workers.note("default", [beat(home, "min_p"), beat(other)])
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(key="key", min_p=0.1), ALICE)
        assert error.value.param == "min_p"
        parts.workers.note("default", [beat(home), beat(other, "min_p")])
        with await parts.submission.submit(create(key="key", min_p=0.1), ALICE) as stream:
            assert ids.parse(stream.rid).partition == home
            parts.answer(stream.rid)
            await gateway_parts.all_events(stream)


async def test_nothing_is_answered_before_the_broker_acknowledges() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.hold_acknowledgements()
        task = asyncio.ensure_future(parts.submission.submit(create(), ALICE))
        await log_contract.until(parts.requests, 5)
        assert not task.done()
        parts.broker.release_acknowledgements()
        (await task).release()
        parts.answer(task.result().rid)


async def test_a_record_that_the_writer_finds_too_large_is_the_clients_error_and_not_retried() -> (
    None
):
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append(log.TooLarge("a record of 2 MiB"))
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(), ALICE)
        assert (error.value.status, error.value.code, error.value.type) == (
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


async def refused_by(parts: gateway_parts.Parts, key: str | None = None) -> errors.ApiError:
    """What a create that fails is told."""
    with pytest.raises(errors.ApiError) as error:
        await parts.submission.submit(create(key=key), ALICE)
    assert (len(parts.streams.running), parts.delivery.load(0)) == (0, 0), "nothing is left behind"
    return error.value


async def test_a_request_that_was_never_sent_is_refused_for_certain() -> None:
    """The answer says that nothing was or will be written; nothing has to be taken back."""
    async with gateway_parts.running() as parts:
        for _ in range(2):
            parts.broker.fail_next_append(log.NotAppended("not sent within the deadline"))
        assert (await refused_by(parts)).code == "service_unavailable"
        await parts.settled()
        assert parts.requests() == []
        assert parts.tokens(records.Cancel) == []


@cases.each("landed", [False, True], ids=["lost", "in the log"])
@cases.each("second", [log.AppendFailed, log.NotAppended])
async def test_a_request_of_unknown_outcome_is_said_to_be_one_and_is_withdrawn(
    landed: bool, second: type[log.AppendFailed]
) -> None:
    """Also when the second try certainly failed: that says nothing about the first."""
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append(log.AppendFailed("deadline"), landed=landed)
        parts.broker.fail_next_append(second("deadline"))
        error = await refused_by(parts)
        assert (error.status, error.code) == (503, "outcome_unknown")
        rid = error.headers["x-tailrace-response-id"]
        assert rid in error.message
        assert [r.rid for r in parts.requests()] == [rid] * landed
        await parts.settled()
        (cancel,) = parts.tokens(records.Cancel)
        assert (cancel.rid, cancel.withdrawn) == (rid, True)  # type: ignore[union-attr]
        snapshot = await parts.delivery.find(rid, OWNER)
        assert (snapshot.response["status"], snapshot.withdrawn) == ("cancelled", True)


async def test_a_request_is_withdrawn_as_soon_as_the_log_can_be_written_again() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append(log.AppendFailed("deadline"), landed=True)
        for _ in range(3):
            parts.broker.fail_next_append(log.AppendFailed("deadline"))
        error = await refused_by(parts)
        rid = error.headers["x-tailrace-response-id"]
        assert parts.tokens(records.Cancel) == []
        await log_contract.until(lambda: parts.tokens(records.Cancel), 10)
        assert parts.tokens(records.Cancel)[0].rid == rid
        await log_contract.until(lambda: len(parts.withdrawals) == 0, 5)


async def test_a_claim_proves_that_a_request_is_in_the_log_whatever_its_append_says() -> None:
    broker = memory_log.MemoryLog("one", 1)
    async with gateway_parts.running(broker, writer=broker.writer(deadline_s=0.3)) as parts:
        broker.hold_acknowledgements()
        task = asyncio.ensure_future(parts.submission.submit(create(), ALICE))
        await log_contract.until(parts.requests, 5)
        parts.answer(parts.requests()[0].rid, "text")
        with await task as stream:
            events = await gateway_parts.all_events(stream)
        assert events[-1].type == "response.completed"
        assert parts.tokens(records.Cancel) == []
        broker.release_acknowledgements()


async def test_a_request_that_the_broker_takes_too_late_does_not_count() -> None:
    """A broker that was stopped takes what lies in its sockets when it goes on, after the answer
    that the request failed."""
    jump_s = 0.0
    broker = memory_log.MemoryLog("one", 1, clock=lambda: time.time() + jump_s)
    async with gateway_parts.running(broker) as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid)
        jump_s = 2 * request_writer.APPEND_WITHIN_MS / 1000
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(), ALICE)
        assert error.value.code == "service_unavailable"
        late = parts.requests()[-1].rid
        assert late != stream.rid
        with pytest.raises(delivery.NotFound):
            await parts.delivery.find(late, OWNER)
        # What the broker said of its time is believed from then on.
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid)


def test_any_other_record_that_is_too_large_is_not_answered_as_if_trying_again_could_help() -> None:
    reports = error_mapping.api_error("resp_1", log.TooLarge("a record of 2 MiB"))
    assert (reports.status, reports.code) == (400, "context_length_exceeded")


async def test_while_the_log_is_away_nothing_is_taken_and_the_answer_is_503() -> None:
    async with gateway_parts.running() as parts:
        assert parts.submission.accepting
        parts.broker.go_away()
        assert not parts.submission.accepting
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(), ALICE)
        assert error.value.status == 503
        parts.broker.come_back()
        assert parts.requests() == []


async def test_a_process_that_refuses_takes_nothing_and_one_that_only_leaves_does() -> None:
    async with gateway_parts.running() as parts:
        parts.submission.intake.leaving = True
        with await parts.submission.submit(create(), ALICE) as stream:
            parts.answer(stream.rid)
        parts.submission.intake.refusing = True
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(), ALICE)
        assert (error.value.status, len(parts.requests())) == (503, 1)


async def test_those_refused_at_once_come_back_one_after_the_other_within_the_wait() -> None:
    async with gateway_parts.running() as parts:
        busy = {"waits_s": [8.0, 8.0], "drain_rate": 100.0, "request_tokens": 800.0, "queued": 1}
        parts.workers.note("default", [{"state": "ready", "partitions": [0], **busy}])
        waits_ms = []
        for _ in range(20):
            with pytest.raises(errors.ApiError) as error:
                await parts.submission.submit(create(deadline_ms=1_000), ALICE)
            assert error.value.message.endswith("Please try again in 10s.")
            waits_ms.append(int(error.value.headers["retry-after-ms"]))
        assert parts.requests() == []
    assert len(set(waits_ms)) > 10
    assert 10_000 * (1 - wait_times.JITTER) <= min(waits_ms) < max(waits_ms) <= 10_000


async def test_a_principal_above_its_rate_is_limited_and_nothing_is_written() -> None:
    bounds = Limits(requests_rate=0.5, requests_burst=1)
    async with gateway_parts.running(limits=bounds) as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            assert stream.headers["x-ratelimit-remaining-requests"] == "0"
            parts.answer(stream.rid)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(), ALICE)
        assert (error.value.status, len(parts.requests())) == (429, 1)
        assert error.value.headers["x-ratelimit-limit-requests"] == "1"
        with await parts.submission.submit(create(), BOB) as other:
            parts.answer(other.rid)


async def test_the_token_rate_charges_the_whole_answer() -> None:
    bounds = Limits(tokens_rate=10, tokens_burst=150)
    async with gateway_parts.running(limits=bounds) as parts:
        with await parts.submission.submit(create(max_output_tokens=100), ALICE) as stream:
            parts.answer(stream.rid)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(max_output_tokens=100), ALICE)
        assert error.value.status == 429
        assert float(error.value.headers["retry-after"]) >= 5


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
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(long, ALICE)
        assert error.value.status == 429
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


async def test_the_cap_of_a_principal_counts_what_other_gateways_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(principal_counts, "REFRESH_S", 0.001)
    reports = msgspec.json.encode({redis_store.digest(ALICE.key): 3})

    class Told(memory_redis.MemoryRedis):
        """Another gateway says that it runs three of Alice's."""

        async def execute(self, *command: Any, patient: bool = False) -> Any:
            if "running:gateways" in command and len(command) == 4:
                values = (b"other", reports), (b"this", b'{"x": 9}'), (b"broken", b"\xff")
                return [part for name, value in values for part in (name, b"1000", value)]
            return await super().execute(*command, patient=patient)

    bounds = Limits(responses_per_principal=4)
    async with gateway_parts.running(redis=Told(), limits=bounds) as parts:
        reading = asyncio.create_task(parts.counts.run())
        await log_contract.until(lambda: parts.counts.elsewhere(ALICE.key) == 3, 5)
        reading.cancel()
        with await parts.submission.submit(create(), ALICE) as stream:
            with pytest.raises(errors.ApiError) as error:
                await parts.submission.submit(create(), ALICE)
            assert error.value.status == 429
            with await parts.submission.submit(create(), BOB) as other:
                parts.answer(other.rid)
            parts.answer(stream.rid)


async def test_without_redis_a_share_of_the_rate_holds_in_this_process() -> None:
    redis = memory_redis.MemoryRedis()
    redis.away = True
    bounds = Limits(requests_rate=0.004, requests_burst=12, tokens_rate=0)
    async with gateway_parts.running(redis=redis, limits=bounds) as parts:
        for _ in range(3):
            with await parts.submission.submit(create(), ALICE) as stream:
                parts.answer(stream.rid)
                await gateway_parts.all_events(stream)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(), ALICE)
        assert (error.value.status, len(parts.requests())) == (429, 3)
        with await parts.submission.submit(create(), BOB) as other:
            parts.answer(other.rid)


async def test_a_revoked_principal_is_told_so_and_nothing_is_written() -> None:
    async with gateway_parts.running() as parts:
        gateway_parts.revoke(parts.revocations, ALICE)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(), ALICE)
        assert (error.value.status, parts.requests()) == (401, [])


async def test_a_connections_memory_continues_a_response_that_is_not_stored() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create("one", store=False), ALICE) as first:
            parts.answer(first.rid, "two")
            await gateway_parts.all_events(first)
            memory = first.memory
        assert isinstance(memory, ResponseMemory)
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
        request = [[m["content"] for m in r.messages] for r in parts.requests()[1:]]
        assert request == [["one", "two", "three"]] * 2


async def test_an_output_answers_a_call_of_the_conversation_that_it_continues() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    output = {"type": "function_call_output", "output": "x"}

    def answering(call_id: str, previous: str) -> command.Create:
        body = {"input": [{**output, "call_id": call_id}], "previous_response_id": previous}
        return responses_api.parse(body, gateway_parts.CATALOG)

    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create("one", store=False), ALICE) as first:
            parts.answer(first.rid, "two")
            await gateway_parts.all_events(first)
        memory = ResponseMemory(first.rid, context.pack(before))
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(
                answering("c2", first.rid), ALICE, {first.rid: memory}.get
            )
        assert error.value.param == "input[0].call_id"
        with pytest.raises(errors.ApiError, match="No tool output found for function call c1"):
            await parts.submission.submit(
                create("and?", previous_response_id=first.rid), ALICE, {first.rid: memory}.get
            )
        assert len(parts.requests()) == 1, "it is not in the log"
        request = answering("c1", first.rid)
        with await parts.submission.submit(request, ALICE, {first.rid: memory}.get) as second:
            parts.answer(second.rid)
        assert [m["role"] for m in parts.requests()[-1].messages] == ["assistant", "tool"]


async def test_what_comes_before_the_append_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def build(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.requests.submission.PREPARE_DEADLINE_S", 0.05)
    async with gateway_parts.running() as parts:
        monkeypatch.setattr(parts.builder, "build", build)
        assert (await refused_by(parts)).code == "service_unavailable"
        assert parts.requests() == []


async def test_the_deadline_of_the_preparation_does_not_cut_an_append_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancelled append leaves its record with the client library, which sends it later."""
    monkeypatch.setattr("gateway.requests.submission.PREPARE_DEADLINE_S", 0.05)
    async with gateway_parts.running() as parts:
        parts.broker.hold_acknowledgements()
        task = asyncio.ensure_future(parts.submission.submit(create(), ALICE))
        await log_contract.until(parts.requests, 5)
        await asyncio.sleep(0.1)  # past the deadline
        parts.broker.release_acknowledgements()
        with await task as stream:
            parts.answer(stream.rid)


async def test_the_log_keeps_a_digest_of_the_key_and_never_the_key() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(key="my secret"), ALICE) as stream:
            parts.answer(stream.rid)
        (request,) = parts.requests()
        assert request.idempotency_key is not None
        assert "my secret" not in records.encode(request).decode()


async def test_the_response_object_shows_what_was_asked() -> None:
    query: dict[str, Any] = {
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "reasoning": {"effort": "low"},
    }
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(**query), ALICE) as stream:
            (request,) = parts.requests()
            assert {name: request.echo[name] for name in query} == {
                **query,
                "reasoning": {"effort": "low", "summary": None},
            }
            parts.answer(stream.rid)
            await gateway_parts.all_events(stream)
