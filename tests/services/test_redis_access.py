"""The Redis users of a deployment, on a real server: each service can do its work, and nothing
besides."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import redis
import redis.asyncio
import redis.exceptions

from k8s import make_secrets
from tailrace.auth.principal import Principal
from tailrace.protocol import ids
from tailrace.protocol.queue_place import Place
from tailrace.store.answers import Answer, Answers
from tailrace.store.idempotency import IdempotencyKeys
from tailrace.store.limits import TokenBuckets
from tailrace.store.offers import Late, Offers
from tailrace.store.prefixes import Prefixes, holder_name
from tailrace.store.queues import Queues
from tailrace.store.redis_store import RedisStore
from tailrace.store.running import Running
from tailrace.store.sessions import Sessions
from tailrace.store.tickets import Tickets
from tailrace.store.workers import Workers
from tests.support import waiting
from worker.queue.offer_selection import Offer
from worker.sharing.handing_over import Handover, Orphan

if TYPE_CHECKING:
    from tests.support import local

PASSWORDS = {user: f"password-of-{user}" for user in make_secrets.REDIS_USERS}
ALICE = Principal("https://issuer.test", "alice", None, frozenset(), 2_000_000_000)
ORIGIN = "https://page.test"


@pytest.fixture(scope="module")
def guarded() -> Iterator[local.LocalRedis]:
    """A server with the users of `users.acl`; `default` goes last, because it is who sets them
    up."""
    from tests.support import local

    with local.LocalRedis() as server:
        with redis.Redis(port=server.port) as admin:
            lines = make_secrets.users_acl(PASSWORDS).splitlines()
            for line in sorted(lines, key=lambda text: text.startswith("user default")):
                assert admin.execute_command("ACL", "SETUSER", *line.split()[1:]) in (
                    True,
                    b"OK",
                    "OK",
                )
        yield server


def url(server: local.LocalRedis, user: str) -> str:
    return f"redis://{user}:{PASSWORDS[user]}@127.0.0.1:{server.port}/0"


@pytest.fixture
async def gateway(guarded: local.LocalRedis) -> AsyncIterator[RedisStore]:
    async with RedisStore(url(guarded, "gateway"), timeout_s=2.0) as client:
        yield client


@pytest.fixture
async def push(guarded: local.LocalRedis) -> AsyncIterator[RedisStore]:
    async with RedisStore(url(guarded, "push"), timeout_s=2.0) as client:
        yield client


@pytest.fixture
async def worker(guarded: local.LocalRedis) -> AsyncIterator[RedisStore]:
    async with RedisStore(url(guarded, "worker"), timeout_s=2.0) as client:
        yield client


async def test_a_gateway_can_do_its_work(gateway: RedisStore) -> None:
    assert await gateway.reachable()
    await Tickets(gateway).mint_ticket(ALICE, ORIGIN, time.time())
    assert await Sessions(gateway).put_turn("owner", "resp_a", b"state")
    assert await Sessions(gateway).get_turn("resp_a") == b"state"
    await Sessions(gateway).drop_turn("resp_a")
    assert await Sessions(gateway).put_turn("owner", "resp_b", b"state", budget=4)
    await TokenBuckets(gateway).settle(ALICE.key, 1, 1, 2, "tokens")
    await Running(gateway).publish("gateway-1", {ALICE.key: 20})
    assert not await Running(gateway).elsewhere("gateway-1")
    first, second = (ids.mint(ids.Address(b"abcd", 0, n), b"0" * 11) for n in range(2))
    assert await IdempotencyKeys(gateway).claim_key(ALICE.key, "key", first, 60) == first
    assert await IdempotencyKeys(gateway).claim_key(ALICE.key, "key", second, 60) == first
    await IdempotencyKeys(gateway).release_key(ALICE.key, "key", first)
    assert await Prefixes(gateway).held("default", ["d"]) == {}
    assert await Workers(gateway).list_workers("default") == []
    assert (await TokenBuckets(gateway).consume_tokens(ALICE.key, 1, rate=1, burst=2)).allowed


async def test_push_can_take_what_a_gateway_minted(gateway: RedisStore, push: RedisStore) -> None:
    ticket = await Tickets(gateway).mint_ticket(ALICE, ORIGIN, time.time())
    assert await push.reachable()
    assert await Tickets(push).consume_ticket(ticket, ORIGIN) == ALICE


async def test_a_worker_tells_a_gateway_how_it_is_and_what_is_warm(
    gateway: RedisStore, worker: RedisStore
) -> None:
    assert await worker.reachable()
    await Workers(worker).heartbeat("default", "worker-1", {"state": "ready"})
    await Prefixes(worker).publish("default", "worker-1/a", {"long": 128, "short": 64, "gone": 16})
    await Prefixes(worker).publish("default", "worker-1/a", {"gone": 0})
    for client in (gateway, worker):  # a worker asks who drains
        assert [w["name"] for w in await Workers(client).list_workers("default")] == ["worker-1"]
    assert await Prefixes(gateway).held("default", ["gone", "short"]) == {
        holder_name("worker-1/a"): 64
    }
    await Workers(worker).forget_worker("default", "worker-1")
    assert await Workers(gateway).list_workers("default") == []


async def test_a_worker_tells_waiting_clients_their_places(
    worker: RedisStore, gateway: RedisStore, push: RedisStore
) -> None:
    await Queues(worker).publish("default", {"resp_a": Place(3, 1.5)}, ["resp_b"])
    for client in (gateway, push):
        assert await Queues(client).read("default", ["resp_a"]) == {"resp_a": Place(3, 1.5)}


async def test_a_worker_hands_responses_over(worker: RedisStore) -> None:
    handovers = Offers(worker, Handover, "handover")
    await handovers.publish("default", "worker-1", Handover([Orphan(0, 1, 2, "digest")]))
    assert list(await handovers.all_of("default")) == ["worker-1"]
    await handovers.withdraw("default", "worker-1")


async def test_a_worker_offers_requests_to_other_workers(worker: RedisStore) -> None:
    offers = Offers(worker, Offer)
    await offers.publish("default", "worker-1", Offer("like", 8_192, 20.0, []))
    assert list(await offers.all_of("default")) == ["worker-1"]
    await offers.withdraw("default", "worker-1")
    assert await offers.all_of("default") == {}


async def test_a_worker_keeps_answers_and_gateways_see_that_there_are_some(
    worker: RedisStore, gateway: RedisStore
) -> None:
    answer = Answer("resp_a", [1, 2], 3, "made")
    await Answers(worker).store("default", "digest", answer, 60.0)
    for client in (worker, gateway):
        assert await Answers(client).find("default", "digest") == answer


async def test_a_gateway_offers_late_responses_and_one_worker_takes_each(
    gateway: RedisStore, worker: RedisStore
) -> None:
    await Offers(gateway, Late, "hedges").publish("default", "resp_a", Late(1, 2))
    hedges = Offers(worker, Late, "hedges")
    assert await hedges.all_of("default") == {"resp_a": Late(1, 2)}
    taken = [await hedges.withdraw("default", "resp_a") for _ in range(2)]
    assert taken == [True, False]


async def test_a_worker_may_drop_what_is_too_much(worker: RedisStore, gateway: RedisStore) -> None:
    prefixes = Prefixes(worker, max_per_pool=1)
    await prefixes.publish("full", "worker-1/a", {"a-first": 64})
    await prefixes.publish("full", "worker-1/a", {"b-second": 64})
    assert await Prefixes(gateway).held("full", ["a-first"]) == {}
    assert await Prefixes(gateway).held("full", ["b-second"]) == {holder_name("worker-1/a"): 64}


async def test_a_worker_that_outlived_its_gateways_view_is_forgotten(
    gateway: RedisStore, worker: RedisStore
) -> None:
    """The gateway's question removes what has run out, inside a script that runs with the gateway's
    rights."""
    await Workers(worker).heartbeat("default", "worker-2", {"state": "ready"}, ttl_s=0.01)
    await Workers(worker).heartbeat("default", "worker-3", {"state": "ready"})

    async def forgotten() -> bool:
        listed = await Workers(gateway).list_workers("default")
        return [worker["name"] for worker in listed] == ["worker-3"]

    await waiting.eventually(forgotten, "only the worker with a live heartbeat is listed")


@pytest.mark.parametrize("user", make_secrets.REDIS_USERS)
@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL",
        "CONFIG GET *",
        "KEYS *",
        "ACL LIST",
        "SHUTDOWN",
        "MONITOR",
        "SAVE",
        "DEBUG SLEEP 0",
        "GET other:key",
    ],
)
async def test_nobody_may_administer_or_read_foreign_keys(
    guarded: local.LocalRedis, user: str, command: str
) -> None:
    client = redis.asyncio.Redis.from_url(url(guarded, user))
    with pytest.raises(redis.exceptions.NoPermissionError):
        await client.execute_command(*command.split())
    await client.aclose()


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("push", "SET ticket:x 1"),
        ("push", "GET session:x"),
        ("push", "EXISTS ticket:x"),
        ("worker", "GETDEL ticket:x"),
        ("worker", "SET session:x 1"),
        ("worker", "GET rate:x"),
        ("worker", "GET session:x"),
        ("push", "GET answer:{default}:x"),
        ("gateway", "ZADD prefix:{default} 1 x"),
    ],
)
async def test_no_service_does_anothers_work(
    guarded: local.LocalRedis, user: str, command: str
) -> None:
    client = redis.asyncio.Redis.from_url(url(guarded, user))
    with pytest.raises(redis.exceptions.NoPermissionError):
        await client.execute_command(*command.split())
    await client.aclose()


async def test_nobody_comes_in_without_a_user_or_with_a_wrong_password(
    guarded: local.LocalRedis,
) -> None:
    for address in (guarded.url, f"redis://push:wrong@127.0.0.1:{guarded.port}/0"):
        client = redis.asyncio.Redis.from_url(address)
        with pytest.raises(redis.exceptions.AuthenticationError):
            await client.ping()
        await client.aclose()


async def test_the_probe_may_ping_and_nothing_else(guarded: local.LocalRedis) -> None:
    client = redis.asyncio.Redis(port=guarded.port, username="probe", password="probe")
    assert await client.ping()
    with pytest.raises(redis.exceptions.NoPermissionError):
        await client.get("session:x")
    await client.aclose()
