"""Links on real parts: made by one gateway, read by another without Redis, and ended for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.services.gateway.archive.test_conversations import answered, made
from tests.support import archive_parts
from tests.support import gateway_process as gp

pytestmark = pytest.mark.timeout(300)

NO_REDIS = "redis://127.0.0.1:1"


@pytest.fixture
def both(
    parts: archive_parts.Parts, gateway: gp.Gateway, sealed: dict[str, str]
) -> Iterator[tuple[gp.Gateway, gp.Gateway]]:
    with parts.gateway("without-redis", **sealed, TAILRACE_REDIS=NO_REDIS) as other:
        yield gateway, other


async def shared(client: httpx.AsyncClient, name: str) -> tuple[str, str]:
    """Id and token of a new link."""
    answer = await client.post(f"/v1/conversations/{name}/share")
    assert answer.status_code == 200, answer.text
    return answer.json()["id"], answer.json()["token"]


async def read(strangers: tuple[httpx.AsyncClient, ...], token: str) -> list[tuple[str, str]]:
    """What all gateways show."""
    shown = [await stranger.get(f"/v1/shared/{token}") for stranger in strangers]
    assert {each.status_code for each in shown} == {200}, [each.text for each in shown]
    [data] = {json.dumps(each.json()["data"]) for each in shown}
    return [(each["role"], each["text"]) for each in json.loads(data)]


async def nothing(strangers: tuple[httpx.AsyncClient, ...], token: str) -> None:
    for stranger in strangers:
        answer = await stranger.get(f"/v1/shared/{token}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "share_not_found")


async def test_a_link_holds_at_all_gateways_until_it_is_revoked_or_its_conversation_deleted(
    parts: archive_parts.Parts, both: tuple[gp.Gateway, gp.Gateway]
) -> None:
    one, other = both
    async with (
        one.client() as alice,
        other.client() as elsewhere,
        other.client("bob") as bob,
        httpx.AsyncClient(base_url=one.url, timeout=30) as here,
        httpx.AsyncClient(base_url=other.url, timeout=30) as there,
    ):
        strangers = (here, there)
        name = await made(alice, title="rain")
        first = await answered(alice, name, "one")
        share, token = await shared(alice, name)
        dialogue = [("user", "one"), ("assistant", first)]
        assert await read(strangers, token) == dialogue
        second = await answered(alice, name, "two")
        later = (await shared(elsewhere, name))[1]
        longer = [*dialogue, ("user", "two"), ("assistant", second)]
        assert await read(strangers, token) == dialogue, "what came later is not shown"
        assert await read(strangers, later) == longer

        assert (await bob.get(f"/v1/conversations/{name}/shares")).status_code == 404
        assert (await bob.delete(f"/v1/conversations/{name}/shares/{share}")).status_code == 404
        listed = (await elsewhere.get(f"/v1/conversations/{name}/shares")).json()["data"]
        assert [each["token"] for each in listed] == [later, token]

        # The log has forgotten the answers, and Redis everything.
        path = (await alice.get(f"/v1/conversations/{name}/nodes")).json()["path"]
        await archive_parts.archived(alice, *path)
        await parts.retention()
        assert await read(strangers, later) == longer

        await alice.delete(f"/v1/responses/{path[1]}")
        assert await read(strangers, later) == dialogue, "a deleted response is out of the link"
        gone = await elsewhere.delete(f"/v1/conversations/{name}/shares/{share}")
        assert gone.status_code == 200, gone.text
        await nothing(strangers, token)
        assert await read(strangers, later) == dialogue
        await alice.delete(f"/v1/conversations/{name}")
        await nothing(strangers, later)
    for each in both:
        written = each.log.read_text(errors="replace")
        assert token not in written
        assert later not in written


async def test_an_admin_lists_and_ends_the_links_of_a_user_who_is_gone(
    both: tuple[gp.Gateway, gp.Gateway],
) -> None:
    one, other = both
    async with (
        one.client("carol") as carol,
        other.client("root", ("admin",)) as admin,
        httpx.AsyncClient(base_url=one.url, timeout=30) as here,
        httpx.AsyncClient(base_url=other.url, timeout=30) as there,
    ):
        strangers = (here, there)
        links = []
        for title in ("rain", "sun", "sun"):
            name = await made(carol, title=title)
            await answered(carol, name, "one")
            links.append((name, *await shared(carol, name)))
        [(name, share, token), *others] = links
        where: Any = {"params": {"subject": "carol"}}

        async def listed(**params: str) -> set[tuple[str, str]]:
            answer = await admin.get("/v1/admin/shares", params={"subject": "carol"} | params)
            assert answer.status_code == 200, answer.text
            assert token not in answer.text
            assert "rain" not in answer.text
            return {(each["conversation_id"], each["id"]) for each in answer.json()["data"]}

        assert await listed() == {(each[0], each[1]) for each in links}
        assert await listed(tenant="else") == await listed(subject="dave") == set()
        no_scope = await carol.get("/v1/admin/shares", **where)
        assert no_scope.status_code == 403
        nobody = await admin.delete("/v1/admin/shares")
        assert nobody.json()["error"]["param"] == "subject"
        of_others = await admin.delete(f"/v1/admin/shares/{share}", params={"subject": "dave"})
        assert of_others.json()["error"]["code"] == "share_not_found"
        assert len(await read(strangers, token)) == 2

        gone = await admin.delete(f"/v1/admin/shares/{share}", **where)
        assert [each["id"] for each in gone.json()["data"]] == [share]
        await nothing(strangers, token)
        assert await listed() == {(each[0], each[1]) for each in others}
        assert len(await read(strangers, others[0][2])) == 2

        gone = await admin.delete("/v1/admin/shares", **where)
        assert {each["id"] for each in gone.json()["data"]} == {each[1] for each in others}
        for _, _, other_token in others:
            await nothing(strangers, other_token)
        assert await listed() == set()
