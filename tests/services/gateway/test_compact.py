"""A conversation summed up by the model, and continued from the summary."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from gateway.parsing import conversation, responses_api
from tests.services.gateway import test_sealed
from tests.support import gateway_process as gp
from worker.engines import scripted

both = test_sealed.both


def said(messages: list[dict[str, Any]], tokens: int) -> str:
    detokenizer = scripted.Detokenizer()
    return detokenizer.push(scripted.expected_ids(messages, tokens)) + detokenizer.flush()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_openais_client_sums_up_and_goes_on(both: tuple[gp.Gateway, gp.Gateway]) -> None:
    one, other = (
        openai.AsyncOpenAI(base_url=f"{each.url}/v1", api_key=each.keys.token("alice"))
        for each in both
    )
    async with one as first, other as second:
        cues: Any = {"metadata": gp.cues(6, 1), "model": gp.MODEL}
        asked = await first.responses.create(input="what is rain?", **cues)
        more: Any = [{"role": "user", "content": "and snow?"}]
        compacted = await first.responses.compact(
            model=gp.MODEL, previous_response_id=asked.id, input=more, instructions="Be exact."
        )
        assert compacted.object == "response.compaction"
        output: Any = compacted.output  # its type has no messages of users
        *users, summary = output
        assert [(u.type, u.role, u.content[0].text) for u in users] == [
            ("message", "user", "what is rain?"),
            ("message", "user", "and snow?"),
        ]
        assert summary.type == "compaction"
        assert summary.id.startswith("cmp_")
        assert compacted.usage.output_tokens > 0
        dialogue = [
            {"role": "system", "content": "Be exact."},
            user("what is rain?"),
            {"role": "assistant", "content": asked.output_text},
            user("and snow?"),
            user(responses_api.SUM_UP),
        ]
        text = scripted.readable_text(dialogue)

        back: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in output]
        on = await second.responses.create(
            input=[*back, {"role": "user", "content": "so?"}], **cues
        )
        told = [
            user("what is rain?"),
            user("and snow?"),
            user(conversation.SUMMARY.format(text)),
            user("so?"),
        ]
        assert on.output_text == said(told, 6)

        again = await second.responses.compact(model=gp.MODEL, input=back)
        assert [item.type for item in again.output] == ["message", "message", "compaction"]

    async with both[1].client("bob") as bob:
        got = await bob.post("/v1/responses", json={"input": back})
        assert (got.status_code, got.json()["error"]["code"]) == (400, "invalid_encrypted_content")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        ({"model": None}, "input"),
        ({"model": None, "input": []}, "input"),
        ({"model": None, "input": 5}, "input"),
        ({"input": "x", "model": "none"}, "model"),
        ({"model": None, "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"model": None, "input": "x", "instructions": 5}, "instructions"),
    ],
)
async def test_a_bad_body_is_refused_by_name(
    both: tuple[gp.Gateway, gp.Gateway], body: dict[str, Any], param: str
) -> None:
    async with both[0].client() as client:
        got = await client.post("/v1/responses/compact", json=body)
        assert got.status_code in (400, 404)
        assert got.json()["error"]["param"] == param


async def test_without_a_key_it_is_not_offered(client: httpx.AsyncClient) -> None:
    got = await client.post("/v1/responses/compact", json={"input": "x"})
    assert (got.status_code, got.json()["error"]["code"]) == (404, "not_offered")
