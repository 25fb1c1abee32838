"""One deployment with an archive: the tests of this folder share it. Each asks as a user of its
own where it looks at everything that a user has.

`parts.retention()` makes the log forget all answers. What a gateway has read it still knows then,
so who wants to see the archive asks `later`, which has read nothing of the test's before.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest

from tests.support import archive_parts
from tests.support import gateway_process as gp
from tests.support import sdk as sdk_client


@pytest.fixture(scope="package")
def parts(tmp_path_factory: pytest.TempPathFactory, keys: gp.Keys) -> Iterator[archive_parts.Parts]:
    folder = tmp_path_factory.mktemp("archive")
    (folder / "session-key").write_text(secrets.token_urlsafe(32))
    with (
        archive_parts.parts(folder, keys, "archive-tests") as made,
        made.worker(),
        made.archive(),
    ):
        yield made


@pytest.fixture(scope="package")
def sealed(parts: archive_parts.Parts) -> dict[str, str]:
    """The key of links."""
    return {"TAILRACE_SESSION_KEY": str(parts.folder / "session-key")}


@pytest.fixture(scope="package")
def gateway(parts: archive_parts.Parts, sealed: dict[str, str]) -> Iterator[gp.Gateway]:
    with parts.gateway("shared-1", **sealed) as running:
        yield running


@pytest.fixture(scope="package")
def second(parts: archive_parts.Parts) -> Iterator[gp.Gateway]:
    with parts.gateway("shared-2") as running:
        yield running


@pytest.fixture(scope="package")
def later(parts: archive_parts.Parts) -> Iterator[gp.Gateway]:
    """For what the archive alone has."""
    with parts.gateway("shared-3") as running:
        yield running


@pytest.fixture(scope="package")
def push(parts: archive_parts.Parts) -> Iterator[gp.Listening]:
    with parts.push("push-1") as running:
        yield running


@pytest.fixture
async def elsewhere(second: gp.Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with second.client() as alice:
        yield alice


@pytest.fixture
async def sdk(gateway: gp.Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_client.of(gateway) as made:
        yield made
