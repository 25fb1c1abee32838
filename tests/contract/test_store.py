"""The Redis client against a real Redis. Faults (killed, stopped, empty) run on a server of their
own."""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from tailrace.auth.principal import InvalidCredential, Principal, Reason
from tailrace.protocol import ids
from tailrace.protocol.queue_place import Place
from tailrace.store import breakers, canaries, queues, redis_store, running
from tailrace.store.answers import MAX_IDS, Answer, Answers
from tailrace.store.idempotency import IdempotencyKeys
from tailrace.store.limits import TokenBuckets
from tailrace.store.loop_deadline import LoopDeadline
from tailrace.store.offers import Offers
from tailrace.store.prefixes import MAX_HOLDERS, Prefixes, holder_name
from tailrace.store.redis_store import MAX_CONNECTIONS, RedisStore, StoreUnavailable, digest
from tailrace.store.sessions import MAX_SESSION_BYTES, Sessions
from tailrace.store.tickets import Tickets
from tailrace.store.workers import HEARTBEAT_TTL_S, Workers
from tests.support import waiting
from worker.queue import offer_selection

LEAST_TICKET_S = 1.0  # the shortest life of a ticket, kept by Redis
BOUNDED_S = 10.0  # a call without a bound of its own would not return
CALL_S = 3.0  # the bound of one call
LATER_S = 0.1  # how much later the second callers come
TWICE_S = 1.6 * CALL_S  # between one bound and two
TURNS = 200  # of the event loop

if TYPE_CHECKING:
    from tests.support import local

ALICE = Principal(
    "https://issuer.test", "alice", "acme", frozenset({"read", "write"}), 2_000_000_000
)
NOW = 1_900_000_000.0
PAGE = "https://page.test"


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    # A roomy timeout: these tests ask what is answered, not how fast.
    async with RedisStore(redis_url, timeout_s=2.0) as client:
        yield client


@pytest.fixture
def tickets(store: RedisStore) -> Tickets:
    return Tickets(store)


@pytest.fixture
def sessions(store: RedisStore) -> Sessions:
    return Sessions(store)


@pytest.fixture
def idempotency_keys(store: RedisStore) -> IdempotencyKeys:
    return IdempotencyKeys(store)


@pytest.fixture
def buckets(store: RedisStore) -> TokenBuckets:
    return TokenBuckets(store)


@pytest.fixture
def prefixes(store: RedisStore) -> Prefixes:
    return Prefixes(store)


