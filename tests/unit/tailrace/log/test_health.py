"""Whether the broker answers."""

from __future__ import annotations

import asyncio
import contextlib
import math

import prometheus_client
import pytest

from tailrace import log
from tailrace.log import health
from tests.support.waiting import eventually


async def test_it_says_what_the_last_question_came_to_in_readiness_and_in_the_metric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "QUERY_INTERVAL_S", 0.01)
    monkeypatch.setattr(health, "ANSWER_S", 0.01)
    broker = "answers"

    async def ask() -> None:
        if broker == "refuses":
            raise log.LogUnavailable("no connection")
        if broker == "hangs":
            await asyncio.Event().wait()

    def away() -> float | None:
        return prometheus_client.REGISTRY.get_sample_value("tailrace_kafka_away")

    asked = health.Health(ask)
    assert not asked.answers, "nothing is known yet"
    assert asked.steady_s == math.inf
    task = asyncio.create_task(asked.run())
    try:
        for broker in ("answers", "refuses", "answers", "hangs", "answers"):
            well = broker == "answers"
            await eventually(lambda: asked.answers is well, broker, within_s=5)  # noqa: B023
            assert away() == (0 if well else 1)
            assert (asked.steady_s > 0) == well
        assert asked.steady_s < 5, "it is counted from the last return"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
