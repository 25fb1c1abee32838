"""What Tailrace adds to conversations, on real parts and two gateways: turns behind any node, the
turns as a list, one conversation for one key, and deletion with what was said."""

from __future__ import annotations

import ast
import asyncio
from typing import Any

import httpx
import openai
import pytest

from tailrace.archive import database
from tests.services.gateway.archive.test_conversations import (
    answered,
    expected,
    made,
    said,
    turn,
    user,
)
from tests.support import archive_parts, archive_rows, waiting
from tests.support import gateway_process as gp

pytestmark = pytest.mark.timeout(300)


async def behind(
    client: httpx.AsyncClient,
    conversation: str,
    parent: str | None,
    text: str,
    *,
    tokens: int = 6,
    pace_ms: int = 1,
) -> httpx.Response:
    body = {
        "conversation": {"id": conversation, "parent": parent},
        "input": text,
        "metadata": gp.cues(tokens, pace_ms),
    }
    return await client.post("/v1/responses", json=body, timeout=60)


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def listed(client: httpx.AsyncClient, conversation: str, query: str = "") -> dict[str, Any]:
    got = await client.get(f"/v1/conversations/{conversation}/turns{query}")
    assert got.status_code == 200, got.text
    return dict(got.json())


async def test_turns_behind_one_node_come_at_once_at_two_gateways(
    client: httpx.AsyncClient, elsewhere: httpx.AsyncClient
) -> None:
    name = await made(client)
    first = await answered(client, name, "root")
    root = (await listed(elsewhere, name))["head"]
    got = await asyncio.gather(
        *(
            behind(c, name, parent, f"version {n}", tokens=40, pace_ms=10)
            for n, (c, parent) in enumerate(
                [(client, root), (elsewhere, root), (client, None), (elsewhere, None)]
            )
        )
    )
    assert [each.status_code for each in got] == [200] * 4, [each.text for each in got]
    for n, each in enumerate(got):
        before = [user("root"), said(first)] if n < 2 else []
        assert text_of(each.json()) == expected(*before, user(f"version {n}"), tokens=40)
    tree = (await client.get(f"/v1/conversations/{name}/nodes")).json()
    parents = {node["id"]: node["parent"] for node in tree["data"]}
    assert [parents[each.json()["id"]] for each in got] == [root, root, None, None]
    assert tree["head"] == tree["data"][-1]["id"]

    refused = await behind(client, name, "resp_none", "x")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation.parent")
    # One that is asked for again is the same turn, at any gateway.
    body = {
        "conversation": {"id": name, "parent": root},
        "input": "once",
        "metadata": gp.cues(30, 10),
    }
    again = await asyncio.gather(
        *(
            c.post("/v1/responses", json=body, headers={"idempotency-key": name}, timeout=60)
            for c in (client, elsewhere, client)
        )
    )
    assert {each.status_code for each in again} == {200}, [each.text for each in again]
    assert len({each.json()["id"] for each in again}) == 1
    assert (await listed(client, name))["head"] == again[0].json()["id"]


async def test_a_turn_behind_a_node_over_a_socket_continues_its_text(
    client: httpx.AsyncClient, sdk: openai.AsyncOpenAI
) -> None:
    name = await made(client)
    short = (await turn(client, name, "long", tokens=40, max_output_tokens=16)).json()
    assert short["continue"]
    await behind(client, name, None, "another")
    async with sdk.responses.connect() as connection:
        where: Any = {"id": name, "parent": short["id"]}
        await connection.response.create(
            model=gp.MODEL, conversation=where, metadata=gp.cues(40, 1), max_output_tokens=24
        )
        async for event in connection:
            if event.type in ("response.completed", "response.incomplete"):
                break
    rows = (await listed(client, name))["data"]
    assert rows[-1]["parent"] == short["id"]
    assert rows[-1]["input"] == []
    whole = expected(user("long"), tokens=40)
    assert whole.startswith(text_of(short) + text_of(rows[-1]["response"]))


async def test_turns_are_listed_alike_while_they_run_and_from_the_archive(
    parts: archive_parts.Parts,
    client: httpx.AsyncClient,
    elsewhere: httpx.AsyncClient,
    later: gp.Gateway,
) -> None:
    name = await made(client, items=[user("noted")])
    await answered(client, name, "one")
    running = asyncio.ensure_future(turn(client, name, "two", tokens=60, pace_ms=20))

    async def runs() -> bool:
        rows = (await listed(elsewhere, name))["data"]
        return len(rows) == 3 and bool(rows[2]["response"] and rows[2]["response"]["output"])

    await waiting.eventually(runs, "the words of a running response at another gateway")
    rows = (await listed(elsewhere, name))["data"]
    assert rows[2]["response"]["status"] == "in_progress"
    assert [item["content"][0]["text"] for item in rows[2]["input"]] == ["two"]
    final = (await running).json()
    assert (await client.get(f"/v1/responses/{final['id']}")).json() == final

    page = await listed(client, name)
    rows = page["data"]
    ids = [row["id"] for row in rows]
    assert (page["object"], page["head"], page["has_more"]) == ("list", final["id"], False)
    assert (page["first_id"], page["last_id"]) == (ids[0], final["id"])
    assert [row["parent"] for row in rows] == [None, *ids[:2]]
    assert [row["response"] is None for row in rows] == [True, False, False]
    assert rows[2]["response"] == final
    given = (await client.get(f"/v1/responses/{final['id']}/input_items")).json()["data"]
    assert rows[2]["input"] == given
    newest = await listed(client, name, "?order=desc&limit=2")
    assert ([row["id"] for row in newest["data"]], newest["has_more"]) == (ids[:0:-1], True)
    rest = await listed(client, name, f"?order=desc&after={newest['last_id']}")
    assert ([row["id"] for row in rest["data"]], rest["has_more"]) == (ids[:1], False)
    assert (await listed(client, name, f"?after={ids[0]}&limit=1"))["data"] == [rows[1]]
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order")):
        got = await client.get(f"/v1/conversations/{name}/turns?{query}")
        assert (got.status_code, got.json()["error"]["param"]) == (400, param)
    got = await client.get(f"/v1/conversations/{name}/turns?after=resp_none")
    assert (got.status_code, got.json()["error"]["param"]) == (400, "after")

    await archive_parts.archived(client, *ids[1:])
    await parts.retention()
    assert await listed(elsewhere, name) == page
    async with later.client() as there, later.client("bob") as bob:
        assert await listed(there, name) == page
        got = await bob.get(f"/v1/conversations/{name}/turns")
        assert got.status_code == 404