@pytest.fixture
def workers(store: RedisStore) -> Workers:
    return Workers(store)


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The server is shared by the whole run, so each test names its own things."""
    return f"{request.node.name}-{os.getpid()}-{time.monotonic_ns()}"


# ---- tickets


async def test_a_ticket_gives_back_the_whole_principal_once(tickets: Tickets) -> None:
    ticket = await tickets.mint_ticket(ALICE, PAGE, NOW)
    assert await tickets.consume_ticket(ticket, PAGE) == ALICE
    with pytest.raises(InvalidCredential) as refused:
        await tickets.consume_ticket(ticket, PAGE)
    assert refused.value.reason is Reason.TICKET


@pytest.mark.parametrize(
    "origin", ["https://evil.test", "https://page.test.evil.test", "null", None, ""]
)
async def test_a_ticket_of_another_origin_is_refused_and_consumed(
    tickets: Tickets, origin: str | None
) -> None:
    ticket = await tickets.mint_ticket(ALICE, PAGE, NOW)
    with pytest.raises(InvalidCredential) as refused:
        await tickets.consume_ticket(ticket, origin)
    assert refused.value.reason is Reason.TICKET_ORIGIN
    with pytest.raises(InvalidCredential):
        await tickets.consume_ticket(ticket, PAGE)


async def test_two_handshakes_race_with_one_ticket_and_exactly_one_wins(
    tickets: Tickets,
) -> None:
    for _ in range(20):
        ticket = await tickets.mint_ticket(ALICE, PAGE, NOW)
        outcomes = await asyncio.gather(
            *(tickets.consume_ticket(ticket, PAGE) for _ in range(5)), return_exceptions=True
        )
        assert outcomes.count(ALICE) == 1
        assert sum(isinstance(outcome, InvalidCredential) for outcome in outcomes) == 4


@pytest.mark.parametrize(
    "ticket",
    [
        "",
        "x",
        "x" * 22,
        "x" * 23,
        "../../../../etc/passwd",
        "é" * 22,
        "x" * 21 + "\n",
        "x" * 100_000,
    ],
)
async def test_a_made_up_ticket_is_refused(tickets: Tickets, ticket: str) -> None:
    with pytest.raises(InvalidCredential):
        await tickets.consume_ticket(ticket, PAGE)


async def test_tickets_are_unguessable_live_30_seconds_and_are_not_stored_in_clear(
    tickets: Tickets, raw: redis.asyncio.Redis
) -> None:
    minted = {await tickets.mint_ticket(ALICE, PAGE, NOW) for _ in range(50)}
    assert len(minted) == 50
    assert all(
        len(ticket) == 22 and ticket.replace("-", "").replace("_", "").isalnum()
        for ticket in minted
    )
    keys = [key async for key in raw.scan_iter("ticket:*")]
    assert not [key for key in keys for ticket in minted if ticket.encode() in key]
    left = [await raw.pttl(key) for key in keys]
    assert len(left) >= 50
    assert all(0 < milliseconds <= 30_000 for milliseconds in left)


async def test_a_ticket_does_not_outlive_its_credential(tickets: Tickets) -> None:
    ticket = await tickets.mint_ticket(
        ALICE, PAGE, now=ALICE.expires_at + 10
    )  # expired, inside leeway: the least a ticket lives is 1 s
    await asyncio.sleep(LEAST_TICKET_S + 0.1)
    with pytest.raises(InvalidCredential):
        await tickets.consume_ticket(ticket, PAGE)


# ---- conversation sessions


async def test_a_session_is_opaque_bytes(sessions: Sessions, name: str) -> None:
    state = bytes(range(256))
    assert await sessions.get_turn(name) is None
    assert await sessions.put_turn("owner", name, state)
    assert await sessions.get_turn(name) == state
    await sessions.drop_turn(name)
    assert await sessions.get_turn(name) is None


async def test_reading_a_session_starts_its_idle_time_anew(
    sessions: Sessions, raw: redis.asyncio.Redis, name: str
) -> None:
    await sessions.put_turn("owner", name, b"state")
    await raw.pexpire(f"session:{name}", 5_000)
    await sessions.get_turn(name)
    assert 29 * 60_000 < await raw.pttl(f"session:{name}") <= 30 * 60_000


async def test_an_owner_keeps_sessions_up_to_a_budget_of_bytes_and_the_oldest_go(
    sessions: Sessions, raw: redis.asyncio.Redis, name: str
) -> None:
    await sessions.put_turn(f"{name}-other", f"{name}-o", b"x" * 90, 100)
    for n in range(5):
        await sessions.put_turn(name, f"{name}-{n}", b"x" * 40, 100)
    kept = [await sessions.get_turn(f"{name}-{n}") is not None for n in range(5)]
    assert kept == [False, False, False, True, True]
    await sessions.put_turn(name, f"{name}-4", b"x" * 40, 100)  # the same again counts once
    assert await sessions.get_turn(f"{name}-3") is not None
    assert await sessions.get_turn(f"{name}-o") is not None
    # What ran out is no longer counted; what was used in the meantime still is.
    index = f"sessions:{redis_store.digest(name)}"
    for i, entry in enumerate(await raw.execute_command("LRANGE", index, 0, -1)):
        size, _, key = entry.split(b" ", 2)
        await raw.execute_command("LSET", index, i, b"%s 1 %s" % (size, key))
    await sessions.drop_turn(f"{name}-3")
    await sessions.put_turn(name, f"{name}-5", b"x" * 50, 100)
    assert await raw.get(f"{index}:bytes") == b"90"
    assert await sessions.get_turn(f"{name}-4") is not None


async def test_a_session_over_the_cap_is_not_cached(sessions: Sessions, name: str) -> None:
    assert not await sessions.put_turn("owner", name, b"x" * (MAX_SESSION_BYTES + 1))
    assert await sessions.get_turn(name) is None


# ---- idempotency


def response_id(n: int) -> str:
    return ids.mint(ids.Address(b"abcd", 0, n), b"0" * 11)


async def test_the_first_to_claim_a_key_owns_it_also_in_a_race(
    idempotency_keys: IdempotencyKeys, name: str
) -> None:
    owners = await asyncio.gather(
        *(idempotency_keys.claim_key(name, "key", response_id(n), 60) for n in range(10))
    )
    assert len(set(owners)) == 1
    assert await idempotency_keys.claim_key(name, "key", response_id(10), 60) == owners[0]


async def test_keys_of_two_principals_do_not_meet(
    idempotency_keys: IdempotencyKeys, name: str
) -> None:
    assert await idempotency_keys.claim_key(name, "|key", response_id(1), 60) == response_id(1)
    assert await idempotency_keys.claim_key(name + "|", "key", response_id(2), 60) == response_id(2)


async def test_a_key_is_free_again_after_its_time(
    idempotency_keys: IdempotencyKeys, name: str
) -> None:
    await idempotency_keys.claim_key(name, "key", response_id(1), 0.05)

    async def free() -> bool:
        return await idempotency_keys.claim_key(name, "key", response_id(2), 60) == response_id(2)

    await waiting.eventually(free, "the key is free again")


async def test_a_principals_oldest_keys_go_first_and_no_others(
    idempotency_keys: IdempotencyKeys, raw: redis.asyncio.Redis, name: str
) -> None:
    async def claim(principal: str, n: int) -> str:
        return await idempotency_keys.claim_key(principal, f"key {n}", response_id(n), 60, most=3)

    assert await claim("other" + name, 0) == response_id(0)
    for n in range(5):
        assert await claim(name, n) == response_id(n)
        assert await claim(name, n) == response_id(n)  # a repeated request counts once
    held = [await raw.exists(f"idem:{digest(name, f'key {n}')}") for n in range(5)]
    assert held == [0, 0, 1, 1, 1]
    assert await raw.llen(f"idem:of:{digest(name)}") == 3
    assert await raw.exists(f"idem:{digest('other' + name, 'key 0')}")


async def test_only_its_owner_releases_a_key(idempotency_keys: IdempotencyKeys, name: str) -> None:
    await idempotency_keys.claim_key(name, "key", response_id(1), 60)
    await idempotency_keys.release_key(name, "key", response_id(2))
    assert await idempotency_keys.claim_key(name, "key", response_id(3), 60) == response_id(1)
    await idempotency_keys.release_key(name, "key", response_id(1))
    assert await idempotency_keys.claim_key(name, "key", response_id(3), 60) == response_id(3)


@pytest.mark.parametrize("garbage", [b"\xff", b"", b"resp_", b"resp_ \n", b"{}"])
async def test_what_is_no_response_id_does_not_hold_a_key(
    idempotency_keys: IdempotencyKeys, raw: redis.asyncio.Redis, name: str, garbage: bytes
) -> None:
    await raw.set(f"idem:{digest(name, 'key')}", garbage)
    assert await idempotency_keys.claim_key(name, "key", response_id(1), 60) == response_id(1)
    assert await idempotency_keys.claim_key(name, "key", response_id(2), 60) == response_id(1)


# ---- prompt-prefix cache metadata


async def test_each_worker_holds_what_it_told_last(prefixes: Prefixes, name: str) -> None:
    a, b = "w/1", "w/2"
    await prefixes.publish(name, a, {"long": 32, "short": 16})
    await prefixes.publish(name, b, {"short": 8})
    assert await prefixes.held(name, ["short", "long"]) == {holder_name(a): 32, holder_name(b): 8}
    assert await prefixes.held(name, ["short"]) == {holder_name(a): 16, holder_name(b): 8}
    await prefixes.publish(name, a, {"long": 0, "short": 4})
    assert await prefixes.held(name, ["short", "long"]) == {holder_name(a): 4, holder_name(b): 8}
    assert await prefixes.held(name, ["x"]) == {}
    assert await prefixes.held(name, []) == {}
    assert await prefixes.held(name + "-other", ["short"]) == {}


async def test_prefix_entries_run_out_and_nothing_is_left_of_what_is_not_held(
    prefixes: Prefixes, raw: redis.asyncio.Redis, name: str
) -> None:
    await prefixes.publish(name, "w/1", {"a": 16})
    for key in (f"prefix:{{{name}}}", f"prefix:{{{name}}}:a"):
        assert 290_000 < await raw.pttl(key) <= 300_000
    await prefixes.publish(name, "w/1", {"a": 0})
    assert await raw.exists(f"prefix:{{{name}}}", f"prefix:{{{name}}}:a") == 0


async def test_the_prefix_index_is_bounded_and_drops_the_oldest(
    store: RedisStore,
    raw: redis.asyncio.Redis,
    name: str,
) -> None:
    prefixes = Prefixes(store, max_per_pool=10)
    for n in range(15):
        await prefixes.publish(name, "w/1", {f"d{n:02}": n + 1})
        await asyncio.sleep(0.002)  # the index is ordered by the millisecond
    assert await raw.zcard(f"prefix:{{{name}}}") == 10
    found = [await prefixes.held(name, [f"d{n:02}"]) for n in (4, 5, 14)]
    assert found == [{}, {holder_name("w/1"): 6}, {holder_name("w/1"): 15}]


async def test_of_one_prefix_the_last_holders_are_kept(prefixes: Prefixes, name: str) -> None:
    for n in range(MAX_HOLDERS + 3):
        await prefixes.publish(name, f"w/{n}", {"a": 16})
    kept = range(3, MAX_HOLDERS + 3)
    assert set(await prefixes.held(name, ["a"])) == {holder_name(f"w/{n}") for n in kept}


async def test_of_a_very_long_chain_the_longest_prefixes_are_asked_for(
    prefixes: Prefixes, name: str
) -> None:
    digests = [f"d{n}" for n in range(200)]
    await prefixes.publish(name, "w/1", {"d100": 10, "d150": 20})
    assert await prefixes.held(name, digests) == {holder_name("w/1"): 20}
    assert await prefixes.held(name, digests[:150]) == {holder_name("w/1"): 10}
    assert await prefixes.held(name, [*digests, *digests[:64]]) == {}


async def test_garbage_in_the_cache_is_no_entry(
    prefixes: Prefixes, raw: redis.asyncio.Redis, name: str
) -> None:
    mine = holder_name("w/1")
    lines = [b"\xff{", b"w 5 1", f"{mine} 99999999999 1".encode(), f"{mine} -1 1".encode(), b""]
    await raw.set(f"prefix:{{{name}}}:ab", b"\n".join(lines))
    await raw.set(f"prefix:{{{name}}}:b", b'{"partition":5,"cached_tokens":1,"worker":"w"}')
    await prefixes.publish(name, "w/1", {"a": 16, "b": 32})
    assert await prefixes.held(name, ["a", "ab"]) == {mine: 16}
    assert await prefixes.held(name, ["a", "b"]) == {mine: 32}


# ---- answers


async def test_an_answer_is_found_until_its_time_is_over(
    store: RedisStore, raw: redis.asyncio.Redis, name: str
) -> None:
    kept = Answers(store, max_per_pool=2)
    answer = Answer("resp_a", list(range(MAX_IDS)), 3, "made")
    await kept.store(name, "d", answer, 60.0)
    assert await kept.find(name, "d") == answer
    assert await kept.find(name, "e") is None
    assert await kept.find(f"{name}-other", "d") is None
    for key in (f"answer:{{{name}}}", f"answer:{{{name}}}:d"):
        assert 50_000 < await raw.pttl(key) <= 60_000
    await raw.set(f"answer:{{{name}}}:d", b"\xff{")
    assert await kept.find(name, "d") is None
    for other in ("e", "f"):
        await asyncio.sleep(0.002)  # the index is ordered by the millisecond
        await kept.store(name, other, answer, 60.0)
    assert not await raw.exists(f"answer:{{{name}}}:d")  # more than two are too many
    assert await kept.find(name, "e") == await kept.find(name, "f") == answer


# ---- workers


async def test_workers_are_listed_by_name_until_their_beat_runs_out(
    workers: Workers, name: str
) -> None:
    await workers.heartbeat(name, "b", {"state": "ready", "partitions": [0, 1]})
    await workers.heartbeat(name, "a", {"state": "loading", "silent_s": "long"}, ttl_s=0.1)
    listed = await workers.list_workers(name)
    silent = {worker["name"]: worker.pop("silent_s") for worker in listed}
    assert listed == [
        {"state": "loading", "name": "a"},
        {"state": "ready", "partitions": [0, 1], "name": "b"},
    ]
    assert 0 <= silent["b"] < HEARTBEAT_TTL_S - 0.1 <= silent["a"] < HEARTBEAT_TTL_S

    async def run_out() -> bool:
        return [worker["name"] for worker in await workers.list_workers(name)] == ["b"]

    await waiting.eventually(run_out, "only the worker with a live heartbeat is listed")
    await workers.forget_worker(name, "b")
    assert await workers.list_workers(name) == []


async def test_a_short_beat_does_not_cut_the_life_of_a_longer_one(
    workers: Workers, name: str
) -> None:
    await workers.heartbeat(name, "long", {}, ttl_s=5)
    await workers.heartbeat(name, "short", {}, ttl_s=0.05)

    async def run_out() -> bool:
        return [worker["name"] for worker in await workers.list_workers(name)] == ["long"]

    await waiting.eventually(run_out, "only the longer heartbeat is listed")


async def test_a_garbage_heartbeat_is_skipped(
    workers: Workers, raw: redis.asyncio.Redis, name: str
) -> None:
    await workers.heartbeat(name, "good", {"state": "ready"})
    await raw.hset(
        f"workers:{{{name}}}", mapping={"bad": "no deadline", "worse": "99999999999999 [1,2"}
    )
    assert [worker["name"] for worker in await workers.list_workers(name)] == ["good"]


# ---- offers


async def test_offers_are_listed_until_they_run_out_or_are_withdrawn(
    store: RedisStore, raw: redis.asyncio.Redis, name: str
) -> None:
    kept = Offers(store, offer_selection.Offer)
    places = [
        offer_selection.Place(0, 3, 17, 0, 2.5, 60.0),
        offer_selection.Place(1, 3, 18, 1, 1e9, 0.0),
    ]
    offer = offer_selection.Offer("like", 8_192, 20.0, places)
    await kept.publish(name, "a", offer_selection.Offer("like", 8_192, 0.0, []))
    await kept.publish(name, "a", offer)
    await kept.publish(name, "b", offer, ttl_s=0.05)
    await raw.hset(f"offers:{{{name}}}", "bad", "99999999999999 {}")

    async def run_out() -> bool:
        return await kept.all_of(name) == {"a": offer}

    await waiting.eventually(run_out, "only what is valid is listed")
    await kept.withdraw(name, "a")
    assert await kept.all_of(name) == {}


# ---- rates


async def test_a_bucket_gives_its_burst_then_refills_at_its_rate(
    buckets: TokenBuckets, name: str
) -> None:
    taken = [await buckets.consume_tokens(name, 1, rate=2, burst=3, now=100.0) for _ in range(4)]
    assert [one.allowed for one in taken] == [True, True, True, False]
    assert [one.remaining for one in taken] == [2, 1, 0, 0]
    assert taken[3].retry_after_s == pytest.approx(0.5)
    assert not (await buckets.consume_tokens(name, 1, 2, 3, now=100.49)).allowed
    assert (await buckets.consume_tokens(name, 1, 2, 3, now=100.5)).allowed
    refilled = await buckets.consume_tokens(name, 1, 2, 3, now=500.0)
    assert refilled == (True, 0.0, 2.0)


async def test_what_a_bucket_promises_as_waiting_time_is_enough(
    buckets: TokenBuckets, name: str
) -> None:
    now = 1000.0
    for step in range(50):
        taken = await buckets.consume_tokens(name, 1 + step % 3, rate=0.7, burst=5, now=now)
        if not taken.allowed:
            now += taken.retry_after_s + 1e-6
            assert (
                await buckets.consume_tokens(name, 1 + step % 3, rate=0.7, burst=5, now=now)
            ).allowed


async def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing(
    buckets: TokenBuckets, name: str
) -> None:
    await buckets.consume_tokens(name, 2, rate=1, burst=3, now=100.0)
    assert (await buckets.consume_tokens(name, 0, rate=1, burst=3, now=40.0)).remaining == 1
    assert (await buckets.consume_tokens(name, 0, rate=1, burst=3, now=101.0)).remaining == 2


@pytest.mark.parametrize(
    ("tokens", "at"),
    [("nan", "100"), ("-inf", "100"), ("1e300", "100"), ("3", "nan"), ("3", "1e300"), ("x", "y")],
)
async def test_a_bucket_with_impossible_values_is_a_full_one(
    buckets: TokenBuckets, raw: redis.asyncio.Redis, name: str, tokens: str, at: str
) -> None:
    await raw.hset(f"rate:requests:{digest(name)}", mapping={"tokens": tokens, "at": at})
    taken = await buckets.consume_tokens(name, 2, rate=1, burst=3, now=100.0)
    assert taken == (True, 0.0, 1.0)
    assert (await buckets.consume_tokens(name, 1, rate=1, burst=3, now=101.0)).remaining == 1.0


async def test_without_a_time_the_clock_of_redis_counts(buckets: TokenBuckets, name: str) -> None:
    assert (await buckets.consume_tokens(name, 5, rate=20, burst=5)).allowed
    assert not (await buckets.consume_tokens(name, 5, rate=20, burst=5)).allowed

    async def refilled() -> bool:
        return (await buckets.consume_tokens(name, 5, rate=20, burst=5)).allowed

    await waiting.eventually(refilled, "the bucket is full again")


async def test_a_cost_above_the_burst_takes_a_full_bucket(buckets: TokenBuckets, name: str) -> None:
    assert await buckets.consume_tokens(name, 1000, rate=1, burst=10, now=1.0) == (True, 0.0, 0.0)
    refused = await buckets.consume_tokens(name, 1000, rate=1, burst=10, now=6.0)
    assert (refused.allowed, refused.retry_after_s) == (False, 5.0)


async def test_a_bucket_is_settled_by_what_was_used(buckets: TokenBuckets, name: str) -> None:
    async def left() -> float:
        return (await buckets.consume_tokens(name, 0, 0.001, 100)).remaining

    await buckets.consume_tokens(name, 80, 0.001, 100)
    await buckets.settle(name, -30, 0.001, 100, "requests")
    assert await left() == pytest.approx(50, abs=0.1)
    await buckets.settle(name, 90, 0.001, 100, "requests")
    assert await left() == pytest.approx(-40, abs=0.1)
    refused = await buckets.consume_tokens(name, 10, 0.001, 100)
    assert (refused.allowed, round(refused.retry_after_s)) == (False, pytest.approx(50_000, abs=99))
    await buckets.settle(name, 10_000, 0.001, 100, "requests")
    assert await left() == pytest.approx(-100, abs=0.1)  # no debt above the burst
    await buckets.settle(name, -10_000, 0.001, 100, "requests")
    assert await left() == 100
    await buckets.settle(f"{name}-new", 10, 0.001, 100, "requests")
    new = await buckets.consume_tokens(f"{name}-new", 0, 0.001, 100)
    assert new.remaining == pytest.approx(90, abs=0.1)


async def test_kinds_have_buckets_of_their_own_and_buckets_run_out(
    buckets: TokenBuckets, raw: redis.asyncio.Redis, name: str
) -> None:
    await buckets.consume_tokens(name, 1, rate=1, burst=1, now=1.0, kind="requests")
    assert (await buckets.consume_tokens(name, 1, rate=1, burst=1, now=1.0, kind="tokens")).allowed
    keys = [key async for key in raw.scan_iter("rate:*")]
    left = [await raw.pttl(key) for key in keys]
    assert len(left) >= 2
    assert -1 not in left


@pytest.mark.parametrize(
    ("cost", "rate", "burst"), [(1, 0, 1), (1, 1, 0), (-1, 1, 1), (1, float("nan"), 1), (1, -1, 1)]
)
async def test_an_impossible_bucket_is_a_programming_error(
    buckets: TokenBuckets, name: str, cost: float, rate: float, burst: float
) -> None:
    with pytest.raises(ValueError, match="no such bucket"):
        await buckets.consume_tokens(name, cost, rate, burst)


async def test_a_thousand_racing_takers_get_the_burst_and_no_more(
    buckets: TokenBuckets, name: str
) -> None:
    taken = await asyncio.gather(
        *(buckets.consume_tokens(name, 1, rate=1, burst=30, now=1.0) for _ in range(200))
    )
    assert sum(one.allowed for one in taken) == 30


async def test_it_needs_no_script_cache(
    buckets: TokenBuckets, raw: redis.asyncio.Redis, name: str
) -> None:
    await buckets.consume_tokens(name, 1, rate=1, burst=5, now=1.0)
    await raw.script_flush()
    assert (await buckets.consume_tokens(name, 1, rate=1, burst=5, now=1.0)).remaining == 3


# ---- Redis away


@pytest.fixture
def own_redis() -> Iterator["local.LocalRedis"]:
    from tests.support import local

    with local.LocalRedis() as server:
        yield server


@pytest.fixture
async def fragile(own_redis: "local.LocalRedis") -> AsyncIterator[RedisStore]:
    async with RedisStore(own_redis.url) as client:
        yield client


async def _answers_again(store: RedisStore) -> None:
    await waiting.eventually(store.reachable, "Redis answers", within_s=10)


async def test_a_killed_redis_is_noticed_fast_and_its_return_too(
    own_redis: "local.LocalRedis", fragile: RedisStore
) -> None:
    await _answers_again(fragile)
    await Sessions(fragile).put_turn("owner", "resp_1", b"state")
    own_redis.kill()
    for _ in range(3):
        async with asyncio.timeout(BOUNDED_S):
            with pytest.raises(StoreUnavailable):
                await Sessions(fragile).get_turn("resp_1")
    with pytest.raises(StoreUnavailable):
        await Tickets(fragile).consume_ticket("x" * 22, PAGE)
    assert not await fragile.reachable()
    own_redis.start()
    await _answers_again(fragile)
    assert await Sessions(fragile).get_turn("resp_1") is None
    await Sessions(fragile).put_turn("owner", "resp_1", b"again")
    assert await Sessions(fragile).get_turn("resp_1") == b"again"
    assert (await TokenBuckets(fragile).consume_tokens("someone", 1, rate=1, burst=1)).allowed


async def test_a_server_that_is_a_replica_now_is_left_for_the_one_behind_the_address(
    own_redis: "local.LocalRedis",
) -> None:
    """A failover moves the address; the connections to the former server stay open. Every write was
    refused from then on, until the process was started again."""
    from tests.support import local

    with local.LocalRedis() as successor:
        ports = [own_redis.port]
        async with _forwarding(ports) as url, RedisStore(url, timeout_s=2.0) as store:
            await Sessions(store).put_turn("owner", "resp_1", b"state")
            async with redis.asyncio.Redis.from_url(own_redis.url) as former:
                await former.execute_command("REPLICAOF", "127.0.0.1", successor.port)
            ports[0] = successor.port

            async def writes() -> bool:
                try:
                    await TokenBuckets(store).consume_tokens("someone", 1, rate=1, burst=5)
                    await Sessions(store).put_turn("owner", "resp_1", b"again")
                except StoreUnavailable:
                    return False
                return True

            await waiting.eventually(writes, "it writes to the other one", within_s=10)


@contextlib.asynccontextmanager
async def _forwarding(ports: list[int]) -> AsyncIterator[str]:
    """The URL of an address behind which is the Redis at the port `ports[0]`, for each connection
    anew."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", ports[0])
        await asyncio.gather(copy(reader, back), copy(there, writer))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_stopped_redis_costs_each_call_its_bound_and_answers_are_never_mixed_up_afterwards(
    own_redis: "local.LocalRedis", fragile: RedisStore
) -> None:
    """An answer that comes after its caller gave up must not be handed to the next caller on that
    connection."""
    await _answers_again(fragile)
    names = [f"resp_{n}" for n in range(20)]
    for each in names:
        await Sessions(fragile).put_turn("owner", each, each.encode())
    own_redis.pause()
    try:
        async with asyncio.timeout(BOUNDED_S):
            outcomes = await asyncio.gather(
                *(Sessions(fragile).get_turn(each) for each in names), return_exceptions=True
            )
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    finally:
        own_redis.resume()
    await _answers_again(fragile)
    for each in names:
        assert await Sessions(fragile).get_turn(each) == each.encode()


