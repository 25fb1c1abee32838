"""Forks on real parts: over every transport, of calls, continued, and with a worker that is killed
in the middle of one."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.services.gateway.conftest import events_of
from tests.services.gateway.test_tools import (
    Ask,
    ask,
    calls_of,
    dense,
    output,
    over_http,
    over_sse,
    text_of,
)
from tests.support import gateway_process as gp
from tests.support import waiting
from worker.engines import scripted

ask = ask
WORD = " 天 instead"
PLAIN: dict[str, Any] = {"tools": None}


def question(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def expected(text: str, total: int, at: int, replace: str = "") -> str:
    """The text of a fork of the greedy answer to `text`, with so many tokens in all."""
    begin = [*scripted.expected_ids(question(text), at), *scripted.text_ids(replace)]
    further = scripted.tokens(question(text), begin)
    ids = [*begin, *(next(further) for _ in range(total - len(begin)))]
    detokenizer = scripted.Detokenizer()
    return detokenizer.push(ids) + detokenizer.flush()


async def test_a_fork_begins_with_the_answer_and_its_word_on_every_transport(
    ask: Ask, client: httpx.AsyncClient
) -> None:
    told: dict[str, Any] = {"metadata": gp.cues(40, 2), **PLAIN}
    source = (await ask(input="fork me", instructions="Be brief.", **told)).whole
    of = {"response_id": source["id"], "at": 12, "replace": WORD}
    made = await ask(fork=of, temperature=0.5, max_output_tokens=9, **told)
    shown = made.whole
    begin = 12 + len(scripted.text_ids(WORD))
    messages = [{"role": "system", "content": "Be brief."}, *question("fork me")]
    ids = [*scripted.expected_ids(messages, 12), *scripted.text_ids(WORD)]
    further = scripted.tokens(messages, ids)
    ids += [next(further) for _ in range(9)]
    detokenizer = scripted.Detokenizer()
    assert text_of(shown) == detokenizer.push(ids) + detokenizer.flush()
    assert shown["status"] == "incomplete"
    assert (shown["fork"], shown["temperature"]) == (of, 0.5)
    assert shown["instructions"] == "Be brief."
    usage, before = shown["usage"], source["usage"]
    assert usage["output_tokens"] == 9
    assert usage["input_tokens"] == before["input_tokens"] + begin
    stored = (await client.get(f"/v1/responses/{shown['id']}")).json()
    assert stored == shown
    rest = await client.get(f"/v1/responses/{shown['id']}?stream=true&starting_after=4")
    assert dense(events_of(rest.text), after=4)
    if made.events:
        assert events_of(rest.text) == [
            {k: v for k, v in e.items() if k != "stream_id"} for e in made.events[5:]
        ]
    listed = [
        (await client.get(f"/v1/responses/{rid}/input_items")).json()["data"][0]["content"]
        for rid in (source["id"], shown["id"])
    ]
    assert listed[0] == listed[1]
    further_on = (await ask(previous_response_id=shown["id"], input="go on", **PLAIN)).whole
    assert "go on" in text_of(further_on)


async def test_a_running_response_is_forked_and_goes_on_itself(
    client: httpx.AsyncClient,
) -> None:
    text = "a long one"
    slow: dict[str, Any] = {"metadata": gp.cues(120, 20), "background": True, **PLAIN}
    source = (await over_http(client, input=text, **slow)).whole

    async def made(at: int) -> dict[str, Any] | None:
        of = {"response_id": source["id"], "at": at}
        answer = await over_http(client, fork=of, metadata=gp.cues(60, 0), **PLAIN)
        return answer.response

    found: list[dict[str, Any]] = []

    async def forked() -> bool:
        found.extend(filter(None, [await made(20)]))
        return bool(found)

    await waiting.eventually(forked, "twenty tokens are there to be forked", within_s=30)
    assert text_of(found[0]) == expected(text, 60, 20)
    assert (await client.get(f"/v1/responses/{source['id']}")).json()["status"] == "in_progress"
    await client.post(f"/v1/responses/{source['id']}/cancel")


async def test_calls_of_a_fork_are_its_own_and_are_answered(ask: Ask) -> None:
    source = (await ask(input="call weather 30\ncall shell 10")).whole
    for at in (0, 3, 25, 50):
        made = (await ask(fork={"response_id": source["id"], "at": at}, tools=None)).whole
        assert made["tools"] == source["tools"]
        ours, theirs = calls_of(made), calls_of(source)
        assert [c["name"] for c in ours] == [c["name"] for c in theirs]
        assert ours[0]["arguments"] == theirs[0]["arguments"]
        assert not {c["call_id"] for c in ours} & {c["call_id"] for c in theirs}
        outputs = [output(ours[0], "sun"), output(ours[1], "ok")]
        told = await ask(previous_response_id=made["id"], input=outputs)
        assert text_of(told.whole) == "The tools said: “sun” and “ok”."


async def test_a_fork_of_a_format_is_json_wherever_it_begins(client: httpx.AsyncClient) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    source = (await over_http(client, input="json 30", text=form, tools=None)).whole
    for at in (0, 2, 9, 30):
        of = {"response_id": source["id"], "at": at}
        made = (await over_sse(client, fork=of, tools=None)).whole
        assert made["text"] == source["text"]
        assert text_of(made) == text_of(source)
        assert json.loads(text_of(made)).keys() == {"a", "b"}


async def test_the_python_sdk_forks_unmodified(gateway: gp.Gateway) -> None:
    key = gateway.headers()["Authorization"].removeprefix("Bearer ")
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key) as sdk:
        metadata: Any = gp.cues(20, 1)
        source = await sdk.responses.create(input="hello", metadata=metadata)
        of = {"response_id": source.id, "at": 5}
        made = await sdk.responses.create(extra_body={"fork": of}, metadata=metadata)
        assert made.output_text == source.output_text
        assert made.usage is not None
        assert made.usage.output_tokens == 15


@pytest.mark.parametrize("who", ["alice", "bob"])
async def test_what_is_not_ones_own_is_not_found(
    who: str, gateway: gp.Gateway, client: httpx.AsyncClient
) -> None:
    source = (await over_http(client, input="mine", metadata=gp.cues(5, 1), **PLAIN)).whole
    if who == "alice":
        assert (await client.delete(f"/v1/responses/{source['id']}")).status_code == 200
    async with gateway.client(who) as caller:
        made = await over_http(caller, fork={"response_id": source["id"], "at": 2}, tools=None)
    assert made.refused[0] == "fork.response_id"
    assert made.error is not None
    assert made.error["code"] == "previous_response_not_found"
