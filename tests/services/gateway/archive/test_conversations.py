"""Conversations on real parts: OpenAI's client unmodified, turns that race, wait and interrupt,
services that are killed, and an archive that is dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest

from tests.services.gateway.conftest import events_of
from tests.services.gateway.test_tools import WEATHER
from tests.support import archive_parts, waiting
from tests.support import gateway_process as gp
from worker.engines import scripted

pytestmark = pytest.mark.timeout(300)

TOKENS = 6


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def expected(*messages: dict[str, Any], tokens: int = TOKENS) -> str:
    """What the engine answers to this dialogue."""
    detokenizer = scripted.Detokenizer()
    return detokenizer.push(scripted.expected_ids(list(messages), tokens)) + detokenizer.flush()


async def turn(
    client: httpx.AsyncClient,
    conversation: str,
    text: str,
    *,
    tokens: int = TOKENS,
    pace_ms: int = 1,
    **more: Any,
) -> httpx.Response:
    body = {
        "model": gp.MODEL,
        "conversation": conversation,
        "input": text,
        "metadata": gp.cues(tokens, pace_ms),
        **more,
    }
    return await client.post("/v1/responses", json=body, timeout=60)


async def answered(client: httpx.AsyncClient, conversation: str, text: str, **more: Any) -> str:
    got = await turn(client, conversation, text, **more)
    assert got.status_code == 200, got.text
    shown = got.json()
    assert shown["conversation"] == {"id": conversation}
    assert shown["previous_response_id"] is None
    (text_,) = (part["text"] for item in shown["output"] for part in item["content"])
    return str(text_)


async def made(client: httpx.AsyncClient, **fields: Any) -> str:
    got = await client.post("/v1/conversations", json=fields)
    assert got.status_code == 200, got.text
    return str(got.json()["id"])


async def texts(client: httpx.AsyncClient, conversation: str) -> list[str]:
    """What was said on the chosen path, oldest first."""
    got = await client.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100")
    assert got.status_code == 200, got.text
    return [part["text"] for item in got.json()["data"] for part in item["content"]]


async def test_openais_client_keeps_a_conversation(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.conversations.create(
        metadata={"topic": "rain"},
        items=[{"type": "message", "role": "developer", "content": "Be brief."}],
    )
    assert made.id.startswith("conv_")
    ask: dict[str, Any] = {"model": gp.MODEL, "metadata": gp.cues(TOKENS, 1)}
    first = await sdk.responses.create(conversation=made.id, input="one", **ask)
    second = await sdk.responses.create(conversation={"id": made.id}, input="two", **ask)
    system = {"role": "system", "content": "Be brief."}
    before = [system, user("one"), said(first.output_text)]
    assert first.output_text == expected(system, user("one"))
    assert second.output_text == expected(*before, user("two"))
    assert second.conversation is not None
    assert second.conversation.id == made.id

    items = [item async for item in sdk.conversations.items.list(made.id, order="asc", limit=2)]
    assert [(i.type, getattr(i, "role", "")) for i in items] == [
        ("message", role) for role in ("developer", "user", "assistant", "user", "assistant")
    ]
    newest = [item.id async for item in sdk.conversations.items.list(made.id)]
    assert newest == [item.id for item in items][::-1]
    asked, answer = str(items[1].id), str(items[2].id)
    one = await sdk.conversations.items.retrieve(answer, conversation_id=made.id)
    assert one == items[2]

    added = await sdk.conversations.items.create(
        made.id, items=[{"type": "message", "role": "user", "content": "by the way"}]
    )
    third = await sdk.responses.create(conversation=made.id, input="three", **ask)
    dialogue = [*before, user("two"), said(second.output_text), user("by the way")]
    assert third.output_text == expected(*dialogue, user("three"))

    await sdk.conversations.items.delete(str(added.data[0].id), conversation_id=made.id)
    await sdk.conversations.items.delete(asked, conversation_id=made.id)
    fourth = await sdk.responses.create(conversation=made.id, input="four", **ask)
    left = [system, said(first.output_text), user("two"), said(second.output_text)]
    left += [user("three"), said(third.output_text)]
    assert fourth.output_text == expected(*left, user("four"))
    with pytest.raises(openai.NotFoundError):
        await sdk.conversations.items.retrieve(asked, conversation_id=made.id)

    changed = await sdk.conversations.update(made.id, metadata={"topic": "sun"})
    assert changed.metadata == {"topic": "sun"}
    assert (await sdk.conversations.retrieve(made.id)).metadata == {"topic": "sun"}
    gone = await sdk.conversations.delete(made.id)
    assert gone.deleted
    with pytest.raises(openai.NotFoundError):
        await sdk.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(conversation=made.id, input="five", **ask)
    assert (await sdk.responses.retrieve(first.id)).output_text == first.output_text


async def test_what_an_agent_adds_comes_back_as_it_was(sdk: openai.AsyncOpenAI) -> None:
    """Items that were output elsewhere have ids already. An added item was listed under the id that
    its reasoning came with, which no other call of the API knew: `after` it was 400."""
    thought = [{"type": "reasoning_text", "text": "of it"}]
    said_ = [{"type": "output_text", "text": "Rain.", "annotations": []}]
    given: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "y"}]},
        {"type": "reasoning", "id": "rs_of_another", "summary": [], "content": thought},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "message", "id": "msg_2", "role": "assistant", "content": said_},
    ]
    given = [{"status": "completed", **item} for item in given]
    made = await sdk.conversations.create()
    added = (await sdk.conversations.items.create(made.id, items=given)).data
    back = [item async for item in sdk.conversations.items.list(made.id, order="asc", limit=1)]
    assert back == added
    assert len({item.id for item in back}) == len(given)
    for was, item in zip(given, back, strict=True):
        now = item.model_dump(exclude_unset=True)
        assert {**now, "id": was.get("id")} == {**was, "id": was.get("id")} | (
            {"encrypted_content": None} if was["type"] == "reasoning" else {}
        )
        where = str(item.id)
        assert await sdk.conversations.items.retrieve(where, conversation_id=made.id) == item
    thinking = str(back[2].id)
    await sdk.conversations.items.delete(thinking, conversation_id=made.id)
    left = [item.id async for item in sdk.conversations.items.list(made.id, order="asc")]
    assert left == [item.id for item in back if item.id != thinking]


async def test_calls_of_tools_belong_to_their_turns(client: httpx.AsyncClient) -> None:
    name = await made(client)
    got = (
        await turn(client, name, "the weather", tokens=40, tools=[WEATHER], tool_choice="required")
    ).json()
    call = next(item for item in got["output"] if item["type"] == "function_call")
    refused = await turn(client, name, "and now?")
    assert refused.status_code == 400
    assert call["call_id"] in refused.text
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    body = {"conversation": name, "input": [answer], "tools": [WEATHER], "metadata": gp.cues(4, 1)}
    assert (await client.post("/v1/responses", json=body)).status_code == 200
    shown = (await client.get(f"/v1/conversations/{name}/items?order=asc")).json()["data"]
    kinds = [item["type"] for item in shown]
    assert kinds[0] == "message"
    assert kinds.index("function_call") < kinds.index("function_call_output")


async def answering(client: httpx.AsyncClient, conversation: str) -> str:
    """The response of the conversation's first turn, once it has some text."""

    async def begun() -> str:
        nodes = (await client.get(f"/v1/conversations/{conversation}/nodes")).json()["data"]
        if not nodes:
            return ""
        shown = await client.get(f"/v1/responses/{nodes[0]['id']}")
        return str(nodes[0]["id"]) if shown.status_code == 200 and shown.json()["output"] else ""

    return str(await waiting.eventually(begun, "the first words of the answer"))


