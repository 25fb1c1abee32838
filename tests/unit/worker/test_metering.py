"""What is written beside the token log about a finished response."""

from __future__ import annotations

import pytest

from tailrace.protocol import fold, records, topics
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import Foreign, answer, new_request
from worker import appends
from worker.metering import Metering


def finished(memory: MemoryLog) -> tuple[records.Request, fold.Fold]:
    """A response that another worker has claimed and that was cancelled."""
    request = new_request(memory)
    Foreign(memory, request).claim("a")
    Foreign(memory, request).cancel()
    return request, answer(memory, request.rid).fold


def beside(memory: MemoryLog, topic: str) -> list[bytes | None]:
    return [r.value for r in memory.appended if r.topic == topic]


async def test_usage_and_audit_hold_the_same_record_without_the_prompt() -> None:
    memory = MemoryLog()
    request, state = finished(memory)
    await Metering(memory.writer()).finished(request, state)
    (usage,), (audit,) = beside(memory, topics.USAGE), beside(memory, topics.AUDIT)
    assert usage == audit
    assert usage is not None
    assert b"hello" not in usage


async def test_a_failed_append_is_repeated_until_the_record_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(appends, "RETRY_S", 0.0)
    memory = MemoryLog()
    request, state = finished(memory)
    memory.fail_next_append()
    memory.fail_next_append(landed=True)  # ambiguous: the record is there twice, and counts once
    await Metering(memory.writer()).finished(request, state)
    usage = beside(memory, topics.USAGE)
    assert len(usage) == 2
    assert usage[0] == usage[1]
    assert len(beside(memory, topics.AUDIT)) == 1