async def test_one_key_makes_one_conversation_at_any_gateway(
    parts: archive_parts.Parts,
    client: httpx.AsyncClient,
    elsewhere: httpx.AsyncClient,
    later: gp.Gateway,
) -> None:
    headers = {"idempotency-key": "a new chat"}

    async def make(c: httpx.AsyncClient, **fields: Any) -> httpx.Response:
        return await c.post("/v1/conversations", json=fields, headers=headers)

    got = await asyncio.gather(*(make(c, title="chat") for c in (client, elsewhere) * 4))
    assert {each.status_code for each in got} == {200}, [each.text for each in got]
    assert len({each.json()["id"] for each in got}) == 1
    name = got[0].json()["id"]
    await answered(client, name, "one")
    async with later.client() as third, later.client("bob") as bob:
        again = (await make(third, title="other")).json()
        assert (again["id"], again["title"]) == (name, "chat")
        assert again["head"] is not None
        assert (await make(bob)).json()["id"] != name
        rows = (await third.get("/v1/conversations?limit=100")).json()["data"]
        assert [row["id"] for row in rows].count(name) == 1
    for key, body, param in (
        ("a new chat", {"items": [user("x")]}, "items"),
        ("x" * 513, {}, "Idempotency-Key"),
    ):
        refused = await client.post(
            "/v1/conversations", json=body, headers={"idempotency-key": key}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    await client.delete(f"/v1/conversations/{name}")
    gone = [await make(c) for c in (client, elsewhere)]

    async def folded() -> bool:
        return (await client.get("/v1/conversations")).status_code == 200

    await waiting.eventually(folded, "the archive")
    with parts.gateway("just-started") as fresh:
        async with fresh.client() as fourth:
            gone.append(await make(fourth))
    assert {each.status_code for each in gone} == {404}
    assert {each.json()["error"]["code"] for each in gone} == {"conversation_not_found"}


async def test_a_conversation_goes_with_what_was_said_in_it(
    parts: archive_parts.Parts, client: httpx.AsyncClient, elsewhere: httpx.AsyncClient
) -> None:
    name = await made(client, items=[user("a secret noted")])
    await answered(client, name, "a secret told")
    old = (await listed(client, name))["head"]
    await archive_parts.archived(client, old)
    running = asyncio.ensure_future(turn(client, name, "a secret asked", tokens=400, pace_ms=20))

    async def runs() -> bool:
        row = (await listed(elsewhere, name, "?order=desc&limit=1"))["data"][0]
        return bool(row["response"] and row["response"]["output"])

    await waiting.eventually(runs, "a running response")
    new = (await listed(elsewhere, name))["head"]
    where = f"/v1/conversations/{name}"
    refused = await elsewhere.delete(f"{where}?responses=yes")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "responses")
    got = await elsewhere.delete(f"{where}?responses=true", timeout=60)
    assert got.json() == {"id": name, "object": "conversation.deleted", "deleted": True}
    assert (await running).json()["status"] == "cancelled"

    async def gone() -> bool:
        asked = [await c.get(where) for c in (client, elsewhere)]
        asked += [
            await c.get(f"/v1/responses/{r}") for c in (client, elsewhere) for r in (old, new)
        ]
        return {each.status_code for each in asked} == {404}

    await waiting.eventually(gone, "the deletions at both gateways")

    async def folded() -> bool:
        """What was acknowledged before: both lists wait for that."""
        asked = [await client.get(f"/v1/{what}") for what in ("conversations", "responses")]
        return {each.status_code for each in asked} == {200}

    await waiting.eventually(folded, "the archive")

    engine = database.engine(parts.url)

    async def erased() -> bool:
        """Nothing is left but who deleted which."""
        tables = dict(ast.literal_eval((await archive_rows.dump(engine)).decode()))
        assert any(new in row for row in tables.pop("erased"))
        return not any(said in repr(tables) for said in (old, new, name, "a secret"))

    await waiting.eventually(erased, "the erasure in the archive")
    await engine.dispose()
    assert (await client.delete(f"{where}?responses=true")).status_code == 404
