"""What a client says of former answers, and how it is told that it got one (log rule §24)."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gateway.answers import chat_completions, text_completions
from gateway.load import breaker
from gateway.load.breaker import State
from gateway.parsing import chat_api, completions_api, responses_api
from tailrace.protocol import equal_requests, errors, events, records
from tailrace.settings.shapes import CachedAnswers
from tailrace.store.answers import Answer, Answers
from tests.support import cases, gateway_parts
from tests.support.gateway_parts import ALICE, CATALOG
from tests.support.memory_worker import Time
from tests.unit.gateway.answers.test_chat_items import RIDS, series
from tests.unit.gateway.load import test_canaries
from tests.unit.gateway.requests import test_fallback

GIVES = dataclasses.replace(test_fallback.LARGE, fallback=(), cached_answers=CachedAnswers())
GIVES_AND_FALLS = dataclasses.replace(
    GIVES, fallback=("small",), fallback_when_busy=True, cached_answers=CachedAnswers()
)


@pytest.mark.parametrize(("said", "found"), [({}, True), ({"cached_answers": False}, False)])
async def test_a_client_may_ask_for_an_answer_of_its_own(said: dict[str, Any], found: bool) -> None:
    create = responses_api.parse({"input": "x", **said}, CATALOG)
    chat = chat_api.parse({"messages": [{"role": "user", "content": "x"}], **said}, CATALOG)
    (text,) = completions_api.parse({"prompt": "x", **said}, CATALOG).creates
    assert [each.cached_answers for each in (create, chat, text)] == [found] * 3
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create, ALICE) as stream:
            parts.answer(stream.rid, "ho")
            await gateway_parts.all_events(stream)
            (request,) = parts.requests()
            assert request.cached_answers is found
            assert (b"cached_answers" in records.encode(request)) is not found
            assert request.version == records.VERSION


async def test_the_response_and_its_headers_say_so() -> None:
    async with test_fallback.running() as parts:
        for answer_of in ("", "resp_x"):
            with await parts.submission.submit(test_fallback.create(), ALICE) as stream:
                request = test_fallback.parts_request(parts, "default")
                test_fallback.answer(parts, request, answer_of=answer_of)
                event_list = await gateway_parts.all_events(stream)
                reports = [e.response.get(events.CACHED_ANSWER) for e in event_list if e.response]
                assert reports == ([None, True, True] if answer_of else [None] * 3)
                header = stream.headers.get("x-tailrace-cached-answer")
                assert header == ("true" if answer_of else None)
                assert not any(b"resp_x" in each.body for each in event_list)


def cached_series(rid: str) -> list[events.Event]:
    """All events of a response that is a former answer."""
    event_list = series("One", rid=rid)
    for event in event_list[1:]:
        if event.response is not None:
            event.response[events.CACHED_ANSWER] = True
    return event_list


def chunks(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


@cases.each("former", [0, 1, 2])
def test_completions_say_so_where_all_choices_are_former_answers(former: int) -> None:
    event_list = [cached_series(RIDS[0]) if former else series("One", rid=RIDS[0])]
    event_list.append(cached_series(RIDS[1]) if former > 1 else series("One", rid=RIDS[1]))
    finals = [each[-1].response or {} for each in event_list]
    for of in (finals[:1], finals):
        marked_messages = all(events.CACHED_ANSWER in each for each in of)
        assert (chat_completions.completion(of).get("cached_answer") is True) is marked_messages
        assert (
            text_completions.completion(of, ["x"]).get("cached_answer") is True
        ) is marked_messages


@pytest.mark.parametrize("former", [False, True])
def test_every_chunk_of_one_choice_says_so(former: bool) -> None:
    event_list = cached_series(RIDS[0]) if former else series("One", rid=RIDS[0])
    echo = event_list[0].response or {}
    streams: list[Any] = [
        chat_completions.Stream([echo], include_usage=True),
        text_completions.Stream([echo], ["x"], include_usage=True),
    ]
    for stream in streams:
        chunk_list = chunks(b"".join(stream.encode_choice((0, event)) for event in event_list))
        assert len(chunk_list) > 1
        assert [each.get("cached_answer") for each in chunk_list] == [former or None] * len(
            chunk_list
        )


async def test_a_former_answer_does_not_close_a_breaker() -> None:
    """It says nothing of the pool's engines."""
    time = Time()
    async with test_fallback.running(clock=time) as parts:
        for answer_of in ("resp_x", ""):
            for _ in range(breaker.LEAST):
                parts.breakers.record("default", "failed")
            time.advance(parts.breakers.wait_s("default"))
            for _ in range(breaker.PASSES):
                with await parts.submission.submit(test_fallback.create(), ALICE) as stream:
                    request = test_fallback.parts_request(parts, "default")
                    test_fallback.answer(parts, request, answer_of=answer_of)
                    await gateway_parts.all_events(stream)
            state = parts.breakers.state("default")
            assert state is (State.HALF_OPEN if answer_of else State.CLOSED)


