"""What a gateway goes by while Redis says nothing of the workers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway import cache
from gateway.load import worker_registry
from gateway.load.worker_registry import ABSENT_S, BACKLOG_S, SILENT_S, WorkerRegistry
from tests.support import gateway_parts
from tests.support.memory_worker import Time

BUSY = [
    {
        "state": "ready",
        "capacity": 4,
        "running": 4,
        "queued": 9,
        "waiting_tokens": [500, 0],
        "request_tokens": 50,
        "drain_rate": 100,
    }
]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def registry(time: Time) -> WorkerRegistry:
    nothing = cast(cache.Cache, None)  # what Redis says is handed in
    return WorkerRegistry(nothing, gateway_parts.POOLS, time)


def waits(registry: WorkerRegistry) -> float | None:
    return registry.backlog("default").wait_s("batch", "")


@pytest.mark.parametrize("told", [None, []], ids=["away", "emptied"])
def test_the_backlog_is_known_for_a_while_without_redis(
    registry: WorkerRegistry, time: Time, told: list[dict[str, Any]] | None
) -> None:
    """While Redis was away every gateway took every request, and each expired in the queue."""
    registry.note("default", BUSY)
    assert waits(registry) == 5.0
    registry.note("default", told)
    assert waits(registry) == 5.0
    time.advance(BACKLOG_S)
    registry.note("default", told)
    assert waits(registry) == 0


def test_no_backlog_is_left_of_workers_that_are_gone(registry: WorkerRegistry, time: Time) -> None:
    registry.note("default", BUSY)
    registry.note("default", [])
    time.advance(ABSENT_S)
    registry.note("default", [])
    assert registry.absent("default")
    assert waits(registry) == 0
    assert worker_registry.BACKLOG_S > ABSENT_S


def test_a_request_that_was_placed_counts_until_two_refreshes_later(
    registry: WorkerRegistry,
) -> None:
    registry.note("default", [{**BUSY[0], "incarnation": "a"}])
    registry.backlog("default").placements.add("a", "alice", 0)
    for number in (1, 1, 0):
        assert registry.backlog("default").placements.number("a", 0) == number
        registry.note("default", BUSY)


def silent(*seconds: float) -> list[dict[str, Any]]:
    return [{"state": "ready", "silent_s": each} for each in seconds]


def test_a_pool_is_lost_when_all_its_workers_are_silent(registry: WorkerRegistry) -> None:
    registry.note("default", silent(SILENT_S, SILENT_S - 1))
    assert not registry.absent("default")
    assert registry.standing("default") == silent(SILENT_S - 1)
    registry.note("default", silent(SILENT_S, SILENT_S + 1))
    assert registry.absent("default")
    assert not registry.standing("default")
    registry.note("default", silent(0.1, SILENT_S + 2))
    assert not registry.absent("default")


def test_behind_a_redis_that_did_not_answer_silence_says_nothing(
    registry: WorkerRegistry, time: Time
) -> None:
    registry.note("default", None)
    time.advance(SILENT_S - 0.1)
    registry.note("default", silent(4.0))
    assert not registry.absent("default")
    time.advance(0.1)
    registry.note("default", silent(4.1))
    assert registry.absent("default")