async def test_the_bound_holds_for_waiting_connecting_and_reading_together(
    own_redis: "local.LocalRedis",
) -> None:
    """Those who first wait for one of the busy connections must not get the time limit twice. The
    time between once and twice is measured as the limit is: a loop that is late moves both."""
    async with RedisStore(own_redis.url, timeout_s=CALL_S) as store:
        await _answers_again(store)
        own_redis.pause()

        def ask() -> asyncio.Task[bytes | None]:
            return asyncio.create_task(Sessions(store).get_turn("resp_1"))

        try:
            calls = [ask() for _ in range(MAX_CONNECTIONS)]
            # A caller that comes now waits nearly its whole time for a connection, and must still
            # read.
            await asyncio.sleep(LATER_S)
            calls += [ask() for _ in calls]
            await asyncio.sleep(0)
            between: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            LoopDeadline(between, TWICE_S)
            await asyncio.wait([between])
            for _ in range(TURNS):  # those whose time is over, too, may need to end
                await asyncio.sleep(0)
            assert between.exception() is not None
            assert [each.done() for each in calls] == [True] * len(calls)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        finally:
            own_redis.resume()


async def test_a_cancelled_call_leaves_nothing_behind_for_the_next(
    fragile: RedisStore,
) -> None:
    await _answers_again(fragile)
    for n in range(50):
        await Sessions(fragile).put_turn("owner", f"resp_{n}", str(n).encode())
    for n in range(50):
        call = asyncio.create_task(Sessions(fragile).get_turn(f"resp_{n}"))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert (
            await Sessions(fragile).get_turn(f"resp_{(n + 1) % 50}") == str((n + 1) % 50).encode()
        )


