"""`truncation: "auto"` at the gateway: what is asked of the worker, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import responses_api
from tailrace.protocol import errors, features, records
from tests.support import gateway_parts
from tests.support.gateway_parts import ALICE, CATALOG, POOL, Parts

LONG = "x" * (POOL.max_model_len * 20)
TURNS = [
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": "ah"},
    {"role": "user", "content": "and now?"},
]


async def submit(parts: Parts, **body: Any) -> records.Request:
    create = responses_api.parse({"input": "hi", **body}, CATALOG)
    with await parts.submission.submit(create, ALICE) as stream:
        parts.answer(stream.rid, "a", "b", "c")
        await gateway_parts.all_events(stream)
    return parts.requests()[-1]


async def test_the_worker_is_asked_for_it_and_the_client_is_told_so() -> None:
    async with gateway_parts.running() as parts:
        request = await submit(parts, truncation="auto")
        assert (request.truncate, request.version) == (True, 2)
        assert request.echo["truncation"] == "auto"
        for value in ("disabled", None):
            request = await submit(parts, truncation=value)
            assert (request.truncate, request.version) == (False, 1)
            assert request.echo["truncation"] == "disabled"


def test_only_what_must_stay_has_to_fit() -> None:
    assert responses_api.parse({"input": TURNS, "truncation": "auto"}, CATALOG).truncate
    for body in (
        {"input": TURNS},
        {"input": TURNS, "truncation": "disabled"},
        {"input": [*TURNS, {"role": "user", "content": LONG}], "truncation": "auto"},
        {"input": [{"role": "system", "content": LONG}, *TURNS], "truncation": "auto"},
    ):
        with pytest.raises(errors.ApiError) as error:
            responses_api.parse(body, CATALOG)
        assert error.value.code == "context_length_exceeded"


async def test_a_pool_that_cannot_and_an_old_log_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_parts.running() as parts:
        able = [f for f in features.ALL if f != "truncation"]
        beats = [{"state": "ready", "partitions": [0], "features": able}]
        monkeypatch.setattr(parts.workers, "workers", lambda _pool: beats)
        await submit(parts)
        with pytest.raises(errors.ApiError) as error:
            await submit(parts, truncation="auto")
        assert (error.value.code, error.value.param) == ("unsupported_parameter", "truncation")
        monkeypatch.setattr(parts.workers, "workers", lambda _pool: [])
        async with gateway_parts.running(parts.broker, parts.redis, records_version=1) as old:
            with pytest.raises(errors.ApiError) as error:
                await submit(old, truncation="auto")
        assert (error.value.code, error.value.param) == ("unsupported_parameter", "truncation")


async def test_a_fork_has_the_messages_that_its_source_was_given() -> None:
    async with gateway_parts.running() as parts:
        text = [dict(m, content="short") for m in TURNS]
        create = responses_api.parse({"input": text, "truncation": "auto"}, CATALOG)
        with await parts.submission.submit(create, ALICE) as stream:
            gateway_parts.put_answer(parts.broker, parts.requests()[-1], "a", "b", "c", dropped=2)
            response = (await gateway_parts.all_events(stream))[-1].response
        assert response is not None
        assert (response["truncation"], response["dropped_messages"]) == ("auto", 2)
        of = {"response_id": stream.rid, "at": 2}
        with await parts.submission.submit(
            responses_api.parse({"fork": of}, CATALOG), ALICE
        ) as stream:
            request = parts.requests()[-1]
            parts.answer(stream.rid)
        assert request.messages == text[2:]
        assert request.input == parts.requests()[-2].input
        assert not request.truncate
        assert request.echo["dropped_messages"] == 2


def test_a_fork_cannot_leave_out_more() -> None:
    of = {"fork": {"response_id": "resp_x", "at": 1}}
    responses_api.parse({**of, "truncation": "disabled"}, CATALOG)
    with pytest.raises(errors.ApiError) as error:
        responses_api.parse({**of, "truncation": "auto"}, CATALOG)
    assert (error.value.status, error.value.param) == (400, "truncation")
