"""What a trace says of a page's main thread."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench import browser
from bench.browser import Task

PAGE, COMPOSITOR, OTHER_PAGE = (7, 1), (7, 2), (8, 1)


def named(thread: tuple[int, int], name: str) -> dict[str, Any]:
    return {
        "name": "thread_name",
        "ph": "M",
        "pid": thread[0],
        "tid": thread[1],
        "args": {"name": name},
    }


def task(thread: tuple[int, int], at_us: int, **more: Any) -> dict[str, Any]:
    name = "ThreadControllerImpl::RunTask"
    return {"name": name, "ph": "X", "pid": thread[0], "tid": thread[1], "ts": at_us, **more}


def trace(*events: dict[str, Any]) -> bytes:
    threads = [
        named(PAGE, "CrRendererMain"),
        named(COMPOSITOR, "Compositor"),
        named(OTHER_PAGE, "CrRendererMain"),
    ]
    return json.dumps({"traceEvents": [*events, *threads]}).encode()


def test_only_tasks_of_main_threads_of_pages_count() -> None:
    found = browser.main_thread(
        trace(
            task(PAGE, 0, dur=80_000, tdur=20_000),
            task(COMPOSITOR, 0, dur=900_000, tdur=900_000),
            task(OTHER_PAGE, 10, dur=1_000, tdur=500),
            {**task(PAGE, 0, dur=900_000), "name": "Layout"},
        )
    )
    assert found == [Task(80.0, 20.0), Task(1.0, 0.5)]


def test_a_task_inside_another_one_is_counted_with_that() -> None:
    found = browser.main_thread(
        trace(
            task(PAGE, 100, dur=30_000, tdur=30_000),
            task(PAGE, 100, dur=60_000, tdur=60_000),
            task(OTHER_PAGE, 200, dur=5_000, tdur=5_000),
            task(PAGE, 60_100, dur=2_000, tdur=1_000),
        )
    )
    assert found == [Task(60.0, 60.0), Task(5.0, 5.0), Task(2.0, 1.0)]


def test_what_is_above_fifty_milliseconds_blocks() -> None:
    values = browser.task_values([Task(49.0, 40.0), Task(60.0, 10.0), Task(150.0, 45.0)])
    assert values == {
        "longest_task_ms": 150.0,
        "longest_task_cpu_ms": 45.0,
        "long_tasks": 2.0,
        "blocking_ms": 110.0,
        "main_thread_cpu_ms": 95.0,
    }
    assert browser.task_values([])["longest_task_ms"] == 0


def test_of_several_visits_the_median_of_each_value_counts() -> None:
    visits = [{"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 7.0}, {"a": 2.0, "b": 8.0}]
    assert browser.middle(visits) == {"a": 2.0, "b": 8.0}


def test_times_between_frames_have_percentiles() -> None:
    assert browser.frame_values([16.0] * 99 + [80.0]) == {
        "frame_gap_p50_ms": pytest.approx(16.0),
        "frame_gap_p99_ms": pytest.approx(16.0),
    }
