"""What a server is asked with: rotation, renewal, one refresh at a time, and nothing shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import openai_server
from worker.engines import base, openai_credentials
from worker.engines.openai_credentials import Client, ClientCredentials, KeyFile


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def server() -> AsyncIterator[openai_server.Server]:
    async with openai_server.Server() as made:
        made.keys = set()
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def tokens(
    server: openai_server.Server, clock: Clock, tmp_path: Path
) -> AsyncIterator[ClientCredentials]:
    (tmp_path / "secret").write_text("s3:cret\n")
    client = Client(f"{server.url}/token", "me&you", tmp_path / "secret", "chat read", "https://a")
    credentials = ClientCredentials(client, clock)
    yield credentials
    await credentials.aclose()


async def asked(server: openai_server.Server, credentials: Any) -> httpx.Response:
    """One request to the server."""
    auth = openai_credentials.Bearer(credentials)
    async with httpx.AsyncClient(auth=auth) as client:
        return await client.get(f"{server.url}/v1/models")


async def test_a_rotated_key_is_used_at_the_next_request(
    server: openai_server.Server, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_text("one\n")
    key = KeyFile(path)
    server.keys = {"one"}
    assert (await asked(server, key)).status_code == 200
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").replace(path)
    server.keys = {"two"}
    assert (await asked(server, key)).status_code == 200


async def test_a_key_that_rotates_while_it_is_sent_is_read_again_after_a_401(
    server: openai_server.Server, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    server.keys = {"new"}

    class Late(KeyFile):
        async def current(self) -> str:
            found = await super().current()
            path.write_text("new")
            return found

    assert (await asked(server, Late(path))).status_code == 200
    path.write_text("wrong")
    assert (await asked(server, KeyFile(path))).status_code == 401


async def test_while_the_file_is_gone_the_last_key_holds(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("one")
    key = KeyFile(path)
    assert await key.current() == "one"
    path.unlink()
    assert await key.current() == "one"
    with pytest.raises(base.Busy, match="cannot be read"):
        await KeyFile(path).current()


@pytest.mark.parametrize("content", ["", "two words", "two\nlines", "schlüssel", "x" * 20_000])
async def test_a_file_that_holds_no_key_is_named_and_not_shown(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(base.Busy, match="printable ASCII") as caught:
        await KeyFile(path).current()
    assert not content or content not in str(caught.value)


async def test_a_token_is_asked_for_as_the_standard_says_and_kept(
    server: openai_server.Server, tokens: ClientCredentials
) -> None:
    for _ in range(3):
        assert (await asked(server, tokens)).status_code == 200
    assert server.token_requests == [
        {
            "grant_type": "client_credentials",
            "scope": "chat read",
            "audience": "https://a",
            "basic": "me%26you:s3%3Acret",
        }
    ]


async def test_a_token_is_renewed_before_it_expires_by_the_monotonic_clock(
    server: openai_server.Server, tokens: ClientCredentials, clock: Clock
) -> None:
    server.lifetime_s = 100
    first = await tokens.current()
    clock.now += 89
    assert await tokens.current() == first
    clock.now += 1
    assert await tokens.current() != first


async def test_many_requests_fetch_one_token(
    server: openai_server.Server, tokens: ClientCredentials, clock: Clock
) -> None:
    answers = await asyncio.gather(*[asked(server, tokens) for _ in range(8)])
    assert {answer.status_code for answer in answers} == {200}
    assert len(server.token_requests) == 1

    clock.now += 60
    server.keys = set()  # all tokens are revoked
    answers = await asyncio.gather(*[asked(server, tokens) for _ in range(8)])
    assert {answer.status_code for answer in answers} == {200}
    assert len(server.token_requests) == 2


async def test_a_fresh_token_that_is_refused_is_not_fetched_again_and_again(
    server: openai_server.Server, tokens: ClientCredentials
) -> None:
    server.token_answers = [(200, {"access_token": "of-another-scope", "expires_in": 60})]
    assert (await asked(server, tokens)).status_code == 401
    assert (await asked(server, tokens)).status_code == 401
    assert len(server.token_requests) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((401, {"error": "invalid_client", "error_description": "s3:cret"}), "401 .invalid_client"),
        ((503, {}), "it answered 503"),
        ((200, {"token": "x"}), "no access token"),
        ((200, {"access_token": "a b"}), "no access token"),
        ((200, {"access_token": "a", "token_type": "mac"}), "no bearer token"),
    ],
)
async def test_a_token_endpoint_that_fails_is_named_and_left_alone_for_a_while(
    server: openai_server.Server,
    tokens: ClientCredentials,
    clock: Clock,
    answer: tuple[int, dict[str, Any]],
    why: str,
) -> None:
    server.token_answers = [answer, answer]
    with pytest.raises(base.Busy, match=rf"no access token from 127.0.0.1: .*{why}") as caught:
        await tokens.current()
    assert "s3:cret" not in str(caught.value)
    first_pause_s = caught.value.pause_s
    with pytest.raises(base.Busy, match="a moment ago"):
        await tokens.current()
    assert len(server.token_requests) == 1

    clock.now += first_pause_s
    with pytest.raises(base.Busy) as caught:
        await tokens.current()
    assert caught.value.pause_s > 0.99  # twice as long, and at least the half of it
    clock.now += caught.value.pause_s
    assert await tokens.current() == "token-3"


async def test_a_token_holds_to_its_end_while_no_other_one_can_be_fetched(
    server: openai_server.Server, tokens: ClientCredentials, clock: Clock
) -> None:
    server.lifetime_s = 100
    first = await tokens.current()
    server.token_answers = [(500, {})]
    clock.now += 95
    assert await tokens.current() == first
    clock.now += 5
    assert await tokens.current() != first


async def test_a_token_endpoint_that_does_not_answer_is_busy(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    credentials = ClientCredentials(Client("http://127.0.0.1:9/token", "me", tmp_path / "secret"))
    with pytest.raises(base.Busy, match=r"does not answer .ConnectError"):
        await credentials.current()
    await credentials.aclose()
