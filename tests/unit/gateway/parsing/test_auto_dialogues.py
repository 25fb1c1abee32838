"""The model `auto` by the length of the whole dialogue, over a log and a Redis in memory.

The rules are those of `OFFERED`: up to 100 tokens are for the small model, more for the large one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.parsing import auto_model, command, responses_api
from gateway.responses import context, response_stream
from gateway.responses.memory import ResponseMemory
from tailrace.archive import reader
from tailrace.protocol import errors, features, records, topics
from tailrace.settings import catalog
from tailrace.settings.shapes import Limits
from tailrace.web import access
from tests.support import cases, gateway_parts, memory_log
from tests.support.gateway_parts import ALICE, Parts, put_answer
from tests.unit.gateway.requests import test_turns

archive = test_turns.archive
OWNER = access.owner_of(ALICE)
OFFERED = catalog.from_file(
    {
        "pools": {
            "default": {"models": ["s"], "max_model_len": 1000, "max_output_tokens": 50},
            "large": {"models": ["l"], "max_model_len": 8000, "max_output_tokens": 100},
        },
        "auto": [{"model": "s", "max_prompt_tokens": 100}, {"model": "l"}],
    }
)
LONG = "y" * 500


@contextlib.asynccontextmanager
async def running(answers: reader.Reader | None = None, **more: Any) -> AsyncIterator[Parts]:
    broker = memory_log.MemoryLog("one", 1, pools=("default", "large"))
    async with gateway_parts.running(broker, archive=answers, pools=OFFERED.pools, **more) as parts:
        for pool in OFFERED.names:
            parts.workers.note(pool, [beat()])
        yield parts


def beat(**more: Any) -> dict[str, Any]:
    return {"state": "ready", "features": sorted(features.ALL), **more}


def create(text: str = "hi", key: str | None = None, **fields: Any) -> command.Create:
    """A parsed `POST /v1/responses` for `auto`. `key`: of its header."""
    body = {"model": "auto", "input": text, **fields}
    create = auto_model.parse_auto(body, OFFERED, responses_api.parse)
    return command.with_key(create, key, body)


def records_by_pool(parts: Parts) -> list[tuple[str, records.Request]]:
    """The requests in the log, with the pool whose topic each one is in."""
    of = {topics.requests(pool, "interactive"): pool for pool in OFFERED.names}
    return [
        (of[r.topic], request)
        for r in parts.broker.appended
        if r.topic in of and (request := records.decode_request(r.value)) is not None
    ]


async def answer(
    parts: Parts,
    command_: command.Create,
    text: str,
    recall: dict[str, ResponseMemory] | None = None,
) -> response_stream.ResponseStream:
    """The stream of a response that has ended."""
    with await parts.submission.submit(command_, ALICE, (recall or {}).get) as stream:
        put_answer(parts.broker, records_by_pool(parts)[-1][1], text)
        await gateway_parts.all_events(stream)
    await parts.settled()
    return stream


def last(parts: Parts) -> tuple[str, str]:
    """Model and topic of the last request."""
    pool, request = records_by_pool(parts)[-1]
    assert request.echo["model"] == request.model
    return request.model, pool


@cases.each("known", ["by the connection", "by Redis", "by the log"])
async def test_a_short_turn_of_a_long_dialogue_is_a_long_one(known: str) -> None:
    """Also where the former turn was another model's: what goes on is its text."""
    async with running() as parts:
        first = await answer(parts, create("hi"), LONG)
        assert last(parts) == ("s", "default")
        recall = {}
        if known == "by the connection":
            assert isinstance(first.memory, ResponseMemory)
            recall = {first.rid: first.memory}
        parts.redis.away = known == "by the log"
        second = create("and?", previous_response_id=first.rid)
        await answer(parts, second, "so", recall)
        assert last(parts) == ("l", "large")
        _, request = records_by_pool(parts)[-1]
        assert [m["content"] for m in request.messages] == ["hi", LONG, "and?"]
        assert (request.previous, request.sampling.max_tokens) == (first.rid, 100)


async def test_a_short_dialogue_stays_with_the_small_model() -> None:
    async with running() as parts:
        first = await answer(parts, create("hi"), "ho")
        await answer(parts, create("and?", previous_response_id=first.rid), "so")
        assert last(parts) == ("s", "default")


async def test_a_dialogue_that_gets_short_again_goes_back_to_the_small_model() -> None:
    async with running() as parts:
        first = await answer(parts, create(LONG), "ho")
        assert last(parts) == ("l", "large")
        for _ in range(10):
            first = await answer(parts, create("u", previous_response_id=first.rid), "so")
        assert last(parts) == ("l", "large"), "the long turn is one of the last ten"
        await answer(parts, create("u", previous_response_id=first.rid), "so")
        assert last(parts) == ("s", "default"), "it is no part of the prompt any more"


async def test_turns_that_are_left_out_of_the_prompt_do_not_count() -> None:
    async with running() as parts:
        first = await answer(parts, create("hi"), "ho")
        turn = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "so"}]
        long = [{**turn[0], "content": LONG}, turn[1]]
        for before, model in (([*long, *turn * 9], "l"), ([*long, *turn * 10], "s")):
            memory = ResponseMemory(first.rid, context.pack(before))
            again = create("u", previous_response_id=first.rid)
            await answer(parts, again, "so", {first.rid: memory})
            assert last(parts)[0] == model


