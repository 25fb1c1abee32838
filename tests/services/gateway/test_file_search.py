"""The tool `file_search` on real parts: Kafka, Redis, gateways, a worker on the scripted engine,
milvus-lite, and the official client as it is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import responses as sdk

from tests.services.gateway.conftest import vectors
from tests.support import gateway_process as gp
from tests.support import sdk as sdk_client
from tests.support import waiting

pytest.importorskip("pymilvus", reason="needs tailrace[retrieval]")

FILES = {"lakes.txt": "Lakes are still.", "rivers.md": "The Rhine flows north."}
SAID = "Lakes [1] and rivers [2][1], but not [7]."
QUESTION = f"Which water is still?\nsay {SAID}"
# The scripted engine takes commands of a request with reasoning.
COMMANDED: dict[str, Any] = {"model": gp.MODEL, "reasoning": {"effort": "none"}, "input": QUESTION}


@pytest.fixture
async def client(searching: gp.Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_client.of(searching, max_retries=2) as made:
        yield made


@pytest.fixture
async def store(client: openai.AsyncOpenAI) -> str:
    made = await client.vector_stores.create(name="Water")
    for name, text in FILES.items():
        file = await client.files.create(file=(name, text.encode()), purpose="assistants")
        added = await client.vector_stores.files.create_and_poll(
            file.id, vector_store_id=made.id, poll_interval_ms=50
        )
        assert added.status == "completed"
    return made.id


def cited(message: Any, found: list[str]) -> None:
    """That the answer cites these files at its markers."""
    assert isinstance(message, sdk.ResponseOutputMessage)
    part = message.content[0]
    assert isinstance(part, sdk.ResponseOutputText)
    assert part.text == SAID
    made = [
        (each.filename, each.index) for each in part.annotations if each.type == "file_citation"
    ]
    places = [SAID.index("[1]"), SAID.index("[2]"), SAID.index("[2]") + 3]
    assert made == list(zip([found[0], found[1], found[0]], places, strict=True))


async def test_openais_client_asks_reads_citations_and_is_refused_another_owners_store(
    client: openai.AsyncOpenAI, searching: gp.Gateway, store: str
) -> None:
    tool: Any = {"type": "file_search", "vector_store_ids": [store], "max_num_results": 5}
    whole = await client.responses.create(
        **COMMANDED, tools=[tool], include=["file_search_call.results"]
    )
    call, message = whole.output
    assert isinstance(call, sdk.ResponseFileSearchToolCall)
    assert (call.status, call.queries) == ("completed", [QUESTION])
    assert call.results is not None
    names = [str(each.filename) for each in call.results]
    assert {name: hit.text for name, hit in zip(names, call.results, strict=True)} == FILES
    cited(message, names)

    async with client.responses.stream(**COMMANDED, tools=[tool]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.output_text.annotation.added") == 3
    assert kinds[2:7:2] == [
        "response.output_item.added",
        "response.file_search_call.searching",
        "response.output_item.done",
    ]
    cited(final.output[1], names)
    read = await client.responses.retrieve(final.id)
    assert [item.model_dump() for item in read.output] == [
        {k: v for k, v in item.model_dump().items() if k != "parsed"}
        for item in (final.output[0], read.output[1])
    ]
    cited(read.output[1], names)

    follow: Any = {"previous_response_id": whole.id, "model": gp.MODEL, "input": "And?"}
    assert "And?" in (await client.responses.create(**follow)).output_text
    async with sdk_client.of(searching, "bob", max_retries=2) as bob:
        with pytest.raises(openai.NotFoundError, match="Vector store"):
            await bob.responses.create(**COMMANDED, tools=[tool])


async def test_a_gateway_is_killed_in_mid_answer_and_the_rest_has_the_same_bytes(
    folder: Path,
    kafka: str,
    redis_url: str,
    pool: str,
    keys: gp.Keys,
    searching: gp.Gateway,
    store: str,
) -> None:
    tool = {"type": "file_search", "vector_store_ids": [store]}
    body = {
        **COMMANDED,
        "tools": [tool],
        "stream": True,
        "metadata": {"script_pace_ms": "60"},
    }
    seen: list[str] = []
    with gp.gateway(
        folder, kafka, redis_url, pool, keys, name="mortal", **vectors(folder)
    ) as mortal:
        async with mortal.client() as alice:

            async def folds() -> bool:
                path = f"/v1/vector_stores/{store}/search"
                return (await alice.post(path, json={"query": "a"})).status_code == 200

            await waiting.eventually(folds, "passages at the new gateway", within_s=60)
            with contextlib.suppress(httpx.HTTPError):
                async with alice.stream("POST", "/v1/responses", json=body) as answer:
                    assert answer.status_code == 200
                    async for line in answer.aiter_lines():
                        seen += [line] if line.startswith("data: {") else []
                        if "annotation.added" in line:
                            mortal.kill()
    assert '"type":"response.completed"' not in seen[-1]
    rid = seen[0].split('"id":"', 1)[1].split('"', 1)[0]
    async with searching.client() as alice:
        after = f"&starting_after={len(seen) - 1}"
        rest, again = [
            [line for line in found.text.splitlines() if line.startswith("data: {")]
            for found in [
                await alice.get(f"/v1/responses/{rid}?stream=true{more}") for more in (after, "")
            ]
        ]
    assert rest
    assert seen + rest == again
    assert sum("annotation.added" in line for line in again) == 3
    assert '"type":"response.completed"' in again[-1]
