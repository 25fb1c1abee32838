"""Links over HTTP: anyone who has one reads it, and all that shows nothing is told alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.routes import shares
from tailrace.archive import database, migration
from tailrace.protocol import share_tokens
from tests.support import gateway_process
from tests.unit.gateway.test_app import Service, serving

KEY = "k" * 40
TOKENS = share_tokens.Tokens([KEY.encode()])


@pytest.fixture
def keys(tmp_path: Path) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path)


@contextlib.asynccontextmanager
async def offering(
    keys: gateway_process.Keys, folder: Path, limits: str = "{}"
) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A gateway with a key and an archive, and a client without a credential."""
    url = f"sqlite:///{folder / 'archive.sqlite3'}"
    engine = database.engine(url, create=True)
    await migration.migrate(engine)
    await engine.dispose()
    (folder / "key").write_text(KEY)
    key = str(folder / "key")
    async with serving(
        keys, TAILRACE_ARCHIVE=url, TAILRACE_SESSION_KEY=key, TAILRACE_LIMITS=limits
    ) as service:
        base = f"http://127.0.0.1:{service.port}"
        async with httpx.AsyncClient(base_url=base) as stranger:
            yield service, stranger


async def talk(client: httpx.AsyncClient, *questions: str) -> str:
    """A conversation in which this was said."""
    items = [{"role": "user", "content": question} for question in questions]
    body = {"title": "Rain", "metadata": {"mine": "secret"}, "items": items}
    answer = await client.post("/v1/conversations", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def shared(client: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/v1/conversations/{name}/share", json=body)
    assert answer.status_code == 200, answer.text
    answer_body: dict[str, Any] = answer.json()
    return answer_body


async def test_anybody_reads_it_and_learns_nothing_else(
    keys: gateway_process.Keys, tmp_path: Path
) -> None:
    async with offering(keys, tmp_path) as (service, stranger), service.client() as alice:
        name = await talk(alice, "why does it rain?")
        empty = await alice.post(f"/v1/conversations/{name}/share")
        assert empty.status_code == 200, "a body is not needed"
        share = await shared(alice, name, expires_in=60)
        assert share["object"] == "conversation.share"
        assert (share["conversation_id"], share["title"]) == (name, "Rain")
        assert share["url_path"] == f"/s/{share['token']}"
        assert share["expires_at"] == share["created_at"] + 60
        listing = (await alice.get(f"/v1/conversations/{name}/shares")).json()["data"]
        assert listing == [share, empty.json()], "the token is shown again"
        answer = await stranger.get(f"/v1/shared/{share['token']}")
        assert answer.json() == {
            "object": "conversation.shared",
            "title": "Rain",
            "created_at": share["created_at"],
            "expires_at": share["expires_at"],
            "data": [{"role": "user", "text": "why does it rain?"}],
            "has_more": False,
            "next": None,
        }
        for header, value in shares.PRIVATE.items():
            assert answer.headers[header] == value
        assert "set-cookie" not in answer.headers
        assert (await stranger.get("/config.json")).json()["shares"] is True


async def test_whatever_shows_nothing_is_told_alike(
    keys: gateway_process.Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offering(keys, tmp_path) as (service, stranger), service.client() as alice:
        name, other = await talk(alice, "one"), await talk(alice, "two")
        revoked, orphan = await shared(alice, name), await shared(alice, other)
        alive = await shared(alice, name)
        one = f"/v1/conversations/{name}/shares/{revoked['id']}"
        deletion = await alice.delete(one)
        assert deletion.json() == {
            "id": revoked["id"],
            "object": "conversation.share.deleted",
            "deleted": True,
        }
        assert (await alice.delete(one)).json()["error"]["code"] == "share_not_found"
        await alice.delete(f"/v1/conversations/{other}")
        link = TOKENS.open(alive["token"])
        never = share_tokens.Link(link.owner, name, "share_never", link.head, link.expires_at)
        expired = share_tokens.Link(link.owner, name, link.share, link.head, 1)
        another = share_tokens.Tokens([b"o" * 32]).seal(link)
        tokens = [
            *(revoked["token"], orphan["token"], another, alive["token"][:-1]),
            *(TOKENS.seal(each) for each in (never, expired)),
            *(
                "x",
                "a/b",
                "..%2f..%2fv1%2fmodels",
                "%2e%2e%2fx",
                "%00",
                "%ff",
                "A" * 6_001,
                "A" * 12_000,
            ),
        ]
        bodies = set()
        answers = [await stranger.get(f"/v1/shared/{token}") for token in tokens]
        assert (await stranger.get(f"/v1/shared/{alive['token']}")).status_code == 200
        # As after a start without the owner's issuer.
        monkeypatch.setattr(service.gateway.key_sets, "knows", lambda _: False)
        answers.append(await stranger.get(f"/v1/shared/{alive['token']}"))
        for answer in answers:
            bodies.add((answer.status_code, answer.text))
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-robots-tag"] == "noindex"
        [(status, body)] = bodies
        assert status == 404
        assert "share_not_found" in body


async def test_only_the_owner_shares_and_revokes(
    keys: gateway_process.Keys, tmp_path: Path
) -> None:
    async with (
        offering(keys, tmp_path) as (service, stranger),
        service.client() as alice,
        service.client("bob") as bob,
        service.client(scopes=["read"]) as reader,
    ):
        name = await talk(alice, "one")
        share = await shared(alice, name)
        one = f"/v1/conversations/{name}"
        for client, status in ((bob, 404), (stranger, 401)):
            assert (await client.post(f"{one}/share")).status_code == status
            assert (await client.get(f"{one}/shares")).status_code == status
            assert (await client.delete(f"{one}/shares/{share['id']}")).status_code == status
        assert (await reader.post(f"{one}/share")).status_code == 403
        assert (await reader.get(f"{one}/shares")).status_code == 200
        foreign = {"origin": "https://evil.test"}
        assert (await alice.post(f"{one}/share", headers=foreign)).status_code == 403
        assert (await stranger.get(f"/v1/shared/{share['token']}")).status_code == 200


async def test_a_bad_body_or_place_is_refused_by_name(
    keys: gateway_process.Keys, tmp_path: Path
) -> None:
    async with offering(keys, tmp_path) as (service, stranger), service.client() as alice:
        name = await talk(alice, "one")
        path = f"/v1/conversations/{name}/share"
        short = await alice.post(path, json={"expires_in": 5})
        assert (short.status_code, short.json()["error"]["param"]) == (400, "expires_in")
        assert (await alice.post(path, content=b"[")).status_code == 400
        assert (await alice.post(path, content=b" " * 5_000)).status_code == 413
        token = (await shared(alice, name))["token"]
        place = await stranger.get(f"/v1/shared/{token}?after=-1")
        assert (place.status_code, place.json()["error"]["param"]) == (400, "after")
        # What has no items is no conversation to be shown.
        empty = await talk(alice)
        nothing = await alice.post(f"/v1/conversations/{empty}/share")
        assert (nothing.status_code, nothing.json()["error"]["code"]) == (400, "invalid_value")


async def test_an_address_has_a_rate(keys: gateway_process.Keys, tmp_path: Path) -> None:
    limits = '{"reads_burst":2,"reads_rate":0.001}'
    async with offering(keys, tmp_path, limits) as (_, stranger):
        answer = [await stranger.get("/v1/shared/x") for _ in range(3)]
        assert [each.status_code for each in answer] == [404, 404, 429]
        assert int(answer[-1].headers["retry-after"]) > 1
        assert answer[-1].headers["cache-control"] == "no-store"


async def test_so_many_are_read_at_once(
    keys: gateway_process.Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads the log in the owner's place, who must not be held up."""
    monkeypatch.setattr(shares, "READING", 1)
    async with offering(keys, tmp_path) as (service, stranger), service.client() as alice:
        token = (await shared(alice, await talk(alice, "one")))["token"]
        links = service.gateway.conversations.links
        read, release, started = links.read, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            started.set()
            await release.wait()
            return await read(*arguments)

        monkeypatch.setattr(links, "read", slow)
        first = asyncio.create_task(stranger.get(f"/v1/shared/{token}"))
        await started.wait()
        assert (await stranger.get(f"/v1/shared/{token}")).status_code == 429
        release.set()
        assert (await first).status_code == 200
        assert (await stranger.get(f"/v1/shared/{token}")).status_code == 200


async def test_without_a_key_it_is_not_offered(keys: gateway_process.Keys) -> None:
    async with serving(keys) as service, service.client() as alice:
        one = "/v1/conversations/conv_x"
        for answer in (
            await alice.post(f"{one}/share"),
            await alice.get(f"{one}/shares"),
            await alice.delete(f"{one}/shares/share_x"),
            await alice.get("/v1/shared/x"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_offered")
        assert (await alice.get("/config.json")).json()["shares"] is False
