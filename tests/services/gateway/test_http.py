"""The HTTP surface on real parts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from typing import Any, ClassVar

import httpx
import openai
import pytest

from gateway.parsing import images as parsed_images
from tailrace import log
from tailrace.protocol import ids, images, records, topics
from tests.services.gateway.conftest import PAGE, events_of, text_of
from tests.support import gateway_process as gp
from tests.support import pictures, waiting
from worker.engines import base, openai_credentials
from worker.engines import openai as openai_engine

QUICK = {"input": "hi", "metadata": gp.cues(5, 1)}


async def until(client: httpx.AsyncClient, rid: str, *statuses: str) -> dict[str, Any]:
    """The response object once it has one of these statuses."""

    async def reached() -> dict[str, Any] | None:
        response: dict[str, Any] = (await client.get(f"/v1/responses/{rid}")).json()
        return response if response["status"] in statuses else None

    found: dict[str, Any] | None = await waiting.eventually(
        reached, f"{rid} is {' or '.join(statuses)}"
    )
    assert found is not None
    return found


def said(response: dict[str, Any]) -> str:
    """The text of a response's message."""
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def speaks(client: httpx.AsyncClient, rid: str) -> None:
    """Wait until the response has text."""
    async with client.stream("GET", f"/v1/responses/{rid}?stream=true") as answer:
        async for line in answer.aiter_lines():
            if "response.output_text.delta" in line:
                return
    raise AssertionError(f"{rid} ended without text")


