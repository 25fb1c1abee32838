"""The shares of revisions at gateways that tell each other, and on the way of a request."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from gateway import cache
from gateway.load import canaries, worker_registry
from tailrace import settings
from tailrace.protocol import ids, records
from tailrace.settings.shapes import CanaryBounds, Pool
from tailrace.store import canaries as store
from tests.support import gateway_parts, memory_log
from tests.support.gateway_parts import ALICE, Parts, create, put_answer
from tests.support.memory_worker import Time
from tests.unit.gateway.load.test_revisions import beat

LEAST = 4
POOL = Pool(*("default", ("m",), 1000, 100), canary=50.0, canary_bounds=CanaryBounds(least=LEAST))
BEATS = [beat("old", 900.0, 0, 1), beat("rev", 5.0, 2, 3)]


class Shared:
    """What the gateways share; nothing while it is away."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.away = False
        self.told: dict[tuple[str, str], tuple[float, store.Returned]] = {}

    async def publish_returned(self, pool: str, revision: str, entry: store.Returned) -> None:
        if not self.away:
            self.told[pool, revision] = self.time.now + entry.for_s, entry

    async def returned_revisions(self) -> Mapping[tuple[str, str], store.Returned]:
        return {
            at: entry._replace(for_s=until - self.time.now)
            for at, (until, entry) in self.told.items()
            if until > self.time.now and not self.away
        }


class Gateway:
    """A gateway's canaries, over what it shares with others."""

    def __init__(self, shared: Shared, pool: Pool = POOL) -> None:
        cached = cast(cache.Cache, shared)
        self.pools = settings.CurrentPools(settings.Catalog((pool,)))
        workers = worker_registry.WorkerRegistry(cached, self.pools, shared.time)
        workers.note("default", BEATS)
        self.canaries = canaries.Canaries(self.pools, workers, cached, clock=shared.time)

    def change(self, **members: Any) -> None:
        """The file was changed."""
        (pool,) = self.pools.catalog.pools
        self.pools.catalog = settings.Catalog((dataclasses.replace(pool, **members),))

    def fails(self) -> None:
        for _ in range(LEAST):
            self.canaries.on_end("default", "old", failed=False)
            self.canaries.on_end("default", "rev", failed=True)

    @property
    def report(self) -> dict[str, Any]:
        summary: dict[str, Any] = self.canaries.report()["default"]
        return summary

    @property
    def returned(self) -> bool:
        return bool(self.report["rev"]["share"] == 0)


async def test_a_new_revision_that_fails_gets_nothing_until_it_is_tried_again() -> None:
    time = Time()
    one = Gateway(Shared(time))
    assert one.report == {"rev": {"share": 0.5}, "old": {"share": 0.5}}
    one.fails()
    assert one.report == {
        "rev": {"share": 0.0, "returned": "errors", "retry_s": 600.0},
        "old": {"share": 1.0},
    }
    time.advance(601)
    assert one.report["rev"] == {"share": 0.5}
    one.canaries.on_end("default", "rev", failed=True)  # what was seen before is forgotten
    assert not one.returned
    one.fails()
    assert one.returned


async def test_a_new_revision_with_late_first_tokens_gets_nothing() -> None:
    one = Gateway(Shared(Time()))
    for _ in range(LEAST):
        one.canaries.on_first_token("default", "old", 0.1)
        one.canaries.on_first_token("default", "rev", 0.5)
    assert one.report["rev"]["returned"] == "first_token"


async def test_an_old_revision_that_is_worse_keeps_its_share() -> None:
    one = Gateway(Shared(Time()))
    for _ in range(LEAST):
        one.canaries.on_end("default", "old", failed=True)
        one.canaries.on_end("default", "rev", failed=False)
    assert one.report == {"rev": {"share": 0.5}, "old": {"share": 0.5}}


async def test_other_gateways_are_told_also_after_redis_was_emptied() -> None:
    time = Time()
    shared = Shared(time)
    one, two = Gateway(shared), Gateway(shared)
    one.fails()
    shared.away = True
    await one.canaries.exchange()
    await two.canaries.exchange()
    assert (one.returned, two.returned) == (True, False)
    shared.away = False
    time.advance(canaries.PUBLISH_S)
    await one.canaries.exchange()
    await two.canaries.exchange()
    assert two.report["rev"] == {"share": 0.0, "returned": "errors", "retry_s": 595.0}
    shared.told.clear()
    time.advance(canaries.PUBLISH_S)
    await two.canaries.exchange()
    late = Gateway(shared)
    await late.canaries.exchange()
    assert late.returned