async def at_once(conversation: str, clients: Sequence[httpx.AsyncClient]) -> list[httpx.Response]:
    """The refusals, where each client asks for a turn at the same time: one turn is taken and runs
    until all others are refused."""
    asked = [
        asyncio.ensure_future(turn(c, conversation, f"at once {n}", tokens=3000, pace_ms=20))
        for n, c in enumerate(clients)
    ]
    taken = await answering(clients[0], conversation)

    def others() -> list[httpx.Response]:
        return [each.result() for each in asked if each.done()]

    await waiting.eventually(lambda: len(others()) == len(asked) - 1, "the others are answered")
    refused = others()
    assert {each.status_code for each in refused} == {400}, [each.text for each in refused]
    await clients[0].post(f"/v1/responses/{taken}/cancel")
    [last] = [each for each in await asyncio.gather(*asked) if each not in refused]
    assert (last.status_code, last.json()["id"], last.json()["status"]) == (200, taken, "cancelled")
    return refused


async def test_of_turns_at_once_one_is_taken_and_the_others_are_told(
    client: httpx.AsyncClient, elsewhere: httpx.AsyncClient
) -> None:
    name = await made(client)
    refused = [each.json()["error"] for each in await at_once(name, [client, elsewhere] * 4)]
    assert {(e["code"], e["param"]) for e in refused} == {("conversation_locked", "conversation")}
    assert len(await texts(client, name)) == 2