class TestCreate:
    async def test_one_object(self, client: httpx.AsyncClient) -> None:
        answer = await client.post(
            "/v1/responses",
            json={**QUICK, "temperature": 0.5, "max_output_tokens": 64, "instructions": "be kind"},
        )
        response = answer.json()
        assert answer.status_code == 200
        assert (
            response["status"],
            response["temperature"],
            response["max_output_tokens"],
            response["instructions"],
        ) == (
            "completed",
            0.5,
            64,
            "be kind",
        )
        assert response["usage"]["output_tokens"] == 5
        assert response["output"][0]["content"][0]["text"]
        assert type(response["completed_at"]) is int
        assert answer.headers["x-tailrace-response-id"] == response["id"]
        assert answer.headers["x-request-id"].startswith("req_")
        assert int(answer.headers["x-ratelimit-remaining-requests"]) < int(
            answer.headers["x-ratelimit-limit-requests"]
        )

    async def test_a_stream_is_the_whole_series_and_equals_its_replay(
        self, client: httpx.AsyncClient
    ) -> None:
        answer = await client.post("/v1/responses", json={**QUICK, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store, no-transform"
        seen = events_of(answer.text)
        assert [e["sequence_number"] for e in seen] == list(range(len(seen)))
        assert [e["type"] for e in seen][:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert text_of(seen) == seen[-1]["response"]["output"][0]["content"][0]["text"]
        rid = answer.headers["x-tailrace-response-id"]
        assert events_of((await client.get(f"/v1/responses/{rid}?stream=true")).text) == seen
        assert (
            events_of((await client.get(f"/v1/responses/{rid}?stream=true&starting_after=4")).text)
            == seen[5:]
        )

    @pytest.mark.parametrize("fault", [{}, {"fault": "error"}], ids=["ends well", "fails"])
    async def test_a_stream_has_no_ids_no_times_and_no_block_without_data(
        self, client: httpx.AsyncClient, fault: dict[str, str]
    ) -> None:
        """Each of them ends a stream early in an official SDK (openai 3.57, npm 7.59)."""
        common = {"metadata": gp.cues(4, 1, **fault), "stream": True}
        chat = {**common, "messages": [{"role": "user", "content": "hi"}]}
        created = await client.post("/v1/responses", json={**common, "input": "hi"})
        rid = created.headers["x-tailrace-response-id"]
        for answer in (
            created,
            await client.get(f"/v1/responses/{rid}?stream=true"),
            await client.post("/v1/chat/completions", json=chat),
            await client.post("/v1/completions", json={**common, "prompt": "hi"}),
        ):
            *blocks, rest = answer.content.split(b"\n\n")
            assert rest == b""
            assert len(blocks) >= 2, answer.text
            for block in blocks:
                names = [line.partition(b": ")[0] for line in block.split(b"\n")]
                assert names in ([b"data"], [b"event", b"data"], [b""]), block

    async def test_background_answers_at_once_and_goes_on(self, client: httpx.AsyncClient) -> None:
        answer = (
            await client.post(
                "/v1/responses",
                json={"input": "hi", "background": True, "metadata": gp.cues(30, 5)},
            )
        ).json()
        assert answer["status"] == "queued"
        assert answer["background"] is True
        done = await until(client, answer["id"], "completed")
        assert done["usage"]["output_tokens"] == 30

    async def test_background_with_stream_starts_with_queued(
        self, client: httpx.AsyncClient
    ) -> None:
        seen = events_of(
            (
                await client.post(
                    "/v1/responses", json={**QUICK, "background": True, "stream": True}
                )
            ).text
        )
        assert [e["type"] for e in seen[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]

    async def test_the_length_bound_ends_incomplete(self, client: httpx.AsyncClient) -> None:
        response = (
            await client.post("/v1/responses", json={**QUICK, "max_output_tokens": 2})
        ).json()
        assert (response["status"], response["incomplete_details"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
        )

    async def test_an_engine_that_fails_is_a_failed_response_not_an_empty_one(
        self, client: httpx.AsyncClient
    ) -> None:
        response = (
            await client.post(
                "/v1/responses", json={"input": "hi", "metadata": gp.cues(5, 1, fault="error")}
            )
        ).json()
        assert response["status"] == "failed"
        assert response["error"]["code"]
        assert response["error"]["message"]

    async def test_the_same_key_is_the_same_response(
        self, client: httpx.AsyncClient, bob: httpx.AsyncClient
    ) -> None:
        headers = {"Idempotency-Key": "a key of mine"}
        both = await asyncio.gather(
            *(client.post("/v1/responses", json=QUICK, headers=headers) for _ in range(3))
        )
        assert len({a.json()["id"] for a in both}) == 1
        assert (await client.post("/v1/responses", json=QUICK, headers=headers)).json() == both[
            0
        ].json()
        assert (await client.post("/v1/responses", json=QUICK)).json()["id"] != both[0].json()["id"]
        assert (await bob.post("/v1/responses", json=QUICK, headers=headers)).json()["id"] != both[
            0
        ].json()["id"]


class TestChains:
    async def messages_of(self, kafka: str, pool: str, rid: str) -> list[dict[str, Any]]:
        """What the worker was given, from the log itself."""
        partition = ids.parse(rid).partition
        offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)
        try:
            topic = topics.requests(pool, "interactive")
            end = (await offsets.ends(topic, [partition]))[partition]
            async for batch in replays.read(topic, partition, 0, end):
                for record in batch:
                    request = records.decode_request(record.value)
                    if request is not None and request.rid == rid:
                        return request.messages
        finally:
            await offsets.stop()
            await replays.stop()
        raise AssertionError("no such request in the log")

    async def test_a_continuation_sees_input_and_output_before_it_but_not_the_instructions(
        self, client: httpx.AsyncClient, kafka: str, pool: str
    ) -> None:
        first = (
            await client.post("/v1/responses", json={**QUICK, "instructions": "be brief"})
        ).json()
        said = first["output"][0]["content"][0]["text"]
        second = (
            await client.post(
                "/v1/responses",
                json={**QUICK, "input": "and?", "previous_response_id": first["id"]},
            )
        ).json()
        assert second["previous_response_id"] == first["id"]
        assert await self.messages_of(kafka, pool, second["id"]) == [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "and?"},
        ]

    async def test_the_log_alone_gives_the_same_past_as_the_cached_session(
        self, client: httpx.AsyncClient, kafka: str, pool: str, redis_url: str
    ) -> None:
        import redis.asyncio as redis

        rid = None
        for turn in range(3):
            rid = (
                await client.post(
                    "/v1/responses",
                    json={**QUICK, "input": f"turn {turn}", "previous_response_id": rid},
                )
            ).json()["id"]
        cached = (
            await client.post(
                "/v1/responses", json={**QUICK, "input": "last", "previous_response_id": rid}
            )
        ).json()["id"]
        async with redis.from_url(redis_url) as store:
            await store.flushdb()
        rebuilt = (
            await client.post(
                "/v1/responses", json={**QUICK, "input": "last", "previous_response_id": rid}
            )
        ).json()["id"]
        assert await self.messages_of(kafka, pool, cached) == await self.messages_of(
            kafka, pool, rebuilt
        )
        assert len(await self.messages_of(kafka, pool, rebuilt)) == 7

    async def test_images_stay_in_the_conversation_and_are_given_back(
        self, client: httpx.AsyncClient, kafka: str, pool: str, redis_url: str
    ) -> None:
        import redis.asyncio as redis

        url = pictures.url(pictures.png(1))
        question = {"type": "input_text", "text": "What is it?"}
        image = {"type": "input_image", "detail": "low", "image_url": url}
        shows = {**QUICK, "input": [{"role": "user", "content": [question, image]}]}
        first = (await client.post("/v1/responses", json=shows)).json()
        assert first["status"] == "completed"
        items = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()
        assert items["data"][0]["content"] == [question, image]
        again = {**QUICK, "input": "And now?", "previous_response_id": first["id"]}
        cached = (await client.post("/v1/responses", json=again)).json()["id"]
        async with redis.from_url(redis_url) as store:
            await store.flushdb()
        rebuilt = (await client.post("/v1/responses", json=again)).json()["id"]
        seen = await self.messages_of(kafka, pool, cached)
        assert seen == await self.messages_of(kafka, pool, rebuilt)
        [shown] = images.parts(seen)
        assert (images.url(shown), shown["detail"]) == (url, "low")

    async def test_a_photograph_is_kept_beside_its_request_and_seen_in_every_turn(
        self, client: httpx.AsyncClient, kafka: str, pool: str, redis_url: str
    ) -> None:
        import redis.asyncio as redis

        data = pictures.png(7) + random.Random(7).randbytes(5_000_000)
        name = hashlib.sha256(data).hexdigest()
        image = {"type": "input_image", "detail": "auto", "image_url": pictures.url(data)}
        shows = {"input": [{"role": "user", "content": [image]}]}
        done = await client.post("/v1/responses", json=shows, timeout=60)
        assert done.status_code == 200, done.text[:300]
        first = done.json()
        assert f"with images {name[:8]}" in said(first)  # the engine hashed what it was given
        items = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()
        assert items["data"][0]["content"] == [image]
        seen = await self.messages_of(kafka, pool, first["id"])
        [part] = images.parts(seen)
        assert "data" not in part
        async with redis.from_url(redis_url) as store:
            await store.flushdb()
        again = {"input": "And now?", "previous_response_id": first["id"]}
        second = (await client.post("/v1/responses", json=again)).json()
        assert f"with images {name[:8]}" in said(second)
        assert next(images.parts(await self.messages_of(kafka, pool, second["id"]))) == part
        chat = {
            "model": gp.MODEL,
            "store": True,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": image["image_url"]}}],
                }
            ],
        }
        completion = (await client.post("/v1/chat/completions", json=chat, timeout=60)).json()
        assert f"with images {name[:8]}" in completion["choices"][0]["message"]["content"]
        path = f"/v1/chat/completions/{completion['id']}/messages"
        chatted = "resp_" + completion["id"].removeprefix("chatcmpl-")
        [message] = (await client.get(path)).json()["data"]
        assert message["content_parts"][0]["image_url"]["url"] == image["image_url"]
        assert next(images.parts(await self.messages_of(kafka, pool, chatted))) == part

    async def test_several_photographs_at_once_and_one_too_many(
        self, client: httpx.AsyncClient
    ) -> None:
        def asked(seed: int, size: int, count: int = 1) -> dict[str, Any]:
            shown = [
                {
                    "type": "input_image",
                    "image_url": pictures.url(pictures.png(n) + random.Random(n).randbytes(size)),
                }
                for n in range(seed, seed + count)
            ]
            return {"input": [{"role": "user", "content": shown}]}

        sent = [client.post("/v1/responses", json=asked(n, 2_000_000), timeout=60) for n in (1, 2)]
        for answer in await asyncio.gather(*sent):
            assert answer.json()["status"] == "completed", answer.text[:300]
        refused = await client.post("/v1/responses", json=asked(9, 1_700_000, 4), timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "payload_too_large")
        refused = await client.post("/v1/responses", json=asked(9, 1_573_000, 4), timeout=60)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")

    async def test_images_that_a_tool_shows_are_given_back(
        self, client: httpx.AsyncClient, kafka: str, pool: str
    ) -> None:
        image = {
            "type": "input_image",
            "detail": "auto",
            "image_url": pictures.url(pictures.png(3)),
        }
        call = {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": [image]}
        asked = {**QUICK, "input": [{"role": "user", "content": "Look."}, call, output]}
        done = (await client.post("/v1/responses", json=asked)).json()
        assert done["status"] == "completed"
        items = (await client.get(f"/v1/responses/{done['id']}/input_items")).json()["data"]
        assert items[0]["output"] == [image]  # the newest first
        seen = await self.messages_of(kafka, pool, done["id"])
        assert [m["role"] for m in seen if images.any_in([m])] == ["tool"]

    async def test_the_engine_of_a_worker_may_be_this_gateway_and_gets_images_too(
        self, gateway: gp.Gateway
    ) -> None:
        part = parsed_images.of_responses({"image_url": pictures.url(pictures.png(5))}, "input")
        content = [{"type": "text", "text": "What is it?"}, part]
        rid, told = "resp_x", ""
        request = records.Request(
            rid,
            records.Owner("i", "s"),
            "m",
            [{"role": "user", "content": content}],
            records.Sampling(400, temperature=0.0),
            {},
        )

        def keep(step: base.Step) -> bool:
            nonlocal told
            told += "".join(map(chr, step.ids))
            return True

        key = openai_credentials.Key(gateway.keys.token("alice"))
        engine = openai_engine.OpenAI(url=gateway.url, model=gp.MODEL, capacity=1, credentials=key)
        try:
            base.check_features(request, engine.features)
            prompt = await engine.encode(request)
            await engine.generate(base.GenerationInput(request, "f", prompt, [], 400), keep)
        finally:
            await engine.shutdown()
        assert told.startswith(f"You asked: “What is it?” with images {part['sha256'][:8]} — ")

    @pytest.mark.parametrize(
        "previous", ["resp_nothing", "", "../../etc/passwd", "resp_" + "A" * 32]
    )
    async def test_an_unknown_past_is_told_in_the_words_clients_recover_on(
        self, client: httpx.AsyncClient, previous: str
    ) -> None:
        answer = await client.post(
            "/v1/responses", json={**QUICK, "previous_response_id": previous}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "previous_response_not_found",
        )

    async def test_somebody_elses_past_is_unknown(
        self, client: httpx.AsyncClient, bob: httpx.AsyncClient
    ) -> None:
        rid = (await client.post("/v1/responses", json=QUICK)).json()["id"]
        answer = await bob.post("/v1/responses", json={**QUICK, "previous_response_id": rid})
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "previous_response_not_found",
        )

    async def test_what_was_not_stored_cannot_be_continued_or_read(
        self, client: httpx.AsyncClient
    ) -> None:
        rid = (await client.post("/v1/responses", json={**QUICK, "store": False})).json()["id"]
        answer = await client.post("/v1/responses", json={**QUICK, "previous_response_id": rid})
        assert answer.json()["error"]["code"] == "previous_response_not_found"
        assert (await client.get(f"/v1/responses/{rid}")).status_code == 404
        assert (await client.get(f"/v1/responses/{rid}/input_items")).status_code == 404


class TestCancelAndDelete:
    async def test_cancel_keeps_what_was_said_and_is_idempotent(
        self, client: httpx.AsyncClient
    ) -> None:
        rid = (
            await client.post(
                "/v1/responses",
                json={"input": "x", "background": True, "metadata": gp.cues(2000, 10)},
            )
        ).json()["id"]
        await speaks(client, rid)
        first = (await client.post(f"/v1/responses/{rid}/cancel")).json()
        assert (first["status"], first["completed_at"]) == ("cancelled", None)
        assert first["output"][0]["status"] == "incomplete"
        assert (await client.post(f"/v1/responses/{rid}/cancel")).json() == first
        assert (await client.get(f"/v1/responses/{rid}")).json() == first
        seen = events_of((await client.get(f"/v1/responses/{rid}?stream=true")).text)
        assert seen[-1]["type"] == "response.incomplete"
        assert seen[-1]["response"]["status"] == "cancelled"

    async def test_cancel_before_any_worker_took_it(self, client: httpx.AsyncClient) -> None:
        rid = (
            await client.post(
                "/v1/responses",
                json={"input": "x", "background": True, "metadata": gp.cues(500, 10)},
            )
        ).json()["id"]
        assert (await client.post(f"/v1/responses/{rid}/cancel")).json()["status"] == "cancelled"

    async def test_cancel_after_completion_changes_nothing(self, client: httpx.AsyncClient) -> None:
        done = (await client.post("/v1/responses", json=QUICK)).json()
        assert (await client.post(f"/v1/responses/{done['id']}/cancel")).json() == done

    async def test_delete(self, client: httpx.AsyncClient) -> None:
        rid = (await client.post("/v1/responses", json=QUICK)).json()["id"]
        answer = await client.delete(f"/v1/responses/{rid}")
        assert (answer.status_code, answer.json()) == (
            200,
            {"id": rid, "object": "response", "deleted": True},
        )
        for gone in (
            await client.get(f"/v1/responses/{rid}"),
            await client.get(f"/v1/responses/{rid}?stream=true"),
            await client.get(f"/v1/responses/{rid}/input_items"),
            await client.post(f"/v1/responses/{rid}/cancel"),
            await client.delete(f"/v1/responses/{rid}"),
        ):
            assert gone.status_code == 404
        assert (
            await client.post("/v1/responses", json={**QUICK, "previous_response_id": rid})
        ).status_code == 400

    async def test_delete_ends_what_runs(self, client: httpx.AsyncClient, kafka: str) -> None:
        rid = (
            await client.post(
                "/v1/responses",
                json={"input": "x", "background": True, "metadata": gp.cues(2000, 10)},
            )
        ).json()["id"]
        await until(client, rid, "in_progress")
        assert (await client.delete(f"/v1/responses/{rid}")).json()["deleted"]
        assert (await client.get(f"/v1/responses/{rid}")).status_code == 404

    async def test_every_verb_on_somebody_elses_response_is_the_404_of_an_unknown_one(
        self, client: httpx.AsyncClient, bob: httpx.AsyncClient
    ) -> None:
        rid = (await client.post("/v1/responses", json=QUICK)).json()["id"]
        for method, path in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("POST", "/cancel"),
            ("DELETE", ""),
            ("GET", "/input_items"),
        ):
            foreign = await bob.request(method, f"/v1/responses/{rid}{path}")
            unknown = await bob.request(method, f"/v1/responses/{rid[:-1] + 'x'}{path}")
            assert (foreign.status_code, unknown.status_code) == (404, 404)
            assert foreign.json()["error"].pop("message").replace(rid, "") == unknown.json()[
                "error"
            ].pop("message").replace(rid[:-1] + "x", "")
        assert (await client.get(f"/v1/responses/{rid}")).json()["status"] == "completed"


