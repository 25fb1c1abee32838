"""Shorter answers while a pool is busy, over a log in memory."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.load import pool_choice, shortening
from gateway.parsing import chat_api, command, completions_api, responses_api
from tailrace import settings
from tailrace.fair_queue import waits_of
from tailrace.protocol import errors, features, records, wait_times
from tailrace.settings.shapes import Pool, ShorterWhenBusy
from tests.support import cases, gateway_parts
from tests.support.gateway_parts import ALICE, Parts
from tests.unit.gateway.requests import test_fallback
from tests.unit.gateway.requests.test_fallback import fail, requests_of

RULE = ShorterWhenBusy(20.0, 64)
BUSY = Pool("default", ("m",), 8000, 1000, shorter_when_busy=RULE)
SMALL = Pool("small", ("s",), 8000, 1000)
CHAIN = (
    Pool(
        *("default", ("m",), 8000, 1000),
        shorter_when_busy=RULE,
        fallback=("small",),
        fallback_when_busy=True,
    ),
    SMALL,
)
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def waiting(seconds: float, **more: Any) -> dict[str, Any]:
    """A worker at which an interactive request of Alice waits for so long, and no other one."""
    return test_fallback.beat(
        waiting_tokens=[seconds * 100, 0],
        waits_of=[waits_of(ALICE.key)],
        interactive_waits_s=[seconds],
        batch_waits_s=[seconds],
        waits_s=[0.0, 0.0],
        request_tokens=1_000,
        drain_rate=100.0,
        capacity=1,
        running=1,
        queued=1,
        **more,
    )


def routes_of(parts: Parts) -> pool_choice.Routes:
    return pool_choice.Routes(parts.current, parts.breakers, parts.workers, parts.builder.wait_s)


async def submit(
    parts: Parts, pools: tuple[Pool, ...] = (BUSY,), pool: str = "default", **body: Any
) -> tuple[records.Request, dict[str, Any]]:
    """The request that was written, and the Response of an answer that reaches its bound."""
    create = responses_api.parse({"input": "hi", **body}, settings.Catalog(pools))
    with await parts.submission.submit(create, ALICE) as stream:
        request = requests_of(parts, pool)[-1]
        assert isinstance(request, records.Request)
        gateway_parts.put_answer(parts.broker, request, "a", reason="length")
        final = (await gateway_parts.all_events(stream))[-1].response
    assert final is not None
    return request, final


@cases.each(("wait_s", "short"), [(0, False), (20, False), (21, True), (500, True)])
@cases.each("priority", ["default", "flex"])
async def test_who_would_wait_for_longer_gets_a_shorter_answer(
    wait_s: float, short: bool, priority: str
) -> None:
    async with gateway_parts.running(pools=(BUSY,)) as parts:
        parts.workers.note("default", [waiting(wait_s)])
        create = responses_api.parse(
            {"input": "hi", "service_tier": priority}, settings.Catalog((BUSY,))
        )
        shorter = routes_of(parts).shorten(create, ALICE.key)
        assert shorter.sampling.max_tokens == (64 if short else 1000)
        assert shorter.echo == ({"shortened": {"from": 1000, "to": 64}} if short else {})


async def test_the_client_is_told_and_may_have_it_continued() -> None:
    async with gateway_parts.running(pools=(BUSY,)) as parts:
        parts.workers.note("default", [waiting(60)])
        request, response = await submit(parts, max_output_tokens=500)
        assert request.sampling.max_tokens == 64
        assert response["shortened"] == {"from": 500, "to": 64}
        assert response["max_output_tokens"] == 500
        assert (response["incomplete_details"], response["continue"]) == (
            {"reason": "max_output_tokens"},
            True,
        )
        parts.workers.note("default", [waiting(0)])
        request, response = await submit(parts, input=[], previous_response_id=response["id"])
        assert (request.continue_final, request.sampling.max_tokens) == (True, 1000)
        assert "shortened" not in response


@cases.each(
    "body",
    [
        {"degrade": False},
        {"max_output_tokens": 64},
        {"min_tokens": 65},
        {"tools": [TOOL]},
        {"text": {"format": {"type": "json_object"}}},
    ],
    ids=str,
)
async def test_what_is_not_shortened(body: dict[str, Any]) -> None:
    async with gateway_parts.running(pools=(BUSY,)) as parts:
        parts.workers.note("default", [waiting(60)])
        _, response = await submit(parts, **body)
        assert "shortened" not in response
        request, response = await submit(parts, max_output_tokens=65)
        assert (request.sampling.max_tokens, response["shortened"]["from"]) == (64, 65)


def test_other_calls_are_whole_or_shortened_like_responses() -> None:
    catalog = settings.Catalog((BUSY,))
    question = [{"role": "user", "content": "hi"}]
    chat = chat_api.parse({"model": "m", "messages": question}, catalog)
    assert shortening.allowed(chat, RULE)
    assert not shortening.allowed(
        chat_api.parse({"model": "m", "messages": question, "degrade": False}, catalog), RULE
    )
    compact = responses_api.parse_compact({"model": "m", "input": "hi"}, catalog)
    count_request = responses_api.parse_count({"input": "hi"}, catalog)
    raw = completions_api.parse({"model": "m", "prompt": "hi", "max_tokens": 500}, catalog)
    fork = responses_api.parse({"fork": {"response_id": "resp_" + "A" * 32, "at": 1}}, catalog)
    every: list[command.Create] = [compact, count_request, *raw.creates, fork]
    assert not any(shortening.allowed(each, RULE) for each in every)


async def test_only_what_can_be_continued_is_shortened() -> None:
    async with gateway_parts.running(pools=(BUSY,)) as parts:
        able = sorted(features.ALL - {"continuation"})
        parts.workers.note("default", [waiting(60) | {"features": able}])
        _, request = await submit(parts)
        assert "shortened" not in request
        parts.workers.note("default", [waiting(60)])
    async with gateway_parts.running(pools=(BUSY,), records_version=1) as old:
        old.workers.note("default", [waiting(60)])
        _, request = await submit(old)
        assert "shortened" not in request


async def test_the_rungs_come_one_after_the_other() -> None:
    """A shorter answer, another model, 429; who wants neither waits, or gets 429 at once."""
    async with test_fallback.running(CHAIN) as parts:
        parts.workers.note("default", [waiting(30)])
        request, _ = await submit(parts, CHAIN, deadline_ms=60_000)
        assert request.sampling.max_tokens == 64
        parts.workers.note("default", [waiting(90)])
        request, _ = await submit(parts, CHAIN, "small", deadline_ms=60_000)
        assert request.sampling.max_tokens == 64
        parts.workers.note("small", [waiting(90)])
        bodies: tuple[dict[str, Any], ...] = ({}, {"degrade": False})
        for body in bodies:
            with pytest.raises(errors.ApiError) as error:
                await submit(parts, CHAIN, deadline_ms=60_000, **body)
            assert error.value.status == 429
            retry_s = float(dict(error.value.headers or {})["retry-after"])
            assert 90 * (1 - wait_times.JITTER) <= retry_s <= 90
        parts.workers.note("small", [waiting(0)])
        with pytest.raises(errors.ApiError) as error:
            await submit(parts, CHAIN, deadline_ms=60_000, degrade=False)
        assert error.value.status == 429
        request, response = await submit(parts, CHAIN, degrade=False)
        assert request.sampling.max_tokens == 1000
        assert "shortened" not in response


async def test_a_pool_that_became_busy_meanwhile_keeps_who_wants_no_other() -> None:
    async with test_fallback.running(CHAIN) as parts:
        request, _ = await submit(parts, CHAIN)
        parts.workers.note("default", [waiting(90)])
        for degrade, pool in ((True, "small"), (False, "default")):
            body = {"input": "hi", "deadline_ms": 60_000, "degrade": degrade}
            create = responses_api.parse(body, settings.Catalog(CHAIN))
            assert routes_of(parts).choose(create, request, ALICE.key) == pool


async def test_a_broken_pool_with_another_one_shortens_nothing_and_degrade_does_not_bind_it() -> (
    None
):
    async with test_fallback.running(CHAIN) as parts:
        parts.workers.note("default", [waiting(60)])
        fail(parts, "default")
        for degrade in (True, False):
            request, _ = await submit(parts, CHAIN, "small", degrade=degrade)
            assert request.sampling.max_tokens == 1000
