"""The archive on real parts: what the log has no longer is read, listed and continued as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.services.gateway.test_tools import WEATHER
from tests.support import archive_parts, waiting
from tests.support import gateway_process as gp
from tests.support import sdk as sdk_client


@pytest.fixture
async def sdk(gateway: gp.Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    """A user with no other completions."""
    async with sdk_client.of(gateway, "lister") as made:
        yield made


async def _listed(sdk: openai.AsyncOpenAI, *wanted: str, **query: Any) -> list[str]:
    """Ids of all pages. The worker writes a history a moment after its answer was seen."""

    found: list[str] = []

    async def there() -> bool:
        found[:] = [each.id async for each in sdk.chat.completions.list(**query)]
        return set(wanted) <= set(found)

    await waiting.eventually(there, "the completions in the list")
    return found


@pytest.mark.timeout(300)
async def test_openais_client_lists_and_changes_completions(
    sdk: openai.AsyncOpenAI, gateway: gp.Gateway
) -> None:
    made = [
        await sdk.chat.completions.create(
            model=gp.MODEL,
            messages=[{"role": "user", "content": f"question {number}"}],
            n=1 + number % 2,
            metadata={**gp.cues(4, 1), "number": str(number), "parity": str(number % 2)},
        )
        for number in range(4)
    ]
    names = [each.id for each in made]
    with pytest.raises(openai.BadRequestError):
        await sdk.chat.completions.list(after="chatcmpl-none")
    assert await _listed(sdk, *names, limit=3) == names  # two pages, which the client follows
    assert await _listed(sdk, *names, order="desc") == names[::-1]
    assert await _listed(sdk, names[1], metadata={"parity": "1"}) == names[1::2]
    assert await _listed(sdk, names[0], model=gp.MODEL) == names
    assert await _listed(sdk, model="another") == []
    page = await sdk.chat.completions.list(limit=1, after=names[0])
    assert page.has_more
    shown = page.data[0].model_dump(exclude_unset=True)
    found = await sdk.chat.completions.retrieve(names[1])
    assert shown == found.model_dump(exclude_unset=True)
    assert [c.message.content for c in found.choices] == [
        c.message.content for c in made[1].choices
    ]

    changed = await sdk.chat.completions.update(names[1], metadata={"parity": "odd"})
    assert changed.metadata == {"parity": "odd"}
    assert (await sdk.chat.completions.retrieve(names[1])).metadata == {"parity": "odd"}
    assert await _listed(sdk, metadata={"parity": "odd"}) == [names[1]]
    assert await _listed(sdk, metadata={"parity": "1"}) == [names[3]]

    async with gateway.client("bob") as bob:
        assert (await bob.get("/v1/chat/completions")).json()["data"] == []
        assert (await bob.get(f"/v1/chat/completions?after={names[0]}")).status_code == 400
        body = {"metadata": {"mine": "now"}}
        assert (await bob.post(f"/v1/chat/completions/{names[1]}", json=body)).status_code == 404

    await sdk.chat.completions.delete(names[1])
    assert await _listed(sdk) == [names[0], *names[2:]]
    with pytest.raises(openai.NotFoundError):
        await sdk.chat.completions.retrieve(names[1])


CASES: dict[str, dict[str, Any]] = {
    "text": {"input": "hi", "metadata": gp.cues(12, 1)},
    "readable": {"input": "say a few plain words", "instructions": "Be brief."},
    "tools": {"input": 'call weather {"city":"Rome","days":1}', "tools": [WEATHER]},
    "reasoning": {"input": "think a while\nsay done", "reasoning": {"effort": "low"}},
    "logprobs": {
        "input": "hi",
        "metadata": gp.cues(6, 1),
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    },
    "short": {"input": "hi", "metadata": gp.cues(40, 1), "max_output_tokens": 16},
    "failed": {"input": "hi", "metadata": gp.cues(30, 1, fault="error", fault_at=5)},
    "cancelled": {"input": "hi", "metadata": gp.cues(4_000, 20), "background": True},
}


async def _events(client: httpx.AsyncClient, rid: str, after: int = -1) -> bytes:
    query = "stream=true" + (f"&starting_after={after}" if after >= 0 else "")
    answer = await client.get(f"/v1/responses/{rid}?{query}")
    assert answer.status_code == 200, answer.text
    return answer.content


async def _read_all(client: httpx.AsyncClient, rids: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rid in rids:
        got = await client.get(f"/v1/responses/{rid}")
        assert got.status_code == 200, got.text
        items = await client.get(f"/v1/responses/{rid}/input_items")
        found[rid] = (got.json(), items.json(), await _events(client, rid))
    return found


@pytest.mark.timeout(300)
async def test_after_retention_every_event_has_equal_bytes(
    parts: archive_parts.Parts, gateway: gp.Gateway, later: gp.Gateway
) -> None:
    async with gateway.client("outlived") as client:
        await _outlives(parts, client, later)


async def _outlives(
    parts: archive_parts.Parts, client: httpx.AsyncClient, later: gp.Gateway
) -> None:
    rids = []
    for name, case in CASES.items():
        got = await client.post("/v1/responses", json=case)
        assert got.status_code == 200, (name, got.text)
        rids.append(got.json()["id"])

    async def begun() -> bool:
        seen = (await client.get(f"/v1/responses/{rids[-1]}")).json()
        return bool(seen["output"])

    await waiting.eventually(begun, "a running response")
    assert (await client.post(f"/v1/responses/{rids[-1]}/cancel")).status_code == 200
    chat = await client.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hi"}], "metadata": gp.cues(3, 1)},
    )
    before = await _read_all(client, rids)
    statuses = [before[rid][0]["status"] for rid in rids]
    assert statuses == [*["completed"] * 5, "incomplete", "failed", "cancelled"]

    async def listed() -> bool:
        got = (await client.get("/v1/responses?limit=100")).json()["data"]
        return [each["id"] for each in got] == rids

    await waiting.eventually(listed, "all of them in the archive")
    await parts.retention()
    async with later.client("outlived") as elsewhere, later.client("bob") as bob:
        assert await _read_all(elsewhere, rids) == before
        for rid in rids[:3]:
            stop = before[rid][2].index(b'"sequence_number":2')
            rest = await _events(elsewhere, rid, 2)
            assert rest
            assert before[rid][2].endswith(rest)
            assert b'"sequence_number":2,' not in rest
            assert len(rest) < len(before[rid][2]) - stop
        # Another's id costs and says what one that never was does.
        others = [await bob.get(f"/v1/responses/{rid}") for rid in rids]
        assert {each.status_code for each in others} == {410}
        # The next turn, and a chat with its messages.
        told = await elsewhere.post(
            "/v1/responses",
            json={"previous_response_id": rids[1], "input": "say more", "store": False},
        )
        assert told.status_code == 200, told.text
        name = chat.json()["id"]
        assert (await elsewhere.get(f"/v1/chat/completions/{name}")).json()["choices"] == (
            chat.json()["choices"]
        )
        asked = (await elsewhere.get(f"/v1/chat/completions/{name}/messages")).json()
        assert asked["data"][0]["content"] == "hi"
        # Erasure holds at once, and in the archive.
        assert (await elsewhere.delete(f"/v1/responses/{rids[0]}")).status_code == 200
        assert (await elsewhere.get(f"/v1/responses/{rids[0]}")).status_code == 404

        # Without the archive what the log holds is served.
        recent = (await elsewhere.post("/v1/responses", json=CASES["text"])).json()["id"]
    lost = parts.with_another_archive("lost")
    with lost.gateway("archiveless") as without:
        async with without.client("outlived") as alone:
            refused = await alone.get(f"/v1/responses/{rids[1]}")
            assert refused.status_code == 503
            assert "archive" in refused.json()["error"]["message"]
            assert (await alone.get(f"/v1/responses/{recent}")).status_code == 200
            assert (await alone.get("/v1/responses")).status_code == 503
            # Built again from the topics, it has what it had.
            with lost.archive():

                async def built() -> bool:
                    got = await alone.get("/v1/responses?limit=100")
                    return got.status_code == 200 and len(got.json()["data"]) >= len(rids)

                await waiting.eventually(built, "the archive built again", within_s=60)
                kept = rids[1:]
                assert await _read_all(alone, kept) == {rid: before[rid] for rid in kept}
                assert (await alone.get(f"/v1/responses/{rids[0]}")).status_code == 404