@pytest.mark.parametrize("pools", [(GIVES,), (GIVES_AND_FALLS, test_fallback.SMALL)], ids=len)
async def test_where_there_is_no_place_a_former_answer_is_given_still(pools: Any) -> None:
    time = Time()
    async with test_fallback.running(pools, clock=time) as parts:
        for pool in pools:
            parts.workers.note(pool.name, [test_fallback.beat(**test_fallback.BUSY)])
        command_ = test_fallback.create_of({"deadline_ms": 1000, "temperature": 0})
        with_sampling = test_fallback.create_of({"deadline_ms": 1000})
        without_cache = test_fallback.create_of(
            {"deadline_ms": 1000, "temperature": 0, "cached_answers": False}
        )
        for create in (command_, with_sampling, without_cache):
            with pytest.raises(errors.ApiError) as error:
                await parts.submission.submit(create, ALICE)
            assert error.value.status == 429
        assert parts.requests() == []
        # Now a worker has an answer to it.
        request, _ = await parts.builder.build(command_, ALICE)
        digest = equal_requests.digest(request)
        assert digest is not None
        most = request.sampling.max_tokens
        for ids, choice in (([1] * most, False), ([1] * (most - 1), True)):
            await Answers(parts.redis).store("default", digest, Answer("resp_x", ids, 1, ""), 60.0)
            if not choice:
                with pytest.raises(errors.ApiError):
                    await parts.submission.submit(command_, ALICE)
                continue
            with await parts.submission.submit(command_, ALICE) as stream:
                assert stream.pool == "default"
                request = test_fallback.parts_request(parts, "default")
                test_fallback.answer(parts, request, answer_of="resp_x")
                await gateway_parts.all_events(stream)
        for create in (with_sampling, without_cache):
            with pytest.raises(errors.ApiError):
                await parts.submission.submit(create, ALICE)
        # A pool that is broken has no worker to give it.
        test_fallback.fail(parts, "default")
        with pytest.raises(errors.ApiError):
            await parts.submission.submit(command_, ALICE)
        time.advance(parts.breakers.wait_s("default"))
        parts.redis.away = True
        with pytest.raises(errors.ApiError):
            await parts.submission.submit(command_, ALICE)


async def test_where_there_is_a_place_nothing_is_looked_up() -> None:
    def looked(*_: Any) -> bool:
        raise AssertionError

    async with test_fallback.running((GIVES,)) as parts:
        parts.cache.has_answer = looked  # type: ignore[assignment]
        create = test_fallback.create_of({"deadline_ms": 1000, "temperature": 0})
        with await parts.submission.submit(create, ALICE) as stream:
            test_fallback.answer(parts, test_fallback.parts_request(parts, "default"))
            await gateway_parts.all_events(stream)


async def test_a_former_answer_says_nothing_of_a_revision() -> None:
    async with test_canaries.running() as parts:
        reports: list[tuple[Any, ...]] = []
        parts.canaries.on_first_token = lambda *text: reports.append(text)  # type: ignore[method-assign]
        parts.canaries.on_end = lambda *text, **_: reports.append(text)  # type: ignore[method-assign]
        with await parts.submission.submit(test_fallback.create(), ALICE) as stream:
            request = test_canaries.last_request(parts)
            gateway_parts.put_answer(parts.broker, request, "ho", answer_of="resp_x")
            await gateway_parts.all_events(stream)
        assert reports == []