async def test_the_dialogue_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as parts:
        first = await answer(parts, create("hi"), LONG)
        lookups, look = [], parts.cache.turn

        async def turn(rid: str) -> bytes | None:
            lookups.append(rid)
            return await look(rid)

        monkeypatch.setattr(parts.cache, "turn", turn)
        await answer(parts, create("and?", previous_response_id=first.rid), "so")
        assert (last(parts), lookups) == (("l", "large"), [first.rid])


async def test_nothing_is_looked_for_on_behalf_of_a_principal_that_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(limits=Limits(requests_rate=0.001, requests_burst=1)) as parts:
        first = await answer(parts, create("hi"), LONG)
        lookups: list[str] = []

        async def turn(rid: str) -> bytes | None:
            lookups.append(rid)
            return None

        monkeypatch.setattr(parts.cache, "turn", turn)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create("a", previous_response_id=first.rid), ALICE)
        assert (error.value.status, lookups) == (429, [])


BUSY = {
    "waiting_tokens": [100_000, 0],
    "request_tokens": 1_000,
    "drain_rate": 100.0,
    "capacity": 1,
    "running": 1,
    "queued": 1,
}


@pytest.mark.parametrize(("busy", "refused"), [("default", False), ("large", True)])
async def test_the_backlog_of_the_chosen_pool_decides(busy: str, refused: bool) -> None:
    async with running() as parts:
        first = await answer(parts, create("hi"), LONG)
        parts.workers.note(busy, [beat(**BUSY)])
        again = create("and?", previous_response_id=first.rid, deadline_ms=20_000)
        if not refused:
            await answer(parts, again, "so")
            assert last(parts) == ("l", "large")
            return
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(again, ALICE)
        assert error.value.status == 429
        assert len(records_by_pool(parts)) == 1


async def test_a_dialogue_that_is_too_long_for_every_rule_is_not_written() -> None:
    rules = catalog.Catalog(OFFERED.pools, OFFERED.rules[:1])
    async with running() as parts:
        first = await answer(parts, create("hi"), LONG)
        body = {"model": "auto", "input": "and?", "previous_response_id": first.rid}
        command_ = auto_model.parse_auto(body, rules, responses_api.parse)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(command_, ALICE)
        assert (error.value.status, error.value.param) == (400, "model")
        assert len(records_by_pool(parts)) == 1


async def test_a_count_leaves_to_a_worker_what_this_process_cannot_count() -> None:
    async with running() as parts:
        first = await answer(parts, create("hi"), LONG)
        body = {"model": "auto", "input": "and?", "previous_response_id": first.rid}
        command_ = auto_model.reading(responses_api.parse_count)(body, OFFERED)
        assert await parts.submission.count(command_, ALICE) is None


class TestConversation:
    async def test_its_turns_count(self, archive: reader.Reader) -> None:
        async with running(archive) as parts:
            name = (await parts.conversations.create(OWNER, {}, "", [])).id
            await answer(parts, create("hi", conversation=name), "ho")
            assert last(parts) == ("s", "default")
            await answer(parts, create("and?", conversation=name), LONG)
            assert last(parts) == ("s", "default")
            await answer(parts, create("so?", conversation=name), "so")
            assert last(parts) == ("l", "large")
            texts = [m["content"] for m in records_by_pool(parts)[-1][1].messages]
            assert texts == ["hi", "ho", "and?", LONG, "so?"]

    async def test_a_repeated_turn_that_runs_still_is_found(self, archive: reader.Reader) -> None:
        """It was for the large model; what may be chosen now is not known as long as it runs."""
        async with running(archive) as parts:
            name = (await parts.conversations.create(OWNER, {}, "", [])).id
            await answer(parts, create("hi", conversation=name), LONG)
            again = functools.partial(create, "and?", "key", conversation=name)
            with await parts.submission.submit(again(), ALICE) as stream:
                assert last(parts) == ("l", "large")
                with await parts.submission.submit(again(), ALICE) as other:
                    assert other.rid == stream.rid
                put_answer(parts.broker, records_by_pool(parts)[-1][1], "so")
                await gateway_parts.all_events(stream)
            assert len(records_by_pool(parts)) == 2

    async def test_a_repeated_turn_that_made_it_long_is_found_without_redis(
        self, archive: reader.Reader
    ) -> None:
        """Symptom: the turn was for the small model, and with its answer the conversation is one
        for the large model, in whose topic the key is not."""
        async with running(archive) as parts:
            name = (await parts.conversations.create(OWNER, {}, "", [])).id
            again = functools.partial(create, "hi", "key", conversation=name)
            first = await answer(parts, again(), LONG)
            assert last(parts) == ("s", "default")
            parts.redis.away = True
            with await parts.submission.submit(again(), ALICE) as other:
                assert other.rid == first.rid
            assert len(records_by_pool(parts)) == 1
