"""What is written beside the token log about a finished response."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.protocol import fold, records, segments, topics
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import Foreign, answer, new_request
from worker.log import appends
from worker.serving.metering import Metering, latencies


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
    await Metering(memory.writer()).record_usage(request, state)
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
    await Metering(memory.writer()).record_usage(request, state)
    usage = beside(memory, topics.USAGE)
    assert len(usage) == 2
    assert usage[0] == usage[1]
    assert len(beside(memory, topics.AUDIT)) == 1


ASKED_MS = 1_000


def timed(request: records.Request, *frames: tuple[int, int], **claim: Any) -> fold.Fold:
    """A response whose frames have so many tokens and came at these broker times in ms."""
    state, rid = fold.Fold(), request.rid
    fields = {"tokenizer_digest": "t", **claim}
    first = records.Claim(rid, "a", None, request.owner, "w/1", "q", 0, "m", **fields)
    state.apply(first, 0, ASKED_MS + 1)
    add(state, rid, "a", *frames)
    return state


def add(state: fold.Fold, rid: str, own: str, *frames: tuple[int, int]) -> None:
    for count, at in frames:
        made = list(range(count))
        tok = records.Tok(rid, own, state.next, made, "x" * count, state.h)
        assert isinstance(state.apply(tok, state.last_offset + 1, at), fold.Accepted)


def test_the_first_token_is_timed_from_the_request_and_the_others_by_the_first_frame() -> None:
    """The five tokens of the two frames behind the first one took 70 ms."""
    state = timed(new_request(MemoryLog()), (2, 1_030), (1, 1_060), (4, 1_100))
    assert latencies(state, ASKED_MS) == (30, 14.0)


def test_one_frame_has_no_time_between_tokens() -> None:
    state = timed(new_request(MemoryLog()), (6, 1_030))
    assert latencies(state, ASKED_MS) == (30, None)


def test_a_response_without_tokens_has_no_times() -> None:
    assert latencies(timed(new_request(MemoryLog())), ASKED_MS) == (None, None)


def test_a_takeover_changes_no_first_token() -> None:
    """What the former owner wrote late is ignored, and has no time either."""
    request = new_request(MemoryLog())
    state = timed(request, (1, 1_030))
    claim = records.Claim(request.rid, "b", "a", request.owner, "w/2", "q", 0, "m", "t")
    state.apply(claim, 2, 3_000)
    stale = records.Tok(request.rid, "a", 1, [1], "x", state.h)
    assert state.apply(stale, 3, 3_500) is fold.Ignored.STALE_OWNER
    add(state, request.rid, "b", (1, 3_030))
    assert latencies(state, ASKED_MS) == (30, 2_000.0)


def test_a_takeover_before_the_first_token_counts_from_the_request() -> None:
    request = new_request(MemoryLog())
    state = timed(request)
    claim = records.Claim(request.rid, "b", "a", request.owner, "w/2", "q", 0, "m", "t")
    state.apply(claim, 1, 3_000)
    add(state, request.rid, "b", (1, 3_030))
    assert latencies(state, ASKED_MS) == (2_030, None)


def test_tokens_of_another_response_have_no_time() -> None:
    """A fork begins with its source's; an answer that is given again has no others."""
    fork = timed(new_request(MemoryLog()), (7, 1_010), (1, 1_040), (1, 1_050), copied=7)
    assert latencies(fork, ASKED_MS) == (40, 10.0)
    given = timed(new_request(MemoryLog()), (7, 1_010), (2, 1_020), answer_of="resp_b")
    assert latencies(given, ASKED_MS) == (None, None)


def test_characters_are_no_tokens() -> None:
    state = timed(
        *(new_request(MemoryLog()), (1, 1_030), (9, 1_100)), tokenizer_digest=segments.CHARACTERS
    )
    assert latencies(state, ASKED_MS) == (30, None)


def test_clocks_that_disagree_give_no_time() -> None:
    state = timed(new_request(MemoryLog()), (1, 990), (1, 980))
    assert latencies(state, ASKED_MS) == (None, None)
    assert latencies(timed(new_request(MemoryLog()), (1, 1_030)), 0) == (None, None)
