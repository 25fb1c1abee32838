"""The search over HTTP: its answer, what it refuses, and what it costs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tailrace.archive import database, migration
from tailrace.protocol import conversations, history, ids, records, topics
from tests.support import gateway_process
from tests.support.archive_rows import Fold
from tests.support.histories import Topics, history_of
from tests.unit.gateway.test_app import serving

OWNER = records.Owner(gateway_process.ISS, "alice", "")
PARTITION = conversations.partition(OWNER)
PATH = "/v1/conversations/search"


@pytest.fixture
def keys(tmp_path: Path) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path)


def name(n: int) -> str:
    address = ids.Address(bytes(4), PARTITION, 0)
    return ids.mint(address, n.to_bytes(11, "big"), conversations.PREFIX)


async def archive_of(folder: Path) -> tuple[str, history.History]:
    """An archive with three conversations and a turn in the first."""
    url = f"sqlite:///{folder / 'archive.sqlite3'}"
    engine = database.engine(url, create=True)
    await migration.migrate(engine)
    into, whole = Topics(), history_of(1, "Rain comes from clouds.", owner=OWNER)
    acts: list[conversations.Act] = [
        conversations.Created(name(n), OWNER, 100 + n, {"n": str(n)}, f"Rain {n}")
        for n in (1, 2, 3)
    ]
    acts.append(conversations.Turn(name(1), OWNER, whole.rid))
    for act in acts:
        key, value = conversations.key(act), conversations.encode(act)
        into.put(topics.CONVERSATIONS, PARTITION, key, value)
    await Fold(engine).all([*into.records, *into.history(whole)])
    await engine.dispose()
    return url, whole


@contextlib.asynccontextmanager
async def searching(
    keys: gateway_process.Keys, url: str, limits: str = "{}"
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of the owner and of another one."""
    async with (
        serving(keys, TAILRACE_ARCHIVE=url, TAILRACE_LIMITS=limits) as service,
        service.client() as alice,
        service.client() as bob,
    ):
        bob.headers["authorization"] = f"Bearer {keys.token('bob')}"
        yield alice, bob


async def test_the_answer_is_a_page_of_conversations(
    keys: gateway_process.Keys, tmp_path: Path
) -> None:
    url, whole = await archive_of(tmp_path)
    async with searching(keys, url) as (alice, bob):
        assert (await alice.get("/config.json")).json()["searches"] is True
        answer = await alice.get(PATH, params={"q": "rain cl"})
        assert answer.status_code == 200, answer.text
        one = (await alice.get(f"/v1/conversations/{name(1)}")).json()
        assert answer.json() == {
            "object": "list",
            "data": [
                {
                    "object": "conversation.match",
                    "conversation": one,
                    "response_id": whole.rid,
                    "snippet": "question 1 Rain comes from clouds.",
                    "ranges": [[11, 15], [27, 33]],
                }
            ],
            "has_more": False,
        }
        first = (await alice.get(PATH, params={"q": "RAIN", "limit": "2"})).json()
        names = [each["conversation"]["id"] for each in first["data"]]
        assert (names, first["has_more"]) == ([name(3), name(2)], True)
        rest = (await alice.get(PATH, params={"q": "RAIN", "after": names[1]})).json()
        assert [each["conversation"]["id"] for each in rest["data"]] == [name(1)]
        assert not rest["has_more"]
        nothing = {"object": "list", "data": [], "has_more": False}
        assert (await bob.get(PATH, params={"q": "rain"})).json() == nothing
        assert (await alice.get(PATH, params={"q": " *'\"%_-: "})).json() == nothing
        for query, param in {
            "": "q",
            "q=": "q",
            f"q={'x' * 257}": "q",
            "q=x&limit=0": "limit",
            "q=x&after=x": "after",
            "q=x&after=%00": "after",
            f"q=x&after={name(9)}": "after",
        }.items():
            http_answer = await alice.get(f"{PATH}?{query}")
            assert (http_answer.status_code, http_answer.json()["error"]["param"]) == (
                400,
                param,
            ), query
        assert (await alice.get(PATH, params={"q": "x" * 256})).status_code == 200
        assert (await bob.get(f"{PATH}?q=x&after={name(1)}")).status_code == 400


async def test_it_counts_as_a_request_and_needs_an_archive(
    keys: gateway_process.Keys, tmp_path: Path
) -> None:
    url, _ = await archive_of(tmp_path)
    limits = '{"requests_burst":2,"requests_rate":0.001}'
    async with searching(keys, url, limits) as (alice, bob):
        statuses = [(await alice.get(f"{PATH}?q=rain")).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await bob.get(f"{PATH}?q=rain")).status_code == 200
        no_one = {"authorization": "Bearer x"}
        assert (await alice.get(f"{PATH}?q=rain", headers=no_one)).status_code == 401
    async with serving(keys) as service, service.client() as client:
        answer = await client.get(f"{PATH}?q=rain")
        assert answer.status_code == 503
        assert "no archive" in answer.json()["error"]["message"]
        assert (await client.get("/config.json")).json()["searches"] is False
