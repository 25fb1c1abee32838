"""Forks at the gateway: the record is whole by itself, and what cannot be forked is refused by
name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.parsing import forks, responses_api
from gateway.requests import forks as forks_
from tailrace.archive import reader
from tailrace.auth.principal import Principal
from tailrace.protocol import errors, events, features, history, records, topics
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Pool
from tests.support import archive_rows, cases, gateway_parts, memory_log
from tests.support.gateway_parts import ALICE, BOB, CATALOG, Parts

TOOL = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
FIELDS: dict[str, Any] = {
    "instructions": "Be brief.",
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tool_calls": 3,
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_object"}},
}
RID = "resp_" + "A" * 32


async def answer(parts: Parts, end: bool = True, **fields: Any) -> str:
    """The id of a response of three tokens."""
    create = responses_api.parse({"input": "hi", **fields}, CATALOG)
    with await parts.submission.submit(create, ALICE) as stream:
        parts.answer(stream.rid, "a", "b", "c", end=end)
        if end:
            await gateway_parts.all_events(stream)
        return stream.rid


async def fork(parts: Parts, rid: str, at: int = 2, who: Principal = ALICE, **fields: Any) -> str:
    of = {"response_id": rid, "at": at, **fields.pop("of", {})}
    create = responses_api.parse({"fork": of, **fields}, CATALOG)
    with await parts.submission.submit(create, who) as stream:
        return stream.rid


async def refused(parts: Parts, rid: str, at: int = 2, **more: Any) -> errors.ApiError:
    before = len(parts.requests())
    with pytest.raises(errors.ApiError) as error:
        await fork(parts, rid, at, **more)
    assert len(parts.requests()) == before
    return error.value


async def test_the_record_of_a_fork_has_the_prompt_of_its_source() -> None:
    async with gateway_parts.running() as parts:
        first = await answer(parts)
        rid = await answer(parts, previous_response_id=first, **FIELDS)
        source = parts.requests()[-1]
        output = await fork(
            parts, rid, of={"replace": "x"}, temperature=0.5, max_output_tokens=7, seed=3
        )
        request = parts.requests()[-1]
        assert request.fork == records.Fork(rid, 2, "x")
        for name in (
            "messages",
            "input",
            "previous",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "max_tool_calls",
            "format",
            "reasoning",
            "owner",
            "model",
        ):
            assert getattr(request, name) == getattr(source, name), name
        assert request.sampling == records.Sampling(7, temperature=0.5, seed=3)
        own = {"id": output, "temperature": 0.5, "max_output_tokens": 7}
        fork_shown = {"response_id": rid, "at": 2, "replace": "x"}
        expected = {**source.echo, **own, "fork": fork_shown}
        assert request.echo == {**expected, "created_at": request.echo["created_at"]}
        assert events.is_echo(request.echo, output)
        parts.answer(output)


async def test_a_running_response_and_a_fork_are_forked() -> None:
    async with gateway_parts.running() as parts:
        rid = await answer(parts, end=False)
        first = await fork(parts, rid, 3)
        parts.answer(first, "abc", "d")
        second = await fork(parts, first, 1)
        parts.answer(second)
        parts.answer(rid, "a", "b", "c")
        assert parts.requests()[-1].fork == records.Fork(first, 1)
        assert parts.requests()[-1].messages == parts.requests()[0].messages


async def test_a_response_that_another_model_continued_is_not_forked() -> None:
    async with gateway_parts.running() as parts:
        create = responses_api.parse({"input": "hi"}, CATALOG)
        with await parts.submission.submit(create, ALICE) as stream:
            parts.answer(stream.rid, "a", "b", "c", end=False)
            topic = topics.requests("small", "interactive")
            claim = records.Claim(
                *(stream.rid, "two", "own", stream.owner, "w/2", topic, 0, "rev", "tok"),
                served="small",
                continues=True,
            )
            parts.broker.put_record(topics.TOKENS, 0, claim, stream.rid)
            while not any("small" in str(event.response) for event in await stream.next_events()):
                pass
            error = await refused(parts, stream.rid, 1)
            assert (error.status, error.param) == (400, "fork.response_id")
            assert "continued" in error.message
            await parts.operations.append_cancel(stream.rid, stream.owner, stream.echo)
            await gateway_parts.all_events(stream)


async def test_a_source_that_only_the_archive_has_is_in_the_record_of_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers look for it in the log alone."""
    url = f"sqlite:///{tmp_path / 'archive.sqlite3'}"
    broker = memory_log.MemoryLog("one", 1)
    async with gateway_parts.running(broker) as parts:
        rid = await answer(parts, **FIELDS)
        source = parts.requests()[-1]
    log_records = [
        record
        for r in broker.records(topics.TOKENS, 0)
        if (record := records.token_of(r.key, r.value)) is not None
    ]
    await archive_rows.build(url, broker, history.from_records(source, log_records, 1))
    for partial in (False, True):
        if partial:
            broker.delete_below(topics.TOKENS, 0, len(log_records))
        async with gateway_parts.running(broker, archive=reader.open_reader(url)) as parts:
            parts.answer(await fork(parts, rid, of={"replace": "x"}))
            output = parts.requests()[-1]
            assert output.messages == source.messages
            expected = records.ForkSource("rev", "tok", [0, 1]) if partial else None
            assert output.fork == records.Fork(rid, 2, "x", expected)
            assert output.echo["fork"] == {"response_id": rid, "at": 2, "replace": "x"}
            assert (await refused(parts, rid, 4)).param == "fork.at"
            assert (await refused(parts, rid, who=BOB)).code == "previous_response_not_found"
            # One so old that the log may lose it before the fork is served, as all are now.
            with monkeypatch.context() as every:
                every.setattr(forks_, "SURELY_LOGGED_S", -5)
                parts.answer(await fork(parts, rid, 1))
            assert parts.requests()[-1].fork == records.Fork(
                rid, 1, source=records.ForkSource("rev", "tok", [0])
            )
    async with gateway_parts.running(broker, archive=reader.open_reader(url)) as parts:
        await parts.operations.delete(rid, source.owner)
        assert (await refused(parts, rid)).code == "previous_response_not_found"


