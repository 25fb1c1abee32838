"""`truncation: "auto"` on real parts: over every transport, told to the client, kept in history,
forked, counted, and with a worker that is killed in the middle of the answer."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.services.gateway.test_tools import Ask, ask, over_http, text_of
from tests.support import gateway_process as gp
from worker.engines import scripted

ask = ask
LENGTH = 4096  # of the pool's model
PLAIN: dict[str, Any] = {"tools": None}
AUTO: dict[str, Any] = {"truncation": "auto", **PLAIN}


def turn(n: int) -> list[dict[str, Any]]:
    """About 500 tokens of the scripted engine."""
    return [
        {"role": "user", "content": f"question {n} " + "word " * 200},
        {"role": "assistant", "content": f"answer {n} " + "word " * 200},
    ]


def dialogue(turns: int, last: str = "and now?") -> list[dict[str, Any]]:
    said = [message for n in range(turns) for message in turn(n)]
    return [*said, {"role": "user", "content": last}]


async def test_the_oldest_turns_are_left_out_on_every_transport(
    ask: Ask, client: httpx.AsyncClient
) -> None:
    said = dialogue(20)
    made = await ask(
        input=said, instructions="Be brief.", max_output_tokens=40, metadata=gp.cues(40, 1), **AUTO
    )
    shown = made.whole
    dropped = shown["dropped_messages"]
    assert dropped % 2 == 0
    assert 20 < dropped < 38
    rest = [{"role": "system", "content": "Be brief."}, *said[dropped:]]
    assert text_of(shown) == scripted.expected_text(rest, 40)
    assert shown["truncation"] == "auto"
    usage = shown["usage"]
    assert LENGTH - 600 < usage["input_tokens"] <= LENGTH - 40
    if made.events:
        assert "dropped_messages" not in made.events[0]["response"]
        told = [e["response"] for e in made.events[1:] if "response" in e]
        assert [r["dropped_messages"] for r in told] == [dropped] * len(told)
    stored = (await client.get(f"/v1/responses/{shown['id']}")).json()
    assert stored == shown
    items = (await client.get(f"/v1/responses/{shown['id']}/input_items?limit=100")).json()["data"]
    assert len(items) == len(said), "what was asked is kept whole"
    refused = await ask(input=said, **PLAIN)
    error = refused.error or refused.whole["error"]  # in a stream it is the answer that fails
    assert error["code"] == "context_length_exceeded"


async def test_an_answer_that_was_cut_short_is_continued(
    ask: Ask, client: httpx.AsyncClient
) -> None:
    """By its text, over every transport, from the cache and from the log."""
    cues = gp.cues(60, 1)
    cut = (await ask(input="tell me", max_output_tokens=25, metadata=cues, **PLAIN)).whole
    assert (cut["status"], cut["continue"]) == ("incomplete", True)
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    more = await ask(
        previous_response_id=cut["id"], input="", max_output_tokens=9, metadata=cues, **PLAIN
    )
    rest = await ask(previous_response_id=more.whole["id"], input=[], metadata=cues, **PLAIN)
    assert rest.whole["status"] == "completed"
    assert "continue" not in rest.whole
    texts = [text_of(each).rstrip("\ufffd") for each in (cut, more.whole, rest.whole)]
    said = [{"role": "user", "content": "tell me"}]
    assert "".join(texts) == scripted.expected_text(said, 60)
    assert (await client.get(f"/v1/responses/{cut['id']}")).json() == cut
    refused = await ask(previous_response_id=rest.whole["id"], **PLAIN)
    assert refused.error is not None
    assert refused.error["param"] == "previous_response_id"
    # To the next turn the three are one message.
    said += [{"role": "assistant", "content": "".join(texts)}, {"role": "user", "content": "and?"}]
    turn = dict(input="and?", metadata=gp.cues(30, 1), **PLAIN)
    after = await ask(previous_response_id=rest.whole["id"], **turn)
    assert text_of(after.whole) == scripted.expected_text(said, 30)


async def test_a_conversation_goes_on_and_on(client: httpx.AsyncClient) -> None:
    """Each turn is short; after some of them the model does not take all any more."""
    previous, told = None, []
    for n in range(9):
        made = await over_http(
            client,
            input=turn(n)[0]["content"] * 2,
            previous_response_id=previous,
            metadata=gp.cues(60, 0),
            **AUTO,
        )
        told.append(made.whole.get("dropped_messages", 0))
        previous = made.whole["id"]
    print(f"left out by turn: {told}")
    assert told[0] == 0
    assert told == sorted(told)
    assert told[-1] >= 2


async def test_the_python_sdk_asks_unmodified_and_counts(gateway: gp.Gateway) -> None:
    key = gateway.headers()["Authorization"].removeprefix("Bearer ")
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key) as sdk:
        said: Any = dialogue(20)
        metadata: Any = gp.cues(20, 1)
        made = await sdk.responses.create(
            input=said, truncation="auto", metadata=metadata, max_output_tokens=20
        )
        assert made.truncation == "auto"
        assert made.usage is not None
        counted = await sdk.responses.input_tokens.count(
            input=said, truncation="auto", model=gp.MODEL
        )
        assert counted.input_tokens <= LENGTH
        with pytest.raises(openai.BadRequestError) as error:
            await sdk.responses.input_tokens.count(input=said, model=gp.MODEL)
        assert error.value.code == "context_length_exceeded"


async def test_a_fork_has_the_prompt_that_its_source_was_given(client: httpx.AsyncClient) -> None:
    said = dialogue(20)
    source = (
        await over_http(client, input=said, max_output_tokens=40, metadata=gp.cues(40, 1), **AUTO)
    ).whole
    rest = said[source["dropped_messages"] :]
    made = (
        await over_http(
            client,
            fork={"response_id": source["id"], "at": 9},
            metadata=gp.cues(30, 1),
            **PLAIN,
        )
    ).whole
    assert text_of(made) == scripted.expected_text(rest, 30)
    assert made["dropped_messages"] == source["dropped_messages"]


async def test_what_must_stay_is_too_long_and_other_values_are_refused(
    client: httpx.AsyncClient,
) -> None:
    long = [*dialogue(2), {"role": "user", "content": "word " * 4000}]
    made = await over_http(client, input=long, **AUTO)
    assert made.error is not None
    assert made.error["code"] == "context_length_exceeded"
    made = await over_http(client, input="hi", **{**AUTO, "truncation": "oldest"})
    assert made.refused[0] == "truncation"
