"""The workers of a pool as placement sees them, and where requests go by what they tell."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any
from unittest.mock import AsyncMock

import pytest

from gateway.load import backlog, placement, pool_choice, pool_workers
from gateway.load.backlog import Placements
from gateway.load.pool_workers import PoolWorker
from tailrace.fair_queue import waits_of
from tailrace.protocol import errors, ids, topics
from tailrace.store.prefixes import holder_name
from tests.support import gateway_parts, memory_log
from tests.support.gateway_parts import ALICE, create


def beat(name: str, partitions: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "incarnation": f"{name}/1",
        "state": "ready",
        "partitions": partitions,
        "capacity": 16,
        "request_tokens": 100.0,
        **more,
    }


def candidates(
    beats: Sequence[dict[str, Any]],
    priority: topics.PriorityClass,
    principal: str = "",
    placements: Placements | None = None,
    among: Collection[int] = (0, 1, 2),
) -> list[PoolWorker]:
    return pool_workers.candidates(
        backlog.from_heartbeats(beats, placements), among, priority, principal, each=100.0
    )


def test_the_load_is_what_runs_and_waits_and_what_was_placed_since() -> None:
    figures = beat(
        *("a", [0, 1]),
        running=3,
        queued=2,
        running_tokens=150,
        waiting_tokens=[200, 50],
    )
    placements = Placements()
    for name in ("a/1", "a/1", "b/1"):
        placements.add(name, "bob", 0)
    actual = candidates([figures], "batch", placements=placements)
    assert actual == [PoolWorker("a/1", (0, 1), 16, 7, 600.0, waits=True)]
    for _ in range(2):
        placements.refresh()
    later = candidates([figures], "batch", placements=placements)
    assert (later[0].requests, later[0].load) == (5, 400.0)


def test_a_wait_counts_where_all_places_are_taken() -> None:
    ahead = {"waiting_tokens": [600, 300], "queued": 9, "drain_rate": 100.0}
    ahead |= {"waits_s": [2.5, 5.0], "waits_of": [waits_of("alice")]}
    ahead |= {"interactive_waits_s": [7.0], "batch_waits_s": [8.0]}
    full, free = beat("a", [0], running=16, **ahead), beat("b", [1], running=15, **ahead)
    placements = Placements()
    for name in ("a/1", "b/1"):
        placements.add(name, "carol", 0)
    more_s = 1.0 - backlog.BUSY_UNCOUNTED_S

    def waits(*beats: dict[str, Any], principal: str = "bob") -> list[float]:
        return [worker.wait_s for worker in candidates(beats, "interactive", principal, placements)]

    assert waits(full) == [pytest.approx(2.5 + more_s)]
    assert waits(full, principal="alice") == [pytest.approx(7.0 + more_s)]
    [of_batch] = candidates([full], "batch", placements=placements)
    assert of_batch.wait_s == pytest.approx(5.0 + more_s)
    assert waits({**full, "pausable": 1}) == [pytest.approx(2.5 + more_s)]  # for what was placed
    assert waits({**full, "pausable": 2}) == [0.0]
    assert waits(free) == [pytest.approx(2.5 + more_s)]
    unknown = {**full, "incarnation": "c/1", "waits_s": [], "drain_rate": 0.0}
    assert waits({**full, "drain_rate": 0.0}, unknown) == [0.0, 0.0]


def test_what_makes_way_or_waits_behind_is_no_load_to_interactive_requests() -> None:
    """A defect: they went where the least batch work was, so where most others of them ran."""
    figures = beat(
        *("a", [0]),
        running=6,
        pausable=4,
        running_tokens=300,
        pausable_tokens=200,
        queued=9,
        waiting_tokens=[0, 900],
    )
    placements = Placements()
    for rank in range(2):
        placements.add("a/1", "bob", rank)
    (actual,) = candidates([figures], "interactive", placements=placements)
    assert actual == PoolWorker("a/1", (0,), 16, 3, 200.0, waits=False)
    (actual,) = candidates([figures], "batch", placements=placements)
    assert actual == PoolWorker("a/1", (0,), 16, 17, 1400.0, waits=True)
    figures["waiting_tokens"] = [300, 600]
    (actual,) = candidates([figures], "interactive", placements=placements)
    assert actual == PoolWorker("a/1", (0,), 16, 6, 500.0, waits=True)


def test_only_ready_workers_and_partitions_that_may_be_chosen() -> None:
    beats = [
        beat("a", [0, 1, 2]),
        beat("b", [3], state="draining"),
        beat("c", [9]),
        beat("d", []),
        {"state": "ready", "partitions": "x"},
        beat("e", [2, "3", True], capacity=0, waiting_tokens="x", running=-5),
    ]
    actual = candidates(beats, "batch", among={0, 2, 3})
    assert actual == [PoolWorker("a/1", (0, 2), 16), PoolWorker("e/1", (2,), 1)]


def four_partitions() -> contextlib.AbstractAsyncContextManager[gateway_parts.Parts]:
    return gateway_parts.running(memory_log.MemoryLog("one", 4), preferred=[0, 1, 2, 3])


async def partition_of(parts: gateway_parts.Parts, **fields: Any) -> int:
    """Where a request of this text goes."""
    with await parts.submission.submit(create(**fields), ALICE) as stream:
        parts.answer(stream.rid, "yes")
        await gateway_parts.all_events(stream)
        return ids.parse(stream.rid).partition


def hold(parts: gateway_parts.Parts, worker: str, tokens: int) -> None:
    """The worker tells that it holds the prompt of the last request."""
    digest = parts.requests()[-1].prefix[-1]
    parts.redis.values[f"prefix:{{default}}:{digest}"] = (
        f"{holder_name(worker)} {tokens} 1".encode()
    )


async def test_what_follows_goes_where_its_prompt_is_held_also_after_a_rebalance() -> None:
    async with four_partitions() as parts:
        beats = [
            beat("a", [0, 1]),
            beat("b", [2, 3], running=9, running_tokens=300),
        ]
        parts.workers.note("default", beats)
        assert await partition_of(parts, text="hi") < 2, "the least loaded worker"
        hold(parts, "b/1", 512)
        beats[1]["running"], beats[1]["running_tokens"] = 3, 100
        parts.workers.note("default", beats)
        assert await partition_of(parts, text="hi") >= 2
        # b's partitions go to a, and a's to b, which still holds the prompt.
        beats[0]["partitions"], beats[1]["partitions"] = beats[1]["partitions"], [0, 1]
        parts.workers.note("default", beats)
        assert await partition_of(parts, text="hi") in (0, 1)
        # b was started again: another process of this name holds nothing.
        beats[1]["incarnation"] = "b/2"
        beats[1]["running_tokens"] = 900
        parts.workers.note("default", beats)
        assert await partition_of(parts, text="hi") >= 2


async def test_the_load_of_other_gateways_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with four_partitions() as parts:
        beats = [
            beat("a", [0, 1], running=12, queued=2, waiting_tokens=[900, 0]),
            beat("b", [2, 3]),
        ]
        parts.workers.note("default", beats)
        assert {await partition_of(parts, text=str(n)) >= 2 for n in range(4)} == {True}
        assert len(parts.streams.running) == 0, "this gateway runs none of them"


async def test_interactive_requests_go_where_batch_makes_way() -> None:
    async with four_partitions() as parts:
        batch = {"running": 16, "pausable": 16, "running_tokens": 1600, "pausable_tokens": 1600}
        beats = [
            beat("a", [0, 1], running=12, running_tokens=1200),
            beat("b", [2, 3], queued=9, waiting_tokens=[0, 900], **batch),
        ]
        parts.workers.note("default", beats)
        assert {await partition_of(parts, text=str(n)) >= 2 for n in range(4)} == {True}


async def test_where_requests_wait_each_principal_goes_where_its_own_begins_first() -> None:
    async with four_partitions() as parts:
        full = {"running": 16, "queued": 9, "waiting_tokens": [900, 0], "drain_rate": 100.0}
        figures = {"waits_of": [waits_of(ALICE.key)], "batch_waits_s": [9.0]}
        beats = [
            beat("a", [0, 1], **full, **figures, waits_s=[1.0, 9.0], interactive_waits_s=[8.0]),
            beat("b", [2, 3], **full, **figures, waits_s=[5.0, 9.0], interactive_waits_s=[2.0]),
        ]
        parts.workers.note("default", beats)
        assert await partition_of(parts, text="hi") >= 2


async def test_what_a_principal_has_just_asked_for_makes_its_next_request_wait() -> None:
    async with four_partitions() as parts:
        figures = {"waits_s": [0.0, 0.0], "drain_rate": 1_000.0, "request_tokens": 20_000.0}
        full = beat("a", [0, 1, 2, 3], running=16, **figures)
        parts.workers.note("default", [full])
        await partition_of(parts, text="one", deadline_ms=10_000)
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(text="two", deadline_ms=10_000), ALICE)
        assert error.value.message.endswith("Please try again in 20s."), "19 s"


async def test_a_request_with_a_key_is_told_the_wait_of_its_partition() -> None:
    """Its key decides where it goes, and the other worker would have started it in time."""
    async with four_partitions() as parts:
        beats = [
            beat(name, partitions, running=16, queued=9, waits_s=[seconds, 90.0])
            for name, partitions, seconds in (("a", [0, 1], 1.0), ("b", [2, 3], 60.0))
        ]
        parts.workers.note("default", beats)
        keys = {placement.partition_of_key(ALICE.key, str(n), 4) >= 2: str(n) for n in range(20)}
        command_ = create(text="hi", deadline_ms=30_000)
        keyed_request = {
            there: dataclasses.replace(command_, idempotency_key=keys[there]) for there in keys
        }
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(keyed_request[True], ALICE)
        assert error.value.message.endswith("Please try again in 60s.")
        for other in (keyed_request[False], command_):
            assert parts.builder.wait_s("default", other, ALICE.key) == 1.0


async def test_what_was_refused_makes_no_later_request_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fallback chain is looked at once the request is built and placed."""
    async with four_partitions() as parts:
        figures = {"waits_s": [50.0, 50.0], "waiting_tokens": [900, 0]}
        figures |= {"drain_rate": 5.0, "request_tokens": 100.0}
        full = beat("a", [0, 1, 2, 3], running=16, queued=9, **figures)
        parts.workers.note("default", [full])
        command_, waits = create(text="hi", deadline_ms=1_000), create(text="hi")

        def wait_s() -> float | None:
            return parts.builder.wait_s("default", waits, ALICE.key)

        def refuse(*_of: Any) -> None:
            raise errors.deadline_not_met(50.0, 1.0)

        with monkeypatch.context() as patch:
            patch.setattr(pool_choice.Routes, "wait_s", lambda *_of: None)
            patch.setattr(pool_choice.Routes, "choose", refuse)
            for _ in range(3):
                with pytest.raises(errors.ApiError):
                    await parts.submission.submit(command_, ALICE)
        monkeypatch.setattr(parts.token_counts, "can_count", lambda _pool: True)
        monkeypatch.setattr(parts.token_counts, "count", AsyncMock(return_value=7))
        assert await parts.submission.count(waits, ALICE) == 7
        assert wait_s() == 50.0
        await partition_of(parts, text="hi")
        seconds = backlog.BUSY_UNCOUNTED_S
        assert wait_s() == 50.0 + 20.0 - seconds
        # Redis is away: what the worker said last is believed for a while.
        parts.workers.note("default", None)
        await partition_of(parts, text="hi")
        assert wait_s() == 50.0 + 2 * 20.0 - seconds


async def test_requests_at_the_same_time_are_spread_before_heartbeats_tell_of_them() -> None:
    async with four_partitions() as parts:
        beats = [
            beat("a", [0, 1], running_tokens=250, running=3),
            beat("b", [2, 3]),
        ]
        parts.workers.note("default", beats)
        actual = [await partition_of(parts, text=str(n)) >= 2 for n in range(6)]
        assert actual[:3] == [True] * 3
        assert not all(actual)


async def test_without_redis_a_conversation_stays_in_its_partition() -> None:
    async with four_partitions() as parts:
        beats = [beat("a", [0, 1]), beat("b", [2, 3])]
        parts.workers.note("default", beats)
        await partition_of(parts, text="hi")
        last = parts.requests()[-1]
        hold(parts, "b/1" if ids.parse(last.rid).partition < 2 else "a/1", 512)
        parts.redis.away = True
        again = await partition_of(parts, text="go on", previous_response_id=last.rid)
        assert again == ids.parse(last.rid).partition, "what is held is not known"
        parts.workers.note("default", None)
        again = await partition_of(parts, text="go on", previous_response_id=last.rid)
        assert again == ids.parse(last.rid).partition, "and nothing of the workers"