async def test_turns_that_queue_come_one_after_the_other(
    client: httpx.AsyncClient, elsewhere: httpx.AsyncClient
) -> None:
    name = await made(client)
    got = await asyncio.gather(
        *(
            answered(c, name, f"q{n}", tokens=12, pace_ms=10, if_busy="queue")
            for n, c in enumerate([client, elsewhere] * 4)
        )
    )
    all_of_them = await texts(client, name)
    assert len(all_of_them) == 16
    dialogue: list[dict[str, Any]] = []
    for asked, answer in zip(all_of_them[::2], all_of_them[1::2], strict=True):
        dialogue.append(user(asked))
        assert answer == expected(*dialogue, tokens=12)
        assert answer == got[int(asked[1:])]
        dialogue.append(said(answer))


async def test_a_turn_interrupts_the_one_that_runs(client: httpx.AsyncClient) -> None:
    name = await made(client)
    long = asyncio.ensure_future(turn(client, name, "long", tokens=400, pace_ms=20))
    await answering(client, name)
    next_ = await answered(client, name, "stop that", if_busy="interrupt")
    cut = (await long).json()
    assert cut["status"] == "cancelled"
    part = cut["output"][0]["content"][0]["text"]
    assert next_ == expected(user("long"), said(part), user("stop that"))


async def test_branches_and_the_chosen_path(client: httpx.AsyncClient) -> None:
    name = await made(client)
    first = await answered(client, name, "root")
    await answered(client, name, "left")
    nodes = (await client.get(f"/v1/conversations/{name}/nodes")).json()
    root, left = (node["id"] for node in nodes["data"])
    assert (nodes["head"], nodes["path"]) == (left, [root, left])
    wrong = await client.post(f"/v1/conversations/{name}", json={"head": "resp_none"})
    assert wrong.status_code == 400
    moved = await client.post(f"/v1/conversations/{name}", json={"head": root})
    assert moved.json()["head"] == root
    right = await answered(client, name, "right")
    assert right == expected(user("root"), said(first), user("right"))
    assert await texts(client, name) == ["root", first, "right", right]
    nodes = (await client.get(f"/v1/conversations/{name}/nodes")).json()
    assert [node["parent"] for node in nodes["data"]] == [None, root, root]
    await client.post(f"/v1/conversations/{name}", json={"head": left})
    assert (await texts(client, name))[2] == "left"

    fork = {"response_id": left, "at": 3}
    body = {"conversation": name, "fork": fork, "metadata": gp.cues(4, 1)}
    forked = await client.post("/v1/responses", json=body)
    assert forked.status_code == 200, forked.text
    nodes = (await client.get(f"/v1/conversations/{name}/nodes")).json()
    assert nodes["head"] == forked.json()["id"]
    assert nodes["path"] == [root, forked.json()["id"]]
    other = await made(client)
    refused = await client.post("/v1/responses", json={**body, "conversation": other})
    assert refused.status_code == 400


async def test_titles_pins_and_lists(gateway: gp.Gateway) -> None:
    async with gateway.client("lister") as client, gateway.client("bob") as bob:
        await _listed(client, bob)


