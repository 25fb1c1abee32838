"""Workers whose engine is an OpenAI-compatible server over HTTP, on a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace.protocol import fold, records
from tests.support import openai_server, workers
from tests.support.waiting import eventually


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[openai_server.Server]:
    async with openai_server.Server() as made:
        yield made


async def test_the_servers_text_and_usage_reach_the_log(
    bench: workers.Bench, server: openai_server.Server
) -> None:
    await bench.serve(
        engine=f"{server.url}/v1", TAILRACE_MODEL="upstream", TAILRACE_ENGINE_KEY="k-123"
    )
    request = await bench.ask(
        "say 4", sampling=records.Sampling(50, temperature=0.5, stop=("@@",), seed=3)
    )
    answer = await bench.done(request.rid)

    assert answer.text == "wörd0 wörd1 wörd2 wörd3 "
    assert answer.ended.status == "completed"
    assert answer.ended.usage == records.Usage(7, 4, 2)
    sent = server.requests[0]
    assert (sent["model"], sent["max_tokens"], sent["temperature"], sent["stop"], sent["seed"]) == (
        "upstream",
        50,
        0.5,
        ["@@"],
        3,
    )
    assert "logit_bias" not in sent
    assert "authorization: bearer k-123" in server.headers[0].lower()


async def test_the_servers_bound_is_an_incomplete_answer_not_a_number_of_characters(
    bench: workers.Bench, server: openai_server.Server
) -> None:
    await bench.serve(engine=server.url)
    answer = await bench.done((await bench.ask("say 40", sampling=records.Sampling(2))).rid)
    assert (answer.text, answer.ended.status) == ("wörd0 wörd1 ", "incomplete")


async def test_a_refusal_fails_the_response_with_the_servers_words(
    bench: workers.Bench, server: openai_server.Server
) -> None:
    await bench.serve(engine=server.url)
    answer = await bench.done((await bench.ask("status 400")).rid)
    assert answer.ended.error == ("engine_refused", "refused: status 400")
    assert len(server.requests) == 1


async def test_a_server_that_is_busy_is_asked_again(
    bench: workers.Bench, server: openai_server.Server
) -> None:
    await bench.serve(engine=server.url)
    server.fail_first = 2
    answer = await bench.done((await bench.ask("say 3")).rid)
    assert answer.ended.status == "completed"
    assert len(server.requests) == 3


async def test_a_stream_that_breaks_after_text_ends_as_not_resumable_where_text_is_not_continued(
    bench: workers.Bench, server: openai_server.Server
) -> None:
    await bench.serve(engine=server.url)
    answer = await bench.done((await bench.ask("cut 9")).rid)
    assert answer.text == "wörd0 wörd1 wörd2 "
    assert answer.ended.status == "failed"
    assert answer.ended.error is not None
    assert answer.ended.error[0] == "not_resumable"
    assert len(server.requests) == 1


async def test_a_cancel_closes_the_stream_to_the_server(
    bench: workers.Bench, server: openai_server.Server
) -> None:
    await bench.serve(engine=server.url)
    request = await bench.ask("slow 5000")
    await bench.tokens(request.rid, 1)
    await bench.cancel(request)
    await eventually(lambda: server.closed_early, "the server's stream is closed", within_s=5)
    assert (await bench.read(request.rid)).fold.phase is fold.Phase.DONE


async def test_a_server_without_usage_is_counted_by_its_chunks(
    bench: workers.Bench, server: openai_server.Server
) -> None:
    await bench.serve(engine=server.url)
    answer = await bench.done((await bench.ask("no usage 6")).rid)
    assert answer.ended.usage.output_tokens == 6