async def test_more_callers_than_connections_wait_their_turn(sessions: Sessions, name: str) -> None:
    await sessions.put_turn("owner", name, b"state")
    results = await asyncio.gather(*(sessions.get_turn(name) for _ in range(MAX_CONNECTIONS * 3)))
    assert set(results) == {b"state"}


async def test_a_foreign_type_under_our_key_is_unavailable_not_a_crash(
    fragile: RedisStore, own_redis: "local.LocalRedis"
) -> None:
    client = redis.asyncio.Redis.from_url(own_redis.url)
    await client.rpush("session:resp_1", "x")
    await client.aclose()
    with pytest.raises(StoreUnavailable):
        await Sessions(fragile).get_turn("resp_1")


async def test_gateways_tell_each_other_what_the_busiest_principals_run(
    store: RedisStore, name: str
) -> None:
    counts = running.Running(store)
    await counts.publish(f"{name}-1", {"alice": 20, "bob": 30})
    await counts.publish(f"{name}-2", {"alice": 5})
    elsewhere = await counts.elsewhere(f"{name}-1")
    assert elsewhere[redis_store.digest("alice")] == 5
    assert elsewhere[redis_store.digest("bob")] == 0
    await counts.publish(f"{name}-2", {})
    assert (await counts.elsewhere(f"{name}-1"))[redis_store.digest("alice")] == 0