async def test_a_change_of_the_members_tries_it_again_everywhere() -> None:
    time = Time()
    shared = Shared(time)
    one, two = Gateway(shared), Gateway(shared)
    one.fails()
    for each in (one, two):
        await each.canaries.exchange()
    one.change(canary=20.0)
    assert not one.returned
    await one.canaries.exchange()  # what the other one still tells is of other members
    assert not one.returned
    two.change(canary=20.0)
    assert not two.returned


async def test_without_a_time_it_is_not_tried_again_by_itself() -> None:
    time = Time()
    shared = Shared(time)
    never = dataclasses.replace(POOL, canary_bounds=CanaryBounds(least=LEAST, retry_s=0.0))
    one, two = Gateway(shared, never), Gateway(shared, never)
    one.fails()
    for each in (one, two):
        await each.canaries.exchange()
        assert each.report["rev"]["retry_s"] is None
    time.advance(10 * store.MOST_S)
    assert one.returned
    assert two.returned


async def test_a_pool_without_the_member_is_not_looked_at() -> None:
    time = Time()
    one = Gateway(Shared(time), dataclasses.replace(POOL, canary=None))
    one.fails()
    await one.canaries.exchange()
    assert one.canaries.report() == {}
    assert one.canaries.partitions("default", "s", [{"role": "user", "content": "x"}]) == set()
    assert not one.canaries.reports_revision("default")


# ---- on the way of a request


@contextlib.asynccontextmanager
async def running(pool: Pool = POOL) -> AsyncIterator[Parts]:
    broker = memory_log.MemoryLog("one", 4)
    async with gateway_parts.running(broker, pools=(pool,)) as parts:
        parts.workers.note("default", BEATS)
        yield parts


def last_request(parts: Parts) -> records.Request:
    requests = [records.request_of(r.key, r.value) for r in parts.broker.appended]
    return [each for each in requests if each is not None][-1]


async def test_requests_lie_in_partitions_of_their_revision_and_tell_it() -> None:
    async with running() as parts:
        observations = set()
        for n in range(12):
            with await parts.submission.submit(create(f"number {n}"), ALICE) as stream:
                put_answer(parts.broker, last_request(parts), "ho")
                events = await gateway_parts.all_events(stream)
                observations.add(ids.parse(stream.rid).partition in (2, 3))
                reports = [e.response["model_revision"] for e in events if e.response]
                assert reports == [None, "rev", "rev"]
                assert stream.headers["x-tailrace-revision"] == "rev"
        assert observations == {True, False}


async def test_with_no_weight_for_the_new_revision_it_gets_no_new_request() -> None:
    async with running(dataclasses.replace(POOL, canary=0.0)) as parts:
        for n in range(12):
            with await parts.submission.submit(create(f"number {n}"), ALICE) as stream:
                assert ids.parse(stream.rid).partition in (0, 1)
                put_answer(parts.broker, last_request(parts), "ho")


async def test_responses_that_fail_return_their_revision() -> None:
    async with running() as parts:
        for _ in range(LEAST):
            parts.canaries.on_end("default", "old", failed=False)
        for n in range(LEAST):
            with await parts.submission.submit(create(f"number {n}"), ALICE) as stream:
                error = ("server_error", "broken")
                put_answer(parts.broker, last_request(parts), error=error)
                await gateway_parts.all_events(stream)
        assert parts.canaries.report()["default"]["rev"]["returned"] == "errors"


async def test_the_time_to_the_first_token_is_told_of_its_revision() -> None:
    async with running() as parts:
        reports: list[tuple[str, str]] = []

        def began(name: str, revision: str, seconds: float) -> None:
            assert 0 < seconds < 60
            reports.append((name, revision))

        parts.canaries.on_first_token = began  # type: ignore[method-assign]
        with await parts.submission.submit(create(), ALICE) as stream:
            put_answer(parts.broker, last_request(parts), "ho", "ho")
            await gateway_parts.all_events(stream)
        assert reports == [("default", "rev")]


async def test_where_revisions_are_not_weighed_nothing_is_told() -> None:
    async with running(dataclasses.replace(POOL, canary=None)) as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            put_answer(parts.broker, last_request(parts), "ho")
            events = await gateway_parts.all_events(stream)
            assert not any("model_revision" in e.response for e in events if e.response)
            assert "x-tailrace-revision" not in stream.headers
