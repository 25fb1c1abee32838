"""Counting prompts at the gateway: what is refused before it is written, and what is left to the
workers."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.parsing import chat_api, command, completions_api, responses_api
from gateway.requests import token_counts
from tailrace import settings
from tailrace.prompts import counter
from tailrace.protocol import errors, records
from tests.support import gateway_parts, pictures, small_tokenizer
from tests.support.gateway_parts import ALICE, CATALOG, POOL, Parts

LENGTH = POOL.max_model_len
AROUND = 17  # tokens of a prompt with one question, without its text
FITS = "x" * (LENGTH - AROUND - 1)
IMAGE = pictures.url(pictures.png(1))
Beat = Callable[..., None]


def pools(*offers: settings.Pool) -> settings.CurrentPools:
    return settings.CurrentPools(settings.Catalog(offers))


def counted_by(parts: Parts, counts: token_counts.TokenCounts) -> None:
    parts.token_counts = counts
    parts.submission = parts.submission_with(parts.keys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_tokenizer.build(tmp_path / "model")


@pytest.fixture
async def parts(folder: Path) -> AsyncIterator[Parts]:
    async with gateway_parts.running() as running:
        pool = dataclasses.replace(POOL, tokenizer=str(folder))
        counts = token_counts.TokenCounts(pools(pool), running.workers)
        await counts.read()
        counted_by(running, counts)
        yield running
        counts.close()


@pytest.fixture
def beats(parts: Parts, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Beat:
    """Says what the workers of the pool tell."""
    digest = counter.Counter(folder).digest

    def tell(*reports: dict[str, Any]) -> None:
        alike = {"state": "ready", "counting_digest": digest, "max_model_len": LENGTH}
        actual = [{**alike, **each} for each in reports]
        monkeypatch.setattr(parts.workers, "workers", lambda _pool: actual)

    tell({})
    return tell


async def is_accepted(parts: Parts, create: command.Create) -> bool:
    """Whether it was written; raises what it was refused with."""
    before = len(parts.requests())
    try:
        with await parts.submission.submit(create, ALICE) as stream:
            parts.answer(stream.rid)
    except errors.ApiError:
        assert len(parts.requests()) == before
        raise
    return len(parts.requests()) == before + 1


def response(text: str = FITS, **more: Any) -> command.Create:
    return responses_api.parse({"input": text, **more}, CATALOG)


def chat() -> command.Create:
    body = {"messages": [{"role": "user", "content": FITS + "x"}]}
    choice = records.Choice("g")
    return dataclasses.replace(chat_api.parse(body, CATALOG), choice=choice)


def text() -> command.Create:
    body = {"prompt": "x" * LENGTH, "max_tokens": 1}
    create = completions_api.parse(body, CATALOG).creates[0]
    return dataclasses.replace(create, choice=records.Choice("g"))


@pytest.mark.parametrize(
    ("create", "param"),
    [(response(FITS + "x"), "input"), (chat(), "messages"), (text(), "prompt")],
    ids=["responses", "chat completions", "completions"],
)
async def test_what_is_a_token_too_long_is_refused_before_it_is_written(
    create: command.Create, param: str, parts: Parts, beats: Beat
) -> None:
    with pytest.raises(errors.ApiError) as error:
        await is_accepted(parts, create)
    actual = error.value
    assert (actual.status, actual.code, actual.param) == (400, "context_length_exceeded", param)
    assert f"{LENGTH} tokens. However, your messages resulted in {LENGTH} tokens" in actual.message


async def test_what_fits_is_written(parts: Parts, beats: Beat) -> None:
    assert await is_accepted(parts, response())


async def test_a_conversation_is_counted_whole(parts: Parts, beats: Beat) -> None:
    half = "x" * 500
    with await parts.submission.submit(response(half), ALICE) as stream:
        parts.answer(stream.rid, "a", "b")
        await gateway_parts.all_events(stream)
    assert await is_accepted(parts, response("x" * 100, previous_response_id=stream.rid))
    with pytest.raises(errors.ApiError) as error:
        await is_accepted(parts, response(half, previous_response_id=stream.rid))
    assert error.value.code == "context_length_exceeded"
    count = await parts.submission.count(
        responses_api.parse_count({"input": "x", "previous_response_id": stream.rid}, CATALOG),
        ALICE,
    )
    assert count is not None
    assert count > 500


async def test_older_messages_may_be_left_out(parts: Parts, beats: Beat) -> None:
    assert await is_accepted(parts, response(FITS + "x", truncation="auto"))
    create = responses_api.parse_count({"input": FITS + "x", "truncation": "auto"}, CATALOG)
    assert await parts.submission.count(create, ALICE) is None


@pytest.mark.parametrize(
    "told",
    [
        ({"counting_digest": "other"},),
        ({}, {"counting_digest": "other"}),
        ({"counting_digest": None},),
        ({}, {"counting_digest": ""}),
        ({"max_model_len": "1000"},),
    ],
)
async def test_workers_that_count_otherwise_decide(
    told: tuple[dict[str, Any], ...], parts: Parts, beats: Beat
) -> None:
    beats(*told)
    assert await is_accepted(parts, response(FITS + "x"))
    assert await parts.submission.count(response(), ALICE) is None


async def test_the_longest_model_of_the_pool_counts(parts: Parts, beats: Beat) -> None:
    beats({}, {"max_model_len": LENGTH + 1}, {"state": "loading", "counting_digest": ""})
    assert await is_accepted(parts, response(FITS + "x"))
    with pytest.raises(errors.ApiError):
        await is_accepted(parts, response(FITS + "xx"))


async def test_what_was_agreed_holds_while_no_worker_is_known(parts: Parts, beats: Beat) -> None:
    beats()
    assert await is_accepted(parts, response(FITS + "x")), "nothing is known yet"
    beats({})
    assert await parts.submission.count(response("x"), ALICE) == AROUND + 1
    beats()
    assert await parts.submission.count(response("x"), ALICE) == AROUND + 1
    with pytest.raises(errors.ApiError):
        await is_accepted(parts, response(FITS + "x"))
    beats({"counting_digest": "other"})
    assert await is_accepted(parts, response(FITS + "x"))
    beats()
    assert await is_accepted(parts, response(FITS + "x")), "it is not agreed any more"


async def test_what_is_short_beyond_doubt_is_not_counted(
    parts: Parts, beats: Beat, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int | None] = []
    count = counter.Counter.count

    def spy(output: counter.Counter, request: records.Request) -> int | None:
        counts.append(count(output, request))
        return counts[-1]

    monkeypatch.setattr(counter.Counter, "count", spy)
    await is_accepted(parts, response("天" * 100))
    assert counts == []
    await is_accepted(parts, response("x" * 300))
    assert counts == [AROUND + 300]


async def test_images_and_forks_are_counted_by_workers(parts: Parts, beats: Beat) -> None:
    output = [{"type": "input_text", "text": FITS}, {"type": "input_image", "image_url": IMAGE}]
    create = responses_api.parse_count({"input": [{"role": "user", "content": output}]}, CATALOG)
    assert await parts.submission.count(create, ALICE) is None
    with await parts.submission.submit(response("hi"), ALICE) as stream:
        parts.answer(stream.rid, "a", "b")
        await gateway_parts.all_events(stream)
    of = {"fork": {"response_id": stream.rid, "at": 1, "replace": "x" * LENGTH}}
    assert await is_accepted(parts, responses_api.parse(of, CATALOG))


@pytest.mark.parametrize("template", ["{{ strftime_now('%d') }}", "{% if %}"])
async def test_a_model_that_cannot_be_read_is_left_to_workers(
    template: str, tmp_path: Path, parts: Parts, beats: Beat
) -> None:
    patch = small_tokenizer.build(tmp_path / "broken", template)
    pool = dataclasses.replace(POOL, tokenizer=str(patch))
    counts = token_counts.TokenCounts(
        pools(pool, dataclasses.replace(POOL, name="other")), parts.workers
    )
    await counts.read()
    assert not counts.can_count("default")
    assert not counts.can_count("other")
    counted_by(parts, counts)
    assert await is_accepted(parts, response(FITS + "x"))
    counts.close()


@pytest.mark.parametrize(
    "text", ["", "x", "<|im_end|>", "天気" * 50, "\x00\r\n", "👩‍👩‍👧" * 20, "word " * 100]
)
@pytest.mark.parametrize("tools", [0, 3])
def test_no_prompt_is_longer_than_is_thought(text: str, tools: int, folder: Path) -> None:
    parameters = {"type": "object", "properties": {"a天": {"type": ["string", "null"], "x": 1.5}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    message = {"role": "user", "content": text}
    request = records.Request(
        "r",
        records.Owner("i", "s"),
        "m",
        [message, {**message, "role": "assistant", "reasoning_content": text}] * 3,
        records.Sampling(1),
        {},
        tools=[tool] * tools,
    )
    tokens = counter.Counter(folder).count(request)
    assert tokens is not None
    assert tokens < token_counts.most_tokens(request)
