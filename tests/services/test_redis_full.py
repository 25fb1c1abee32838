"""A full Redis, with the memory policies of the manifests: what must stay stays."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tailrace.auth.principal import Principal
from tailrace.store.limits import TokenBuckets
from tailrace.store.redis_store import RedisStore, StoreUnavailable
from tailrace.store.sessions import Sessions
from tailrace.store.tickets import Tickets

if TYPE_CHECKING:
    from tests.support import local

CONFIG = Path(__file__).parents[2] / "k8s" / "base" / "config"
ALICE = Principal("https://issuer.test", "alice", None, frozenset(), 2_000_000_000)
MEMORY = 8 << 20
TURN_BYTES = 100_000
NOW = 1_000_000_000.0


def policy(name: str) -> str:
    """The memory policy of one of the servers in the manifests."""
    words = dict(line.split(" ", 1) for line in (CONFIG / name).read_text().splitlines() if line)
    return words["maxmemory-policy"]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, local.LocalRedis]]:
    from tests.support import local

    with local.LocalRedis() as state, local.LocalRedis() as cache:
        yield {"redis.conf": state, "cache.conf": cache}


@pytest.fixture
async def stores(servers: dict[str, local.LocalRedis]) -> AsyncIterator[dict[str, RedisStore]]:
    made = {}
    for name, server in servers.items():
        with redis.Redis(port=server.port) as admin:
            admin.flushall()
            admin.config_set("maxmemory-policy", policy(name))
            used = admin.info("memory")["used_memory"]
            admin.config_set("maxmemory", used + MEMORY)
        made[name] = RedisStore(server.url, timeout_s=2.0)
    yield made
    for store in made.values():
        await store.aclose()


async def fill(sessions: Sessions, owners: int = 40) -> int:
    """Cache turns of many owners, far beyond the memory. Returns how many were taken."""
    taken = 0
    for n in range(owners):
        for turn in range(5):
            try:
                state = os.urandom(TURN_BYTES)
                taken += await sessions.put_turn(f"owner-{n}", f"resp_{n}_{turn}", state)
            except StoreUnavailable:
                return taken
    return taken


async def mint_many(tickets: Tickets) -> None:
    for _ in range(10_000):
        await tickets.mint_ticket(ALICE, "https://page.test" * 100, NOW)


async def test_cached_conversations_push_no_ticket_and_no_bucket_out(stores: Any) -> None:
    tickets, buckets = Tickets(stores["redis.conf"]), TokenBuckets(stores["redis.conf"])
    sessions = Sessions(stores["cache.conf"])
    shown = [await tickets.mint_ticket(ALICE, None, NOW) for _ in range(50)]
    for n in range(50):
        await buckets.consume_tokens(f"user-{n}", 10, 0.001, 10)

    assert await fill(sessions) == 200  # 20 MB into 8
    assert await sessions.get_turn("resp_39_4") is not None  # the newest is there

    for ticket in shown:
        assert await tickets.consume_ticket(ticket, None) == ALICE
    for n in range(50):
        assert not (await buckets.consume_tokens(f"user-{n}", 10, 0.001, 10)).allowed
    assert await tickets.mint_ticket(ALICE, None, NOW)


async def test_a_server_full_of_what_must_stay_refuses_and_throws_nothing_away(
    stores: Any,
) -> None:
    tickets = Tickets(stores["redis.conf"])
    kept = await tickets.mint_ticket(ALICE, None, NOW)
    assert await fill(Sessions(stores["redis.conf"])) < 200  # as if everything were in one server
    with pytest.raises(StoreUnavailable):
        await mint_many(tickets)
    assert await tickets.consume_ticket(kept, None) == ALICE
