"""Conversations where Redis was emptied, and the archive lags, is away, or is dropped."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.services.gateway.archive.test_conversations import (
    answered,
    expected,
    made,
    said,
    texts,
    user,
)
from tests.services.gateway.test_tools import forgotten
from tests.support import archive_parts, waiting

pytestmark = pytest.mark.timeout(300)


@contextlib.asynccontextmanager
async def without(parts: archive_parts.Parts) -> AsyncIterator[None]:
    """The archive's file is away."""
    file = parts.folder / "lagging.sqlite3"
    away = file.with_suffix(".away")
    file.rename(away)
    try:
        yield
    finally:
        away.rename(file)


async def folded(client: httpx.AsyncClient) -> None:
    """Wait for the archive."""

    async def there() -> bool:
        return (await client.get("/v1/conversations")).status_code == 200

    await waiting.eventually(there, "the archive")


async def test_it_goes_on_without_redis_and_with_an_archive_that_lags_or_is_rebuilt(
    parts: archive_parts.Parts,
) -> None:
    parts = parts.with_another_archive("lagging")
    with parts.gateway("lagging-1") as gateway:
        async with gateway.client() as client:
            # There never was an archive.
            new = await made(client, items=[{"role": "user", "content": "noted"}])
            assert await answered(client, new, "one") == expected(user("noted"), user("one"))
            with parts.archive():
                name = await made(client, title="kept")
                one = await answered(client, name, "one")
                await folded(client)
            # Nobody folds now.
            two = await answered(client, name, "two")
            await forgotten(parts.redis)
            three = await answered(client, name, "three")
            dialogue = [user("one"), said(one), user("two"), said(two), user("three")]
            assert three == expected(*dialogue)
            before = await texts(client, name)
            async with without(parts):
                four = await answered(client, name, "four")  # it is remembered
                assert four == expected(*dialogue, said(three), user("four"))
                assert await texts(client, name) == [*before, "four", four]
                refused = await client.get("/v1/conversations")
                assert refused.status_code == 503
    parts = parts.with_another_archive("rebuilt")
    with parts.gateway("lagging-2") as gateway, parts.archive():
        async with gateway.client() as client:
            await folded(client)
            listed = (await client.get("/v1/conversations?limit=100")).json()["data"]
            assert next(row["title"] for row in listed if row["id"] == name) == "kept"
            assert await texts(client, name) == [*before, "four", four]