@cases.each("rid", [RID, "resp_x", "", "chatcmpl-" + "A" * 32])
async def test_an_unknown_source_is_not_found(rid: str) -> None:
    async with gateway_parts.running() as parts:
        error = await refused(parts, rid)
        assert (error.status, error.code, error.param) == (
            400,
            "previous_response_not_found",
            "fork.response_id",
        )


async def test_what_is_not_the_callers_stored_response_is_not_found() -> None:
    async with gateway_parts.running() as parts:
        response, private = await answer(parts), await answer(parts, store=False)
        assert (await refused(parts, response, who=BOB)).code == "previous_response_not_found"
        assert (await refused(parts, private)).code == "previous_response_not_found"
        await parts.operations.delete(response, parts.requests()[0].owner)
        assert (await refused(parts, response)).code == "previous_response_not_found"


async def test_a_place_behind_the_answer_is_refused() -> None:
    async with gateway_parts.running() as parts:
        rid = await answer(parts)
        error = await refused(parts, rid, 4)
        assert (error.code, error.param) == ("invalid_value", "fork.at")
        assert "3 tokens" in error.message
        output = await fork(parts, rid, 3)
        parts.answer(output)
        create = responses_api.parse({"input": "hi"}, CATALOG)
        with await parts.submission.submit(create, ALICE) as stream:
            error = await refused(parts, stream.rid, 0)
            assert (error.param, "not started" in error.message) == ("fork.at", True)
            parts.answer(stream.rid)