class TestInputItems:
    async def test_paging(self, client: httpx.AsyncClient) -> None:
        given = [{"role": "user", "content": f"item {i}"} for i in range(5)]
        rid = (await client.post("/v1/responses", json={**QUICK, "input": given})).json()["id"]
        path = f"/v1/responses/{rid}/input_items"
        everything = (await client.get(path, params={"order": "asc"})).json()
        assert [i["content"][0]["text"] for i in everything["data"]] == [
            f"item {i}" for i in range(5)
        ]
        assert everything["has_more"] is False
        newest = (await client.get(path, params={"limit": "2"})).json()
        assert [i["content"][0]["text"] for i in newest["data"]] == ["item 4", "item 3"]
        assert newest["has_more"] is True
        rest = (await client.get(path, params={"limit": "3", "after": newest["last_id"]})).json()
        assert [i["content"][0]["text"] for i in rest["data"]] == ["item 2", "item 1", "item 0"]
        for bad in (
            {"limit": "0"},
            {"limit": "101"},
            {"limit": "x"},
            {"order": "up"},
            {"after": "msg_nope"},
        ):
            assert (await client.get(path, params=bad)).status_code == 400


class TestChat:
    BODY: dict[str, Any] = {  # noqa: RUF012 - never changed
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        "metadata": gp.cues(4, 1),
    }

    async def test_one_object(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/chat/completions", json=self.BODY)
        body = answer.json()
        assert body["object"] == "chat.completion"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 4
        again = (
            await client.get(f"/v1/responses/{answer.headers['x-tailrace-response-id']}")
        ).json()
        assert again["output"][0]["content"][0]["text"] == body["choices"][0]["message"]["content"]

    async def test_several_choices_as_the_sdk_asks_for_them(
        self, client: httpx.AsyncClient, gateway: gp.Gateway, keys: gp.Keys
    ) -> None:
        asked: dict[str, Any] = {"model": gp.MODEL, "n": 3, **self.BODY}
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key=keys.token("alice"), max_retries=0
        ) as sdk:
            whole = await sdk.chat.completions.create(**asked)
            assert [choice.index for choice in whole.choices] == [0, 1, 2]
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 12
            options: Any = {"include_usage": True}
            async with sdk.chat.completions.stream(**asked, stream_options=options) as stream:
                streamed = await stream.get_final_completion()
            assert [choice.finish_reason for choice in streamed.choices] == ["stop"] * 3
            assert streamed.usage is not None
            assert streamed.usage.completion_tokens == 12
            kept = await sdk.chat.completions.retrieve(streamed.id)
            assert [choice.message.content for choice in kept.choices] == [
                choice.message.content for choice in streamed.choices
            ]
            said = await sdk.chat.completions.messages.list(streamed.id)
            assert [(m.role, m.content) for m in said.data] == [("system", "s"), ("user", "hi")]
            assert (await sdk.chat.completions.delete(streamed.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await sdk.chat.completions.retrieve(streamed.id)

    @pytest.mark.parametrize("usage", [True, False])
    async def test_stream(self, client: httpx.AsyncClient, usage: bool) -> None:
        answer = await client.post(
            "/v1/chat/completions",
            json={**self.BODY, "stream": True, "stream_options": {"include_usage": usage}},
        )
        blocks = [b.removeprefix("data: ") for b in answer.text.split("\n\n") if b]
        assert blocks[-1] == "[DONE]"
        chunks = [json.loads(b) for b in blocks[:-1]]
        begun = {"role": "assistant", "content": "", "refusal": None}
        assert chunks[0]["choices"][0]["delta"] == begun
        assert ("usage" in chunks[0]) is usage
        last = chunks[-1] if not usage else chunks[-2]
        assert last["choices"][0]["finish_reason"] == "stop"
        if usage:
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["usage"]["total_tokens"] == chunks[-1]["usage"]["prompt_tokens"] + 4
        replayed = events_of(
            (
                await client.get(
                    f"/v1/responses/{answer.headers['x-tailrace-response-id']}?stream=true"
                )
            ).text
        )
        assert text_of(replayed) == "".join(
            c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]
        )

    async def test_the_length_bound(self, client: httpx.AsyncClient) -> None:
        body = (
            await client.post("/v1/chat/completions", json={**self.BODY, "max_tokens": 2})
        ).json()
        assert body["choices"][0]["finish_reason"] == "length"

    async def test_a_failure_is_an_error(self, client: httpx.AsyncClient) -> None:
        broken = {**self.BODY, "metadata": gp.cues(4, 1, fault="error")}
        answer = await client.post("/v1/chat/completions", json=broken)
        assert answer.status_code == 500
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        streamed = await client.post("/v1/chat/completions", json={**broken, "stream": True})
        assert '"error":{' in streamed.text


class TestLeaving:
    async def test_a_stored_response_outlives_the_client_that_left(
        self, client: httpx.AsyncClient
    ) -> None:
        body = {"input": "x", "stream": True, "metadata": gp.cues(60, 10)}
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            rid = answer.headers["x-tailrace-response-id"]
            await anext(answer.aiter_bytes())
        assert (await until(client, rid, "completed"))["usage"]["output_tokens"] == 60

    async def test_what_is_not_stored_is_cancelled_after_the_grace(
        self, client: httpx.AsyncClient, kafka: str
    ) -> None:
        body = {"input": "x", "stream": True, "store": False, "metadata": gp.cues(4000, 10)}
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            rid = answer.headers["x-tailrace-response-id"]
            await anext(answer.aiter_bytes())
        await gp.cancelled(kafka, rid)
        async with asyncio.timeout(10):
            # The object of an unstored response cannot be read; its owner can follow its end.
            seen = events_of((await client.get(f"/v1/responses/{rid}?stream=true")).text)
        assert seen[-1]["response"]["status"] == "cancelled"

    async def test_unless_its_owner_came_back_in_time(self, client: httpx.AsyncClient) -> None:
        body = {"input": "x", "stream": True, "store": False, "metadata": gp.cues(100, 10)}
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            rid = answer.headers["x-tailrace-response-id"]
            await anext(answer.aiter_bytes())
        seen = events_of((await client.get(f"/v1/responses/{rid}?stream=true")).text)
        assert seen[-1]["response"]["status"] == "completed"


class TestCounting:
    TOOL: ClassVar[dict[str, Any]] = {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }

    @pytest.mark.parametrize(
        "asked",
        [
            {"input": "hi"},
            {"input": "Größe 🌊 " * 50, "instructions": "Be brief."},
            {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            {"input": "hi", "tools": [TOOL]},
        ],
    )
    async def test_as_many_tokens_as_the_answer_says(
        self, client: httpx.AsyncClient, asked: dict[str, Any]
    ) -> None:
        counted = await client.post("/v1/responses/input_tokens", json=asked)
        assert counted.status_code == 200, counted.text
        answered = (await client.post("/v1/responses", json={**QUICK, **asked})).json()
        assert counted.json() == {
            "object": "response.input_tokens",
            "input_tokens": answered["usage"]["input_tokens"],
        }
        rid = counted.headers["x-tailrace-response-id"]
        assert (await client.get(f"/v1/responses/{rid}/input_items")).status_code == 404
        more = {"previous_response_id": answered["id"], "input": "And?"}
        followed = (await client.post("/v1/responses", json={**QUICK, **more})).json()
        counted = await client.post("/v1/responses/input_tokens", json=more)
        assert counted.json()["input_tokens"] == followed["usage"]["input_tokens"]

    async def test_what_is_too_long_is_said_with_its_number(
        self, client: httpx.AsyncClient
    ) -> None:
        for path in ("/v1/responses/input_tokens", "/v1/responses"):
            answer = await client.post(path, json={"input": "x" * 60_000})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (
                400,
                "context_length_exceeded",
                "input",
            )


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/v1/nothing", 404),
            ("GET", "/nothing", 404),
            ("POST", "/v1/responses/input_tokens", 400),
            ("POST", "/v1/responses/compact", 404),
            ("POST", "/v1/conversations", 503),
            ("GET", "/v1/responses", 503),  # this one has no archive
            ("PUT", "/v1/responses", 405),
            ("GET", "/v1/chat/completions", 503),
            ("POST", "/v1/embeddings", 400),
            ("GET", "/v1/embeddings", 405),
            ("PUT", "/v1/chat/completions", 405),
            ("DELETE", "/v1/models", 405),
            ("POST", "/v1/responses/", 404),
            ("GET", "/docs", 404),
            ("GET", "/openapi.json", 404),
            ("GET", "/v1/models/no-such", 404),
            ("GET", "/v1/responses/resp_x", 404),
        ],
    )
    async def test_unknown_ways_have_the_one_shape(
        self, client: httpx.AsyncClient, method: str, path: str, status: int
    ) -> None:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b"nul", b'{"input":"\\ud800"}', b"[" * 100_000]
    )
    async def test_bodies_that_are_no_json_object(
        self, client: httpx.AsyncClient, body: bytes
    ) -> None:
        answer = await client.post("/v1/responses", content=body)
        assert answer.status_code == 400
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    async def test_too_large_announced_or_not(self, client: httpx.AsyncClient) -> None:
        announced = await client.post("/v1/responses", content=b"x" * 600_000)
        assert (announced.status_code, announced.json()["error"]["code"]) == (
            413,
            "payload_too_large",
        )

        async def drip() -> Any:
            for _ in range(60):
                yield b"x" * 10_000

        assert (await client.post("/v1/responses", content=drip())).status_code == 413

    @pytest.mark.parametrize(
        "credential", [None, "", "Bearer", "Bearer x", "Basic abc", "Bearer a.b.c"]
    )
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/v1/responses"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("POST", "/v1/tickets"),
        ],
    )
    async def test_no_credential_no_service(
        self, stranger: httpx.AsyncClient, credential: str | None, method: str, path: str
    ) -> None:
        answer = await stranger.request(
            method,
            path,
            json=QUICK,
            headers={} if credential is None else {"authorization": credential},
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")

    async def test_an_expired_credential(
        self, gateway: gp.Gateway, stranger: httpx.AsyncClient
    ) -> None:
        headers = gateway.headers(ttl=60, age_s=120)
        assert (await stranger.get("/v1/models", headers=headers)).status_code == 401


class TestRevoked:
    async def test_whoever_was_revoked_is_told_nothing_else_and_nothing_is_written(
        self, gateway: gp.Gateway, kafka: str, pool: str
    ) -> None:
        offsets = log.Offsets(kafka)
        names = [topics.requests(pool, priority) for priority in topics.CLASSES]

        async def written() -> list[dict[int, int]]:
            return [
                await offsets.ends(name, range(await offsets.partitions(name))) for name in names
            ]

        try:
            async with (
                gateway.client("root", ("admin",)) as admin,
                gateway.client("mallory") as mallory,
            ):
                assert (await mallory.post("/v1/responses", json=QUICK)).status_code == 200
                before = await written()
                done = await admin.post("/v1/admin/revocations", json={"subject": "mallory"})
                assert done.status_code == 201
                for path, body in (
                    ("/v1/responses", QUICK),
                    ("/v1/responses", {**QUICK, "stream": True}),
                    ("/v1/responses", {**QUICK, "previous_response_id": "resp_nobody"}),
                    ("/v1/responses", {"input": 1}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                    ("/v1/chat/completions", {}),
                ):
                    answer = await mallory.post(path, json=body)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (
                        401,
                        "invalid_api_key",
                    ), body
                assert (await mallory.get("/v1/models")).status_code == 401
                assert await written() == before
        finally:
            await offsets.stop()


class TestModels:
    async def test_list_and_one(self, client: httpx.AsyncClient) -> None:
        listed = (await client.get("/v1/models")).json()
        assert (listed["object"], [m["id"] for m in listed["data"]]) == ("list", [gp.MODEL])
        assert (await client.get(f"/v1/models/{gp.MODEL}")).json() == listed["data"][0]
        assert type(listed["data"][0]["created"]) is int

    async def test_an_unknown_model(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/responses", json={**QUICK, "model": "nope"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


class TestPage:
    async def test_files_and_their_headers(self, gateway: gp.Gateway) -> None:
        async with httpx.AsyncClient(base_url=gateway.url) as browser:
            index = await browser.get("/")
            assert index.text == PAGE
            assert index.headers["content-type"] == "text/html; charset=utf-8"
            policy = index.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "ws://127.0.0.1:1" in policy
            assert "unsafe" not in policy
            assert index.headers["x-content-type-options"] == "nosniff"
            assert (
                await browser.get("/", headers={"if-none-match": index.headers["etag"]})
            ).status_code == 304
            script = await browser.get("/assets/app-1234.js")
            assert script.headers["content-type"].startswith("text/javascript")
            assert "immutable" in script.headers["cache-control"]

    @pytest.mark.parametrize(
        "path",
        [
            "/../secret.txt",
            "/..%2fsecret.txt",
            "/%2e%2e/secret.txt",
            "/assets/../../secret.txt",
            "/assets/..%5c..%5csecret.txt",
            "//etc/passwd",
            "/link.txt",
            "/.env",
        ],
    )
    async def test_no_path_leads_out_of_it(self, gateway: gp.Gateway, path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        )  # raw: clients would tidy the path up
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 404"), answer[:200]
        assert b"not the page's" not in answer

    async def test_public_configuration(self, stranger: httpx.AsyncClient) -> None:
        body = (await stranger.get("/config.json")).json()
        assert body["push_urls"] == ["http://127.0.0.1:1"]
        assert (body["models"], body["default_model"]) == ([gp.MODEL], gp.MODEL)

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 200),
            ({"sec-fetch-site": "same-origin"}, 200),
            ({"host": "localhost:1"}, 200),
            ({"sec-fetch-site": "cross-site"}, 404),
            ({"sec-fetch-site": "same-site"}, 404),
            ({"sec-fetch-site": "none"}, 404),
            ({"host": "evil.test"}, 404),
            ({"host": "127.0.0.1.evil.test"}, 404),
            ({"host": "[::1"}, 404),
            ({"origin": "http://evil.test"}, 404),
            ({"origin": "null"}, 404),
        ],
    )
    async def test_the_development_credential_is_for_this_machines_page_only(
        self, stranger: httpx.AsyncClient, headers: dict[str, str], status: int
    ) -> None:
        answer = await stranger.get("/dev/credential", headers=headers)
        assert answer.status_code == status
        if status == 200:
            assert set(answer.json()) == {"credential"}
            assert answer.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in answer.headers


class TestBrowsers:
    async def test_a_listed_origin_may_read_another_may_not(
        self, client: httpx.AsyncClient, stranger: httpx.AsyncClient
    ) -> None:
        listed = await client.get("/v1/models", headers={"origin": gp.ORIGIN})
        assert listed.headers["access-control-allow-origin"] == gp.ORIGIN
        foreign = await client.get("/v1/models", headers={"origin": "http://evil.test"})
        assert "access-control-allow-origin" not in foreign.headers
        asked = {
            "origin": gp.ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        preflight = await stranger.options("/v1/responses", headers=asked)
        assert (preflight.status_code, preflight.headers["access-control-allow-headers"]) == (
            204,
            "authorization",
        )
        refused = await stranger.options(
            "/v1/responses", headers={**asked, "origin": "http://evil.test"}
        )
        assert refused.status_code == 405

    async def test_health_and_readiness(self, stranger: httpx.AsyncClient) -> None:
        assert (await stranger.get("/health")).json() == {"status": "ok"}
        state = (await stranger.get("/ready")).json()
        assert (state["ready"], state["kafka"], state["redis"], state["draining"]) == (
            True,
            True,
            True,
            False,
        )
        assert set(state["engine"]) == {"state", "workers", "detail"}