async def _listed(client: httpx.AsyncClient, bob: httpx.AsyncClient) -> None:
    names = [await made(client, title=f"t{n}", metadata={"n": str(n)}) for n in range(3)]
    await client.post(f"/v1/conversations/{names[0]}", json={"title": "new", "pinned": True})
    await answered(client, names[1], "hello")
    listed = (await client.get("/v1/conversations?limit=100")).json()["data"]
    mine = [row for row in listed if row["id"] in names]
    assert [row["id"] for row in mine] == [names[1], names[2], names[0]]
    assert (mine[2]["title"], mine[2]["pinned"]) == ("new", True)
    page = (await client.get(f"/v1/conversations?limit=1&after={names[1]}")).json()
    assert ([row["id"] for row in page["data"]], page["has_more"]) == ([names[2]], True)
    for others in (await bob.get("/v1/conversations?limit=100")).json()["data"]:
        assert others["id"] not in names
    for ask in (
        bob.get(f"/v1/conversations/{names[0]}"),
        bob.post(f"/v1/conversations/{names[0]}", json={"title": "mine"}),
        bob.delete(f"/v1/conversations/{names[0]}"),
        bob.get(f"/v1/conversations/{names[0]}/items"),
        bob.post(f"/v1/conversations/{names[0]}/items", json={"items": [user("x")]}),
        turn(bob, names[0], "mine"),
    ):
        got = await ask
        assert (got.status_code, got.json()["error"]["code"]) == (404, "conversation_not_found")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": 5}, "items"),
        ("", {"items": [user("x")] * 21}, "items"),
        ("", {"items": [{"type": "web_search_call"}]}, "items[0].type"),
        ("", {"metadata": {"a": 1}}, "metadata"),
        ("", {"title": "x" * 513}, "title"),
        ("", {"name": "x"}, "name"),
        ("/{}", {}, "metadata"),
        ("/{}", {"pinned": "yes"}, "pinned"),
        ("/{}", {"head": 5}, "head"),
        ("/{}/items", {}, "items"),
        ("/{}/items", {"items": []}, "items"),
    ],
)
async def test_a_bad_body_is_refused_by_name(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    name = await made(client)
    got = await client.post(f"/v1/conversations{path.format(name)}", json=body)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == param


async def test_one_key_is_one_turn(client: httpx.AsyncClient) -> None:
    name = await made(client)
    headers = {"idempotency-key": f"turn of {name}"}
    body = {"conversation": name, "input": "once", "metadata": gp.cues(30, 20)}

    async def ask() -> httpx.Response:
        return await client.post("/v1/responses", json=body, headers=headers, timeout=60)

    first = asyncio.ensure_future(ask())
    await asyncio.sleep(0.2)
    got = [await first, await ask(), *await asyncio.gather(ask(), ask())]
    assert {each.status_code for each in got} == {200}, [each.text for each in got]
    assert len({each.json()["id"] for each in got}) == 1
    assert len(await texts(client, name)) == 2


async def test_turns_at_once_on_a_gateway_that_has_just_started_and_is_killed(
    parts: archive_parts.Parts, client: httpx.AsyncClient
) -> None:
    """While the first turn's request is written, the others look for it on the same gateway. And a
    gateway that is killed leaves no lock."""
    with parts.gateway("mortal") as fresh:
        async with fresh.client() as elsewhere:
            name = await made(elsewhere)
            await at_once(name, [elsewhere] * 8)

            name = await made(client)
            running = asyncio.ensure_future(
                turn(elsewhere, name, "lost", tokens=100, pace_ms=20, stream=True)
            )
            await answering(client, name)
            fresh.kill()
            with contextlib.suppress(httpx.HTTPError):
                await running
    got_ = await answered(client, name, "next", if_busy="queue")
    said_ = await texts(client, name)
    assert said_[0] == "lost"
    assert said_[-1] == got_


async def test_over_a_socket_and_as_a_stream(
    gateway: gp.Gateway, client: httpx.AsyncClient
) -> None:
    name = await made(client)
    streamed = await turn(client, name, "first", stream=True)
    final = events_of(streamed.text)[-1]["response"]
    assert final["conversation"] == {"id": name}
    async with (
        openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key=gateway.keys.token("alice"), max_retries=0
        ) as sdk,
        sdk.responses.connect() as connection,
    ):
        await connection.response.create(
            model=gp.MODEL, conversation=name, input="second", metadata=gp.cues(TOKENS, 1)
        )
        async for event in connection:
            if event.type == "response.completed":
                assert event.response.conversation is not None
                break
    assert (await texts(client, name))[2] == "second"


async def test_what_was_said_is_found_at_another_gateway_until_it_is_erased(
    client: httpx.AsyncClient, second: gp.Gateway
) -> None:
    name = await made(client, title="Über uns", items=[user("Grüße aus 北京大学")])
    spoken = await turn(client, name, "Where is the zebra kept?")
    rid = spoken.json()["id"]
    [answer] = (part["text"] for item in spoken.json()["output"] for part in item["content"])

    async def found(by: httpx.AsyncClient, words: str) -> list[tuple[str, str | None]]:
        got = await by.get("/v1/conversations/search", params={"q": words})
        assert got.status_code == 200, got.text
        return [(row["conversation"]["id"], row["response_id"]) for row in got.json()["data"]]

    async with second.client() as alice, second.client("bob") as bob:

        async def there() -> bool:  # the worker writes a history a moment after its answer
            return await found(alice, "ZEBRA kept wher") == [(name, rid)]

        await waiting.eventually(there, "the turn", within_s=30)
        assert await found(alice, answer[:200]) == [(name, rid)]
        for words in ("uber un", "grusse 京大", "北京大学"):
            assert await found(alice, words) == [(name, None)], words
        for words in ('zebra" OR "x', "zebra OR quagga", "zeb* kept", "%zebr%a", "京学"):
            assert await found(alice, words) == [], words
        assert await found(bob, "zebra") == []
        assert (await client.delete(f"/v1/responses/{rid}")).status_code == 200
        assert await found(alice, "zebra") == []
        assert (await client.delete(f"/v1/conversations/{name}")).status_code == 200
        assert await found(alice, "北京大学") == await found(alice, "uber uns") == []
