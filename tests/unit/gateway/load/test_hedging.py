"""Responses whose first token is late: which are offered to a second worker, and how many (log rule
§26)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from gateway import cache
from gateway.load import hedging
from tailrace import settings
from tailrace.delivery import delivery
from tailrace.protocol import fold, records, topics
from tailrace.settings.shapes import Hedge, Pool
from tailrace.store.offers import Late, Offers
from tests.support import cases, gateway_parts, memory_log
from tests.support.gateway_parts import ALICE
from tests.support.memory_worker import Time

OWNER = records.Owner("i", "s")
POOL = Pool("default", ("m",), 1000, 100, hedge=Hedge(1.0))
OTHER = Pool("other", ("n",), 1000, 100)
REQUEST = records.Request("r", OWNER, "m", [], records.Sampling(9), {})
QUICK_S = 0.2  # what the first tokens of the pool take
LATE_S = QUICK_S + 0.05


class Shared:
    """Redis, as far as hedges go: what was offered, as (pool, rid, where)."""

    def __init__(self) -> None:
        self.offered: list[tuple[str, str, Late]] = []

    async def offer_late(self, pool: str, rid: str, late: Late) -> None:
        self.offered.append((pool, rid, late))


@dataclass
class Subscription:
    """What hedging sees of a response."""

    rid: str
    state: fold.Fold = field(default_factory=fold.Fold)

    def claim(self, own: str = "a", prev: str | None = None, pool: str = "default") -> None:
        topic = topics.requests(pool, "interactive")
        self._apply(records.Claim(self.rid, own, prev, OWNER, f"w-{own}", topic, 7, "m1", "t1"))

    def token(self) -> None:
        own = self.state.owner or ""
        self._apply(records.Tok(self.rid, own, self.state.next, [1], "x", self.state.h))

    def cancel(self) -> None:
        self._apply(records.Cancel(self.rid, OWNER))

    def _apply(self, record: records.TokenRecord) -> None:
        self.state.apply(record, self.state.last_offset + 1)


class Gateway:
    """The hedges of one gateway, and its clock."""

    def __init__(
        self, *pools: Pool, samples: int = hedging.LEAST, cached: cache.Cache | None = None
    ) -> None:
        self.time, self.shared = Time(), Shared()
        self.current = settings.CurrentPools(settings.Catalog(pools or (POOL, OTHER)))
        cached = cached or cast(cache.Cache, self.shared)
        self.hedges = hedging.Hedges(self.current, cached, clock=self.time)
        for n in range(samples):
            self.begin(f"seen-{n}")

    def add(
        self,
        rid: str = "late",
        pool: str = "default",
        priority: topics.PriorityClass = "interactive",
        **changes: Any,
    ) -> Subscription:
        request = msgspec.structs.replace(REQUEST, rid=rid, **changes)
        response = Subscription(rid)
        subscription = cast(delivery.Subscription, response)
        self.hedges.add(request, subscription, pool, priority, 3)
        return response

    def begin(self, rid: str, seconds: float = QUICK_S, **changes: Any) -> None:
        """A response whose first token takes so long."""
        subscription = self.add(rid, **changes)
        subscription.claim()
        self.time.advance(seconds)
        subscription.token()
        self.hedges.on_first_token(rid)

    async def late(self, subscription: Subscription) -> list[str]:
        """What is offered once the response is late, and its claim is no news."""
        await self.hedges.check()
        self.time.advance(LATE_S)
        await self.hedges.check()
        return [rid for _, rid, _ in self.shared.offered]


async def test_a_response_that_is_later_than_the_others_is_offered_once() -> None:
    it = Gateway()
    subscription = it.add()
    subscription.claim()
    await it.hedges.check()
    it.time.advance(QUICK_S)
    await it.hedges.check()
    assert it.shared.offered == []
    it.time.advance(LATE_S - QUICK_S)
    await it.hedges.check()
    await it.hedges.check()
    assert it.shared.offered == [("default", "late", Late(3, 7))]


async def test_what_no_worker_has_begun_waits_in_its_queue() -> None:
    it = Gateway()
    assert await it.late(it.add()) == []


async def test_a_claim_that_is_fresh_gets_its_time() -> None:
    """The request waited for long; the worker that has it now is not slow."""
    it = Gateway()
    subscription = it.add()
    assert await it.late(subscription) == []
    subscription.claim()
    await it.hedges.check()
    it.time.advance(hedging.FLOOR_S / 2)
    await it.hedges.check()
    assert it.shared.offered == []
    it.time.advance(hedging.FLOOR_S)
    await it.hedges.check()
    assert len(it.shared.offered) == 1


async def test_what_has_a_token_or_a_second_owner_or_an_end_is_not_offered() -> None:
    it = Gateway()
    begun, taken, ended, left = (it.add(rid) for rid in ("begun", "taken", "ended", "left"))
    for response in (begun, taken, ended, left):
        response.claim()
    begun.token()
    taken.claim("b", prev="a")
    ended.cancel()
    it.hedges.on_end("left")
    assert await it.late(begun) == []


@cases.each(
    "changes",
    [
        {"pool": "other"},
        {"priority": "batch"},
        {"generate": False},
        {"embed": records.Embed(["a"])},
        {"fork": records.Fork("resp_x", 3)},
    ],
    ids=str,
)
async def test_only_plain_interactive_requests_of_a_pool_that_hedges(
    changes: dict[str, Any],
) -> None:
    it = Gateway()
    subscription = it.add(**changes)
    subscription.claim(pool=changes.get("pool", "default"))
    assert await it.late(subscription) == []


async def test_before_enough_first_tokens_were_seen_nothing_is_late() -> None:
    it = Gateway(samples=hedging.LEAST - 1)
    subscription = it.add()
    subscription.claim()
    assert await it.late(subscription) == []


async def test_no_more_than_the_share_is_offered() -> None:
    it = Gateway(dataclasses.replace(POOL, hedge=Hedge(0.1)))
    for n in range(30 - hedging.LEAST):
        it.add(f"late-{n}").claim()
    await it.hedges.check()
    it.time.advance(LATE_S)
    for _ in range(3):
        await it.hedges.check()
    assert len(it.shared.offered) == 3, "a tenth of thirty"


async def test_hedges_do_not_make_the_next_ones_later() -> None:
    """A defect: with more hedges than one in twenty, each came a little later than the one before,
    up to what the slow worker takes."""
    it = Gateway()
    for n in range(hedging.MOST):
        subscription = it.add(f"late-{n}")
        subscription.claim()
        await it.late(subscription)
        it.time.advance(0.3)
        subscription.token()
        it.hedges.on_first_token(subscription.rid)
    assert len(it.shared.offered) == hedging.MOST


async def test_a_prompt_that_is_longer_than_nearly_all_is_not_offered() -> None:
    """It is late at any worker, and a second one would be as busy with it."""
    it = Gateway()
    text = {"role": "user", "content": "x" * 1_000}
    long, short = it.add("long", messages=[text]), it.add("short")
    long.claim()
    short.claim()
    assert await it.late(long) == ["short"]


async def test_prompts_of_one_length_are_not_long() -> None:
    text = {"role": "user", "content": "x" * 1_000}
    it = Gateway(samples=0)
    for n in range(hedging.LEAST):
        it.begin(f"seen-{n}", messages=[text])
    subscription = it.add(messages=[text])
    subscription.claim()
    assert await it.late(subscription) == ["late"]


async def test_the_pool_of_the_worker_that_has_it_decides() -> None:
    """Another pool answers for it (log rule §22) and does not hedge."""
    it = Gateway()
    subscription = it.add()
    subscription.claim(pool="other")
    assert await it.late(subscription) == []


async def test_a_pool_that_stops_hedging_offers_nothing_more() -> None:
    it = Gateway()
    subscription = it.add()
    subscription.claim()
    it.current.catalog = settings.Catalog((dataclasses.replace(POOL, hedge=Hedge()), OTHER))
    assert await it.late(subscription) == []


def test_late_is_what_is_later_than_nineteen_of_twenty() -> None:
    pace = hedging.Pace()
    for n in range(1, 101):
        pace.add_first_token(0.0, n / 10)
    assert pace.late_after_s(0.0) == 9.5


def test_the_newest_first_tokens_of_the_last_minutes_count() -> None:
    pace = hedging.Pace()
    for _ in range(hedging.MOST):
        pace.add_first_token(0.0, 9.0)
    for _ in range(hedging.MOST):
        pace.add_first_token(10.0, 1.0)
    assert pace.late_after_s(10.0) == 1.0
    assert pace.late_after_s(10.0 + hedging.WINDOW_S) == 1.0
    assert pace.late_after_s(10.1 + hedging.WINDOW_S) == math.inf


def test_a_pool_that_is_quick_has_a_floor() -> None:
    pace = hedging.Pace()
    for _ in range(hedging.LEAST):
        pace.add_first_token(0.0, 0.001)
    assert pace.late_after_s(0.0) == hedging.FLOOR_S


def test_hedges_are_saved_up_to_a_bound() -> None:
    pace = hedging.Pace()
    assert not pace.spend()
    for _ in range(20):
        pace.add_request(0.05, 9)
    assert pace.spend()
    assert not pace.spend()
    for _ in range(1_000):
        pace.add_request(0.05, 9)
    assert [pace.spend() for _ in range(6)] == [True] * 5 + [False]


async def test_a_submitted_request_is_offered_in_redis() -> None:
    """The whole way through the gateway, but for the time."""
    broker = memory_log.MemoryLog("one", 1)
    async with gateway_parts.running(broker, pools=(POOL,)) as parts:
        it = Gateway(POOL, samples=0, cached=parts.cache)
        for n in range(hedging.LEAST):
            it.begin(f"seen-{n}", messages=[{"role": "user", "content": "hi"}])
        ended: list[str] = []
        it.hedges.on_end = lambda rid: ended.append(rid)  # type: ignore[method-assign]
        parts.hedges = it.hedges
        parts.submission = parts.submission_with(parts.keys)
        with await parts.submission.submit(gateway_parts.create(), ALICE) as stream:
            (request,) = parts.requests()
            gateway_parts.put_answer(broker, request, end=False)
            while not stream.subscription.state.claims:
                await stream.next_events()
            await it.hedges.check()
            it.time.advance(LATE_S)
            await it.hedges.check()
            offers = await Offers(parts.redis, Late, "hedges").all_of("default")
            offset = stream.subscription.state.first.req_offset  # type: ignore[union-attr]
            assert offers == {stream.rid: Late(0, offset)}
            await parts.operations.append_cancel(stream.rid, stream.owner, stream.echo)
            await gateway_parts.all_events(stream)
        assert ended == [stream.rid]
