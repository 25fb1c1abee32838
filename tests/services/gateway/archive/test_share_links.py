"""Links on real parts: made by one gateway, read by another without Redis, and ended for all."""

from __future__ import annotations

import json
from collections.abc import Iterator

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