async def test_another_model_does_not_continue_it() -> None:
    async with gateway_parts.running() as parts:
        rid = await answer(parts)
        both = Pool("default", ("m", "other"), 1000, 100)
        create = responses_api.parse(
            {"fork": {"response_id": rid, "at": 1}, "model": "other"}, Catalog((both,))
        )
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create, ALICE)
        assert (error.value.code, error.value.param) == ("invalid_value", "model")
        assert "'m'" in error.value.message


async def test_what_goes_on_behind_the_sources_format_is_refused_and_a_stop_string_is_not() -> None:
    async with gateway_parts.running() as parts:
        rid = await answer(parts, text=FIELDS["text"])
        parts.answer(await fork(parts, rid, stop=["x"]))
        assert parts.requests()[-1].sampling.stop == ("x",)
        longer: dict[str, Any] = {"min_tokens": 2, "ignore_eos": True}
        for name, value in longer.items():
            error = await refused(parts, rid, **{name: value})
            assert (error.code, error.param) == ("invalid_value", name)


async def test_a_pool_without_forks_and_an_old_log_refuse_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_parts.running() as parts:
        rid = await answer(parts)
        able = [f for f in features.ALL if f != "forks"]
        beats = [{"state": "ready", "partitions": [0], "features": able}]
        monkeypatch.setattr(parts.workers, "workers", lambda _pool: beats)
        error = await refused(parts, rid)
        assert (error.code, error.param) == ("unsupported_parameter", "fork")
        monkeypatch.setattr(parts.workers, "workers", lambda _pool: [])
        async with gateway_parts.running(parts.broker, parts.redis, records_version=1) as old:
            error = await refused(old, rid)
        assert (error.code, error.param) == ("unsupported_parameter", "fork")


def parse_fork(body: dict[str, Any], websocket: bool = False) -> records.Fork | None:
    return responses_api.parse(body, CATALOG, websocket=websocket).fork


def test_a_fork_is_read() -> None:
    of = {"response_id": "resp_x", "at": 0}
    assert parse_fork({"fork": of}) == records.Fork("resp_x", 0)
    assert parse_fork({"fork": {**of, "replace": None}}) == records.Fork("resp_x", 0)
    assert parse_fork({"fork": {**of, "replace": "é"}}, True) == records.Fork("resp_x", 0, "é")
    assert parse_fork({"fork": None, "input": "hi"}) is None


@cases.each(
    ("fork_", "param", "code"),
    [
        ("resp_x", "fork", "invalid_type"),
        ({}, "fork.response_id", "missing_required_parameter"),
        ({"response_id": "x"}, "fork.at", "missing_required_parameter"),
        ({"response_id": 1, "at": 1}, "fork.response_id", "invalid_type"),
        ({"response_id": "x", "at": True}, "fork.at", "invalid_type"),
        ({"response_id": "x", "at": "1"}, "fork.at", "invalid_type"),
        ({"response_id": "x", "at": -1}, "fork.at", "invalid_value"),
        ({"response_id": "x", "at": 2**60}, "fork.at", "invalid_value"),
        ({"response_id": "x", "at": 1, "replace": 1}, "fork.replace", "invalid_type"),
        ({"response_id": "x", "at": 1, "replace": "x" * 20_000}, "fork.replace", "invalid_value"),
    ],
)
def test_a_wrong_fork_is_refused_by_the_place(fork_: Any, param: str, code: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        parse_fork({"fork": fork_})
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)
    assert "'fork" in error.value.message


@cases.each("name", forks.EXCLUDED_FIELDS)
def test_what_makes_a_prompt_is_refused_beside_it(name: str) -> None:
    values: dict[str, Any] = {"input": "hi", "conversation": "conv_1"}
    with pytest.raises(errors.ApiError) as error:
        parse_fork({"fork": {"response_id": "x", "at": 1}, name: values.get(name, {})})
    assert (error.value.status, error.value.param) == (400, name)


def test_a_warm_up_is_no_fork() -> None:
    with pytest.raises(errors.ApiError) as error:
        parse_fork({"fork": {"response_id": "x", "at": 1}, "generate": False}, True)
    assert error.value.param == "generate"
