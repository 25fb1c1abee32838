"""Several answers to one request: all of them or none, followed as one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.parsing import chat_api, command, completions_api
from gateway.requests import choices
from tailrace.protocol import errors, events, records
from tailrace.settings.shapes import Limits
from tests.support import gateway_parts
from tests.support.gateway_parts import ALICE, CATALOG


def create(n: int = 3, key: str | None = None, **fields: Any) -> command.Create:
    body = {"messages": [{"role": "user", "content": "hi"}], "n": n, **fields}
    parsed_body = chat_api.parse(body, CATALOG)
    return command.with_key(parsed_body, key, body)


async def submit(parts: gateway_parts.Parts, request: command.Create) -> choices.Choices:
    return await choices.submit(
        parts.submission, parts.withdrawals, choices.requests(request), ALICE
    )


async def test_each_choice_is_a_response_and_the_stream_has_the_events_of_all() -> None:
    async with gateway_parts.running() as parts:
        with await submit(parts, create(seed=5)) as choice:
            rids = [stream.rid for stream in choice.streams]
            assert choice.headers["x-tailrace-response-id"] == ", ".join(rids)
            assert [r.rid for r in parts.requests()] == rids
            assert [r.sampling.seed for r in parts.requests()] == [5, 6, 7]
            for number, rid in enumerate(rids):
                parts.answer(rid, f"answer {number}")
            actual: list[tuple[int, events.Event]] = []
            async with asyncio.timeout(5):
                while not choice.ended:
                    actual += await choice.next_events()
            assert await choice.next_events() == []
            text = [[e.delta for i, e in actual if i == n and e.delta] for n in range(3)]
            assert text == [[f"answer {n}"] for n in range(3)]
            assert [final["id"] for final in choice.finals] == rids
        assert len(parts.streams.running) == 0


async def test_a_keep_alive_ends_the_wait_and_loses_nothing() -> None:
    async with gateway_parts.running() as parts:
        with await submit(parts, create(2)) as choice:
            actual: list[tuple[int, events.Event]] = []
            while len(actual) < 2:  # response.created of both
                actual += await choice.next_events()
            waiting = asyncio.ensure_future(choice.next_events())
            await asyncio.sleep(0)
            choice.keepalive()
            assert await asyncio.wait_for(waiting, 5) == []
            for stream in choice.streams:
                parts.answer(stream.rid, "x")
            async with asyncio.timeout(5):
                await choice.to_end()
            assert len(choice.finals) == 2


async def test_choices_need_a_place_each() -> None:
    async with gateway_parts.running(limits=Limits(responses_per_principal=2)) as parts:
        with pytest.raises(errors.ApiError) as error:
            await submit(parts, create(3))
        assert error.value.status == 429
        assert parts.requests() == []
        with await submit(parts, create(2)) as choice:
            for stream in choice.streams:
                parts.answer(stream.rid)


async def test_where_one_is_refused_the_others_are_withdrawn_before_the_answer() -> None:
    async with gateway_parts.running(limits=Limits(requests_rate=0.001, requests_burst=2)) as parts:
        with pytest.raises(errors.ApiError) as failed:
            await submit(parts, create(3))
        assert failed.value.status == 429
        cancelled = parts.tokens(records.Cancel)
        assert {c.rid for c in cancelled} == {r.rid for r in parts.requests()}
        assert len(cancelled) == 2
        assert all(isinstance(c, records.Cancel) and c.withdrawn for c in cancelled)


async def test_a_repeated_request_finds_each_of_its_choices() -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts, create(3, "k"))
        again = await submit(parts, create(3, "k"))
        assert [s.rid for s in first.streams] == [s.rid for s in again.streams]
        assert len({s.rid for s in first.streams}) == 3
        for stream in first.streams:
            parts.answer(stream.rid, "x")
        first.release()
        again.release()


async def test_a_client_that_leaves_cancels_all_that_are_not_stored() -> None:
    async with gateway_parts.running() as parts:
        choice = await submit(parts, create(3, store=False))
        choice.release()
        await parts.settled()
        assert {c.rid for c in parts.tokens(records.Cancel)} == {s.rid for s in choice.streams}


def test_a_prompts_seeds_do_not_depend_on_its_place() -> None:
    """Symptom: the same prompt with the same seed was answered otherwise behind another prompt."""
    body = {"prompt": ["a", "b"], "n": 2, "seed": 5}
    prompts = completions_api.parse(body, CATALOG).creates
    keyed_request = [command.with_key(prompt, "k", body) for prompt in prompts]
    request = choices.requests(keyed_request[0], keyed_request)
    assert [(each.input[0]["content"], each.sampling.seed) for each in request] == [
        ("a", 5),
        ("a", 6),
        ("b", 5),
        ("b", 6),
    ]
    assert len({each.idempotency_key for each in request}) == 4


def test_seeds_stay_within_their_bounds() -> None:
    command_ = create(seed=2**63 - 1)
    assert choices.nth(command_, 0, 0) is command_
    assert choices.nth(command_, 1, 1).sampling.seed == -(2**63)
