"""The tool `file_search` at a gateway: what is written, what is shown, and what is not searched."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.files import passage_prompt
from gateway.parsing import command, responses_api
from gateway.parsing.file_search import FileSearch
from tailrace.archive import reader
from tailrace.auth.principal import Principal
from tailrace.protocol import file_search, records
from tests.support import gateway_parts, gateway_process, memory_vectors
from tests.unit.gateway import test_app
from tests.unit.gateway.requests import test_turns
from tests.unit.gateway.routes import test_vector_stores
from tests.unit.gateway.test_app import Service

archive = test_turns.archive

ANSWER_TEXT = "Still [1]; not [9]."
RIVERS, LAKES = "The Rhine flows north.", "Lakes are still."


@pytest.fixture
def keys(tmp_path: Path) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path)


class World:
    """A gateway with two files in one store of Alice, and what answers its requests."""

    def __init__(self, service: Service, client: httpx.AsyncClient, store: str) -> None:
        self.service, self.client, self.store = service, client, store
        self.tool = {"type": "file_search", "vector_store_ids": [store]}

    @property
    def asked(self) -> list[records.Request]:
        """The requests for text in the log."""
        return [each for each in self.service.requests() if each.embed is None]

    @property
    def embedded(self) -> int:
        return len(self.service.requests()) - len(self.asked)

    async def respond(self, text: Any, **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        body = {"model": "m", "input": text, "tools": [self.tool], **more}
        return await self.client.post("/v1/responses", json=body, headers=headers)

    async def answer(self, text: Any, **more: Any) -> dict[str, Any]:
        answer = await self.respond(text, **more)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body


async def work(service: Service) -> None:
    """Embed, and say the same to every question."""
    position = 0
    while True:
        requests = service.requests()
        for request in requests[position:]:
            if request.embed is None:
                gateway_parts.put_answer(service.broker, request, ANSWER_TEXT[:7], ANSWER_TEXT[7:])
                continue
            vectors = [test_vector_stores.vector(each) for each in request.embed.inputs]
            gateway_parts.put_vectors(service.broker, request, *vectors)
        position = len(requests)
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def searching(
    keys: gateway_process.Keys, database: memory_vectors.MemoryVectors | None = None
) -> AsyncIterator[World]:
    database = database or memory_vectors.MemoryVectors()
    async with (
        test_vector_stores.with_vectors(keys, database) as service,
        service.client() as client,
    ):
        worker = asyncio.ensure_future(work(service))
        try:
            names = {"rivers.md": RIVERS, "lakes.txt": LAKES}
            files = [
                await test_vector_stores.upload(client, text.encode(), name)
                for name, text in names.items()
            ]
            store = await test_vector_stores.post(client, "", {"file_ids": files})
            for file in files:
                done = await test_vector_stores.ended(client, store["id"], file)
                assert done["status"] == "completed"
            yield World(service, client, store["id"])
        finally:
            worker.cancel()


async def test_passages_stand_behind_the_question_and_are_cited(
    keys: gateway_process.Keys,
) -> None:
    async with searching(keys) as world:
        answer = await world.answer(LAKES, instructions="Be kind.")
        (request,) = world.asked
        assert [m["role"] for m in request.messages] == ["system", "user"]
        assert request.messages[0]["content"] == "Be kind."
        prompt = request.messages[1]["content"]
        assert prompt.startswith(f"{LAKES}\n\nPassages from files")
        assert prompt.endswith(f"\n\n[1] lakes.txt\n{LAKES}\n\n[2] rivers.md\n{RIVERS}")
        assert request.input[0]["content"] == [{"type": "input_text", "text": LAKES}]
        call, message = answer["output"]
        assert (call["type"], call["queries"], call["results"]) == (
            "file_search_call",
            [LAKES],
            None,
        )
        part = message["content"][0]
        assert part["text"] == ANSWER_TEXT
        (citation,) = part["annotations"]
        assert (citation["filename"], citation["index"]) == ("lakes.txt", ANSWER_TEXT.index("["))
        assert answer["tools"] == [world.tool]
        assert file_search.MEMBER not in answer
        read = await world.client.get(f"/v1/responses/{answer['id']}")
        assert read.json()["output"] == answer["output"]
        body = (await world.client.get(f"/v1/responses/{answer['id']}/input_items")).json()
        assert body["data"][0]["content"] == [{"type": "input_text", "text": LAKES}]


async def test_results_are_shown_where_they_are_asked_for(keys: gateway_process.Keys) -> None:
    async with searching(keys) as world:
        answer = await world.answer(
            [{"role": "user", "content": LAKES}, {"role": "assistant", "content": "a"}],
            include=["file_search_call.results"],
            tools=[{**world.tool, "max_num_results": 1}],
        )
        (actual,) = answer["output"][0]["results"]
        assert (actual["filename"], actual["text"], actual["attributes"]) == (
            "lakes.txt",
            LAKES,
            {},
        )
        assert actual["score"] == pytest.approx(1.0)
        assert "[2]" not in world.asked[0].messages[0]["content"].split("numbers.")[1]


@pytest.mark.parametrize("cached", [True, False])
async def test_later_turns_have_the_dialogue_without_passages_and_search_again(
    keys: gateway_process.Keys, cached: bool
) -> None:
    async with searching(keys) as world:
        first = await world.answer(LAKES)
        if not cached:
            world.service.redis.values.clear()
        await world.answer(RIVERS, previous_response_id=first["id"], tools=[])
        plain = world.asked[-1].messages
        assert [m["content"] for m in plain] == [LAKES, ANSWER_TEXT, RIVERS]
        await world.answer(RIVERS, previous_response_id=first["id"])
        again = [m["content"] for m in world.asked[-1].messages]
        assert again[:2] == [LAKES, ANSWER_TEXT]
        assert "[1] rivers.md" in again[2]
        history = [{"role": "user", "content": LAKES}, *first["output"]]
        await world.answer([*history, {"role": "user", "content": "And?"}], tools=[])
        assert [m["content"] for m in world.asked[-1].messages] == [LAKES, ANSWER_TEXT, "And?"]


class FixedSearch:
    """Finds the same for each question."""

    async def prompt(
        self, create: command.Create, request: FileSearch, messages: Any, _: Principal
    ) -> passage_prompt.PassagePrompt:
        hit = passage_prompt.Hit("file-1", "a.md", 1.0, LAKES, {})
        return passage_prompt.with_passages(create, request, messages, ["q"], [hit])


@pytest.mark.parametrize("cached", [True, False])
async def test_turns_of_a_conversation_have_no_passages(
    archive: reader.Reader, cached: bool
) -> None:
    async with test_turns.talking(archive, searching=FixedSearch()) as (parts, name):
        tool = {"type": "file_search", "vector_store_ids": ["vs_1"]}
        body = {"input": LAKES, "conversation": name, "tools": [tool]}
        create = responses_api.parse(body, gateway_parts.CATALOG, searches=True)
        with await parts.submission.submit(create, gateway_parts.ALICE) as stream:
            parts.answer(stream.rid, ANSWER_TEXT)
            final = (await gateway_parts.all_events(stream))[-1].response
        assert final is not None
        assert "[1] a.md" in parts.requests()[-1].messages[-1]["content"]
        await parts.settled()
        if not cached:
            parts.redis.values.clear()
        assert await test_turns.following(parts, name) == [
            ("user", LAKES),
            ("assistant", ANSWER_TEXT),
        ]
        conversation = await parts.conversations.find(name, test_turns.OWNER)
        items = [item async for item in parts.items.along(conversation, newest_first=False)]
        assert [item["type"] for item in items] == ["message", "file_search_call", "message"]
        assert items[1:] == final["output"]
        # Its items alone make the same dialogue.
        nodes = conversation.path()
        assert [
            m["content"] for m in await parts.items.messages(conversation, nodes, test_turns.OWNER)
        ] == [LAKES, ANSWER_TEXT]


async def test_a_key_stands_for_the_first_answer_whatever_the_store_holds_now(
    keys: gateway_process.Keys,
) -> None:
    async with searching(keys) as world:
        key = {"Idempotency-Key": "k"}
        first = await world.answer(LAKES, headers=key)
        embeddings_before = world.embedded
        await world.client.delete(f"/v1/vector_stores/{world.store}")
        for redis_lost in (False, True):
            if redis_lost:
                world.service.redis.values.clear()
            again = await world.answer(LAKES, headers=key)
            assert (again["id"], again["output"]) == (first["id"], first["output"])
        assert (len(world.asked), world.embedded) == (1, embeddings_before)
        other = await world.respond(RIVERS, headers=key)
        assert (other.status_code, other.json()["error"]["code"]) == (
            409,
            "idempotency_key_reused",
        )
        answer = await world.respond(LAKES)
        assert answer.status_code == 404


async def test_a_store_of_another_owner_is_as_an_unknown_one(keys: gateway_process.Keys) -> None:
    async with searching(keys) as world, world.service.client("bob") as bob:
        body = {"model": "m", "input": LAKES, "tools": [world.tool]}
        answers = [await bob.post("/v1/responses", json=body)]
        body["tools"] = [{**world.tool, "vector_store_ids": [world.store, "vs_none"]}]
        answers.append(await world.client.post("/v1/responses", json=body))
        for answer in answers:
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "vector_store_not_found"
        assert world.asked == []


async def test_a_database_that_is_away_loses_nothing_and_writes_nothing(
    keys: gateway_process.Keys,
) -> None:
    database = memory_vectors.MemoryVectors()
    async with searching(keys, database) as world:
        database.away = True
        for stream in (False, True):
            answer = await world.respond(LAKES, stream=stream)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "service_unavailable"
        assert world.asked == []
        database.away = False
        assert (await world.answer(LAKES))["status"] == "completed"


async def test_what_is_not_asked_is_not_searched(keys: gateway_process.Keys) -> None:
    async with searching(keys) as world:
        embeddings_before = world.embedded
        for more in (
            {"tool_choice": "none"},
            {"input": [{"role": "system", "content": "a"}]},
            {"input": [{"role": "user", "content": " "}]},
        ):
            answer = await world.answer(more.pop("input", LAKES), **more)
            assert [item["type"] for item in answer["output"]] == ["message"]
            assert answer["output"][0]["content"][0]["annotations"] == []
            assert file_search.MEMBER not in world.asked[-1].echo
        assert world.embedded == embeddings_before


async def test_a_search_that_finds_nothing_is_shown_and_changes_no_prompt(
    keys: gateway_process.Keys,
) -> None:
    async with searching(keys) as world:
        tool = {**world.tool, "filters": {"type": "eq", "key": "no", "value": 1}}
        answer = await world.answer(
            LAKES, tools=[tool], include=["file_search_call.results"], tool_choice="required"
        )
        assert answer["output"][0]["results"] == []
        assert answer["output"][1]["content"][0]["annotations"] == []
        assert world.asked[-1].messages == [{"role": "user", "content": LAKES}]


async def test_a_fork_has_the_passages_of_its_source(keys: gateway_process.Keys) -> None:
    async with searching(keys) as world:
        source = await world.answer(LAKES)
        body = {"model": "m", "fork": {"response_id": source["id"], "at": 1}}
        answer = await world.client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        fork = answer.json()
        assert world.asked[-1].messages == world.asked[0].messages
        assert [item["type"] for item in fork["output"]] == ["file_search_call", "message"]
        assert [a["filename"] for a in fork["output"][1]["content"][0]["annotations"]] == [
            "lakes.txt"
        ]
        await world.answer("And?", previous_response_id=fork["id"], tools=[])
        assert [m["content"] for m in world.asked[-1].messages] == [LAKES, ANSWER_TEXT, "And?"]


async def test_a_socket_searches_too_and_a_stream_that_is_resumed_has_the_same_bytes(
    keys: gateway_process.Keys,
) -> None:
    async with searching(keys) as world:
        async with world.service.socket() as socket:
            body = {"type": "response.create", "model": "m", "input": LAKES, "tools": [world.tool]}
            await socket.send(json.dumps(body))
            reports: list[dict[str, Any]] = []
            while not reports or reports[-1]["type"] != "response.completed":
                reports.append(await test_app.event(socket))
            unknown = {**world.tool, "vector_store_ids": ["vs_none"]}
            await socket.send(json.dumps({**body, "tools": [unknown]}))
            assert (await test_app.event(socket))["error"]["code"] == "vector_store_not_found"
        kinds = [event["type"].removeprefix("response.") for event in reports]
        assert kinds[2:7] == [
            "output_item.added",
            "file_search_call.in_progress",
            "file_search_call.searching",
            "file_search_call.completed",
            "output_item.done",
        ]
        assert kinds.index("output_text.annotation.added") == 11
        rid = reports[0]["response"]["id"]
        for after in (-1, 4, 10, 11):
            params = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
            stream = await world.client.get(f"/v1/responses/{rid}", params=params)
            lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
            assert [json.loads(line) for line in lines] == reports[after + 1 :]