async def test_open_breakers_are_told_with_what_is_left_of_their_time(
    store: RedisStore, name: str
) -> None:
    shared = breakers.Breakers(store)
    await shared.publish(f"{name}-a", breakers.Open("one", 2, "failed", 60.0))
    await shared.publish(f"{name}-b", breakers.Open("one", 1, "late", 0.001))
    found = (await shared.list_open())[f"{name}-a"]
    assert found._replace(for_s=60.0) == breakers.Open("one", 2, "failed", 60.0)
    assert 0 < found.for_s <= 60

    async def over() -> bool:
        return f"{name}-b" not in await shared.list_open()

    await waiting.eventually(over, "the second one is over")


async def test_places_in_the_queue_are_told_taken_out_and_forgotten_soon(
    store: RedisStore, redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = queues.Queues(store)
    first, second = {"resp_a": Place(0, 0.5), "resp_b": Place(1, None)}, {"resp_b": Place(0, 1.5)}
    await told.publish(name, first, ())
    assert await told.read(name, ["resp_a", "resp_b", "resp_c"]) == first
    await told.publish(name, second, ["resp_a", "resp_c"])
    assert await told.read(name, ["resp_a", "resp_b"]) == second
    client = redis.asyncio.Redis.from_url(redis_url)
    assert 0 < await client.pttl(f"queue:{{{name}}}") <= queues.TTL_S * 1000
    await client.aclose()
    monkeypatch.setattr(queues, "MAX_FIELDS", 0)
    await told.publish(name, {"resp_d": Place(7, None)}, ())
    assert await told.read(name, ["resp_b", "resp_d"]) == {"resp_d": Place(7, None)}
    await told.publish(name, {}, ["resp_d"])
    assert await told.read(name, ["resp_d"]) == {}


async def test_revisions_that_get_nothing_are_told_with_what_is_left_of_their_time(
    store: redis_store.RedisStore, name: str
) -> None:
    shared, rev = canaries.Canaries(store), "org/model@1"
    await shared.publish(name, rev, canaries.Returned("ab12", "errors", 60.0))
    await shared.publish(f"{name}-never", rev, canaries.Returned("ab12", "first_token", math.inf))
    await shared.publish(f"{name}-over", rev, canaries.Returned("ab12", "errors", 0.001))
    await asyncio.sleep(0.01)
    listed = await shared.list_returned()
    found = listed[name, rev]
    assert found._replace(for_s=60.0) == canaries.Returned("ab12", "errors", 60.0)
    assert 50 < found.for_s <= 60
    assert 80_000 < listed[f"{name}-never", rev].for_s <= canaries.MOST_S
    assert (f"{name}-over", rev) not in listed
